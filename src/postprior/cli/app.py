"""The command line: the table of verbs, and the one place where an error becomes a sentence and an exit status."""

import importlib.metadata
import signal
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from postprior.cli import absorbing, asking, begin, data, demo, history, leaving, moving, reproduce, screen
from postprior.cli.exits import Exit, exit_of, help_text
from postprior.errors import PostpriorError

Verb = Callable[..., None]

PANELS: dict[str, tuple[Verb, ...]] = {
    "Your own data: learn": (begin.init, absorbing.absorb, absorbing.resume),
    "Your own data: ask": (asking.evaluate, asking.predict, history.log, history.show, history.diff, history.verify),
    "Your own data: move and combine": (
        moving.promote,
        moving.rollback,
        moving.alias,
        moving.merge,
        moving.forget,
        moving.sweep,
    ),
    "Your own data: hand over": (leaving.export, leaving.report),
    "The paper": (demo.demo, reproduce.reproduce, reproduce.search, reproduce.table, reproduce.figure),
}
"""Every verb, under the heading that the help shows it by."""

HELP = f"""Bayesian incremental learning: today's posterior is tomorrow's prior.

A network meets data one part at a time, keeps what it learned as a belief over its weights, and forgets the data.

Start with [bold]postprior demo[/bold]. Every verb explains itself: [bold]postprior absorb --help[/bold].

\b
[bold]Exit status[/bold]
{help_text()}
"""

app = typer.Typer(name="postprior", no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_show_locals=False)
for panel, verbs in PANELS.items():
    for verb in verbs:
        app.command(rich_help_panel=panel)(verb)
app.add_typer(data.app, name="data", rich_help_panel="The paper")


def main() -> None:
    """Run the command line and leave with its exit status."""
    try:
        with _signals(), _warnings():
            app()
    except PostpriorError as error:
        screen.complain(str(error))
        sys.exit(exit_of(error))
    except OSError as error:
        # Of what the system refuses, such as on a full disk, some is met where nobody thought of it.
        where = f"{error.filename}: " if error.filename else ""
        screen.complain(f"{where}{error.strerror or error}; mend that, and run the same again")
        sys.exit(Exit.FAILED)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)


@contextmanager
def _signals() -> Generator[None]:
    """SIGTERM unwinds the stack, so that temporary files go; verbs that learn do better (see ``stopping``)."""

    def leave(*_: object) -> None:
        sys.exit(Exit.TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _warnings() -> Generator[None]:
    """Python's warnings as sentences; where in the code they were raised is no user's concern."""

    def tell(message: Warning | str, *_: Any, **__: Any) -> None:
        screen.warn(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = tell
        yield


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"postprior {importlib.metadata.version('postprior')}")
        raise typer.Exit


@app.callback(help=HELP)
def postprior(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options of the command itself."""
