"""What is printed: tables and sentences for people, one JSON document for programs; complaints go to stderr."""

import json
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

LOG_WIDTH = 160
"""Columns of a table that goes to a file, where nothing says how wide it is."""

SHORT = 8
"""Digits of an id that are shown."""

MEASURES = {
    "num_examples": ("examples", "{:,.0f}"),
    "nll": ("NLL", "{:.4f}"),
    "accuracy": ("accuracy", "{:.2%}"),
    "rmse": ("RMSE", "{:.4g}"),
    "ece": ("ECE", "{:.4f}"),
    "brier": ("Brier", "{:.4f}"),
    "entropy": ("entropy", "{:.4f}"),
    "mutual_information": ("mutual information", "{:.4f}"),
    "epistemic_share": ("epistemic share", "{:.1%}"),
}
"""What measures are called, and how they are written, in the order in which they are."""


def document(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def lines(rows: Iterable[tuple[str, str]]) -> None:
    """A word, and what there is to say of it, on a line each."""
    rows = list(rows)
    width = max((len(word) for word, _ in rows), default=0)
    for word, text in rows:
        print(f"{word:<{width}}  {text}")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table; ``right`` are the columns of numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = _console()
    grid = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for column in columns:
        grid.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    console.print(grid)


def measures(found: Mapping[str, float], names: Sequence[str] = ()) -> str:
    """Measures in a sentence; all of them, unless some are named."""
    return ", ".join(f"{title} {text}" for title, text in measured({k: found[k] for k in names or found if k in found}))


def measured(found: Mapping[str, float]) -> list[tuple[str, str]]:
    """Each measure's title, and its value as it is written."""
    ordered = [*(name for name in MEASURES if name in found), *sorted(found.keys() - MEASURES.keys())]
    titles = {name: MEASURES.get(name, (name, "{:.4g}")) for name in ordered}
    return [(title, form.format(found[name])) for name, (title, form) in titles.items()]


def warn(sentence: str) -> None:
    """Something that went on all the same."""
    _to_stderr("warning: ", "bold yellow", sentence)


def complain(sentence: str) -> None:
    """Why it did not go on."""
    _to_stderr("error: ", "bold red", sentence)


@contextmanager
def counting(title: str) -> Generator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing in a log."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = _console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=LOG_WIDTH)


def _to_stderr(word: str, style: str, sentence: str) -> None:
    from rich.console import Console
    from rich.text import Text

    sys.stdout.flush()  # so that both come in order where they go to one file
    # As a Text, not a str: rich would take the brackets of postprior[data] for markup and drop them.
    Console(stderr=True).print(Text.assemble((word, style), sentence), soft_wrap=True)
