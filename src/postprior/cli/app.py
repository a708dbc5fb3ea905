"""The command line: the table of verbs, and the one place where an error becomes a sentence and an exit status."""

import importlib.metadata
import sys
from typing import Annotated

import typer

from postprior.cli import data, demo, reproduce
from postprior.errors import PostpriorError

FAILED, INTERRUPTED = 1, 130  # a wrong usage is 2, which typer sees to

app = typer.Typer(name="postprior", no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_show_locals=False)
app.command()(demo.demo)
app.add_typer(data.app, name="data")
app.command()(reproduce.reproduce)
app.command()(reproduce.search)
app.command()(reproduce.table)
app.command()(reproduce.figure)


def main() -> None:
    """Run the command line and leave with its exit status."""
    try:
        app()
    except PostpriorError as error:
        _complain(error)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _complain(error: PostpriorError) -> None:
    from rich.console import Console
    from rich.text import Text

    # As a Text, not a str: rich would take the brackets of postprior[data] for markup and drop them.
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"postprior {importlib.metadata.version('postprior')}")
        raise typer.Exit


@app.callback()
def postprior(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Bayesian incremental learning: today's posterior is tomorrow's prior.

    A network meets data one part at a time, keeps what it learned as a belief over its weights, and forgets the data.

    Start with [bold]postprior demo[/bold]. Every verb explains itself: [bold]postprior data --help[/bold].
    """
