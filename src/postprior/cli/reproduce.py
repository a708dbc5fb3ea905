"""`postprior reproduce`, `table` and `figure`: the paper's experiments, and what they show."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postprior.errors import SettingError

if TYPE_CHECKING:
    from postprior.paper.experiment import Variant
    from postprior.paper.runs import Status

TASKS = ("mnist", "cifar10", "cifar5+5")
VARIANTS: "tuple[Variant, ...]" = ("paper", "tuned")
SECONDS_BETWEEN_LINES = 30.0
STEPS_OF_BAR = 1000

Jobs = Annotated[int, typer.Option(min=1, help="Runs at once, each in a process of its own.")]
Parallel = Annotated[
    str | None,
    typer.Option(metavar="WHERE", help="On Ray's workers: ray for --jobs of this machine, or ray://host:10001."),
]


def reproduce(
    task: Annotated[str, typer.Argument(metavar="TASK", help="mnist, cifar10, cifar5+5 or all.")],
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each run, 0 and up: 5; 1 with --quick.")] = None,
    families: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Only these, with commas between: ft, ffg, cfg, mnf, ft-early, ft-fs, ..."),
    ] = None,
    parts: Annotated[str | None, typer.Option(metavar="T", help="Only these T, with commas between.")] = None,
    variant: Annotated[
        str, typer.Option(help="Settings: paper, tuned (not searched to the end yet) or both.")
    ] = "paper",
    quick: Annotated[
        bool, typer.Option("--quick", help="The whole path on few images and steps, in minutes on a CPU.")
    ] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs and tables.")] = Path("results"),
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...: a GPU where there is one.")] = None,
    jobs: Jobs = 1,
    parallel: Parallel = None,
) -> None:
    """Run the paper's experiments, each at T=1 and in T=10 parts that are thrown away once learned.

    Every run ends in a file of its own under DIR/runs. Interrupt it as you like: the same command goes on where it
    stopped, with the same results. At the end it writes DIR/table.md, and `postprior figure DIR` draws the figure.

    The images must be here: [bold]postprior data fetch mnist cifar10[/bold].

    \b
    [bold]Examples[/bold]
    postprior reproduce mnist --quick --out /tmp/quick
    [dim]# one bar of the paper's figure, with its interval[/dim]
    postprior reproduce mnist --families ffg --parts 10
    [dim]# everything, with the paper's settings and tuned ones, on a large GPU that 12 runs share[/dim]
    nvidia-cuda-mps-control -d
    postprior reproduce all --variant both --jobs 12
    """
    chosen = _checked(task, TASKS, "all"), _checked(variant, VARIANTS, "both"), _split(families), _numbers(parts)

    from postprior.paper import configs, runs

    tasks, variants, names, nums = chosen
    kinds: tuple[Variant, ...] = ("quick",) if quick else tuple(kind for kind in VARIANTS if kind in variants)
    try:
        experiments = [e for kind in kinds for e in configs.choose(tasks, families=names, parts=nums, variant=kind)]
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error
    place = _device(device)
    with _progress() as report:
        runs.run_all(
            experiments, seeds or (1 if quick else 5), out, device=place, jobs=jobs, parallel=parallel, report=report
        )
    table(out)


def search(
    task: Annotated[str, typer.Argument(metavar="TASK", help="mnist, cifar10, cifar5+5 or all.")],
    families: Annotated[str | None, typer.Option(metavar="NAMES", help="Only these, with commas between.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs and tables.")] = Path("results/search"),
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...: a GPU where there is one.")] = None,
    jobs: Jobs = 1,
    parallel: Parallel = None,
) -> None:
    """Try every candidate for the tuned settings, scored on training images set aside, and write DIR/search.md.

    All with one seed, then the best of each approach with more. The test set is not looked at. Interrupt it as you
    like: the same command goes on where it stopped.

    \b
    [bold]Example[/bold]
    postprior search cifar10 --families ft,ffg --jobs 12
    """
    tasks = _checked(task, TASKS, "all")

    from postprior.paper import runs, search

    experiments = [experiment for each in tasks for experiment in search.candidates(each, _split(families))]
    if not experiments:
        raise typer.BadParameter(f"--families {families}: no candidates; there are {', '.join(search.approaches())}.")
    place = _device(device)
    with _progress() as report:
        options: dict[str, Any] = {"device": place, "jobs": jobs, "parallel": parallel, "report": report}
        tried = runs.run_all(experiments, 1, out, **options)
        runs.run_all(search.finalists(tried), search.NUM_SEEDS, out, **options)
    print(search.write(out).read_text(encoding="utf-8"), end="")


def table(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `reproduce` was given as --out.")],
) -> None:
    """Print the table of results, and write it as DIR/table.md and DIR/table.csv.

    Runs that are not there, or only for some seeds, are listed under it.

    \b
    [bold]Example[/bold]
    postprior table results
    """
    from postprior.paper import table

    markdown, _ = table.write(folder)
    print(markdown.read_text(encoding="utf-8"), end="")


def figure(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `reproduce` was given as --out.")],
) -> None:
    """Draw the paper's figure, and accuracy and NLL by part, from the results that are there.

    Writes PNG and SVG into DIR, one of each for every variant of the settings.

    \b
    [bold]Example[/bold]
    postprior figure results
    """
    from postprior.paper import figure

    paths, missing = figure.write(folder)
    for sentence in missing:
        print(f"not there: {sentence}", file=sys.stderr)
    for path in paths:
        print(path)


def _checked(value: str, known: tuple[str, ...], everything: str) -> tuple[str, ...]:
    if value != everything and value not in known:
        raise typer.BadParameter(f"{value!r} is not known; choose among {', '.join(known)}, {everything}.")
    return known if value == everything else (value,)


def _split(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip().lower() for name in names.split(",")]


def _numbers(parts: str | None) -> list[int] | None:
    try:
        numbers = None if parts is None else [int(number) for number in parts.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"--parts {parts}: expected whole numbers such as 1,10.") from error
    if numbers and min(numbers) < 1:
        raise typer.BadParameter(f"--parts {parts}: expected whole numbers from 1.")
    return numbers


def _device(name: str | None) -> str:
    import torch

    from postprior.paper import workers

    workers.fast_kernels()
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise typer.BadParameter(f"--device {name} cannot be used: {reason}") from error
    return name


@contextmanager
def _progress() -> "Generator[Callable[[Status], None]]":
    """A bar on a terminal, lines in a log; on stderr, so that stdout holds nothing but the table."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines().tell
        return
    texts = progress.TextColumn("{task.description}", markup=False), progress.TextColumn("{task.fields[left]}")
    with progress.Progress(texts[0], progress.BarColumn(), texts[1], console=console) as bars:
        bar = bars.add_task("", total=STEPS_OF_BAR, left="")

        def report(status: "Status") -> None:
            if status.result:
                console.print(_ended(status), markup=False, highlight=False)
            done = status.num_done + (0.0 if status.result else status.fraction)
            completed = round(STEPS_OF_BAR * done / status.num_runs)
            bars.update(bar, description=status.title, completed=completed, left=_left(status))

        yield report


class _Lines:
    def __init__(self) -> None:
        self._next = time.monotonic() + SECONDS_BETWEEN_LINES

    def tell(self, status: "Status") -> None:
        if status.result is None and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS_BETWEEN_LINES
        going_on = f"{status.title}: {100 * status.fraction:.0f}% of its steps; {_left(status)}"
        print(_ended(status) if status.result else going_on, file=sys.stderr, flush=True)


def _ended(status: "Status") -> str:
    assert status.result is not None
    final, seconds = status.result.final, status.result.seconds
    numbers = f"accuracy {100 * final.accuracy:.2f}%, NLL {final.nll:.3f}, {seconds:.0f} s"
    return f"{status.title}: {numbers}; {_left(status)}"


def _left(status: "Status") -> str:
    runs = f"{status.num_done} of {status.num_runs} runs done"
    if status.seconds_left is None:
        return runs
    minutes, seconds = divmod(round(status.seconds_left), 60)
    return f"{runs}, {f'{minutes} min' if minutes >= 2 else f'{60 * minutes + seconds} s'} left"
