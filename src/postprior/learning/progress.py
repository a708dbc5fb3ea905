"""Progress for people: a bar on a terminal, a plain line now and then in a log."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from postprior.learning.training import Progress

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def shown(title: str) -> Generator[Callable[[Progress], None]]:
    """Shows what it is told on standard error."""
    # Brought in only where something is shown: it takes a tenth of the time that torch itself takes.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with RichProgress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda p: bar.update(task, completed=p.step, total=p.num_steps, description=_words(title, p))
    else:
        yield _Lines(title).tell


class _Lines:
    def __init__(self, title: str) -> None:
        self._title, self._next = title, time.monotonic() + SECONDS_BETWEEN_LINES

    def tell(self, progress: Progress) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_BETWEEN_LINES
            line = f"{_words(self._title, progress)}, step {progress.step} of {progress.num_steps}"
            sys.stderr.write(line + "\n")


def _words(title: str, progress: Progress) -> str:
    return f"{title}: {progress.nelbo:.4f} nats an example"
