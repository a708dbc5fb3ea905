"""SIGINT and SIGTERM while a part is learned: the state is put away after the step, and the process leaves."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import typer

from postprior.cli.exits import Exit
from postprior.cli.screen import complain, warn
from postprior.errors import PostpriorError, StoppedError

STATUS = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}


class AtOnceError(KeyboardInterrupt):
    """A signal came where no step is under way, or a second one came; no `except Exception` is to hold it up."""


class Stop:
    """Asked after every step of learning whether a signal has come."""

    def __init__(self) -> None:
        self.learning, self.signal = False, 0

    def __call__(self) -> bool:
        self.learning = True
        return self.signal != 0

    def receive(self, number: int, _: FrameType | None) -> None:
        """Stop after the step that is under way; at once where none is, or where this is the second time."""
        second, self.signal = self.signal != 0, number
        if second or not self.learning:
            raise AtOnceError
        warn("stopping after this step; a second signal stops at once")


@contextmanager
def stoppable(store: str) -> Generator[Stop]:
    """Signals end in their own exit status, and in a sentence that says how to go on."""
    stop = Stop()
    before = {number: signal.signal(number, stop.receive) for number in STATUS}
    try:
        yield stop
    except (StoppedError, AtOnceError) as error:
        what = str(error) or "interrupted"
        cure = f"go on with `postprior resume {store}`, or give the part up with --discard"
        complain(
            f"{what}; {cure if _is_unfinished(store) else 'nothing of the part was begun, the store is as it was'}"
        )
        raise typer.Exit(STATUS[signal.Signals(stop.signal)]) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_unfinished(store: str) -> bool:
    from postprior.pipeline import drafts
    from postprior.store.archive import Archive

    try:
        return drafts.read_intent(Archive.open(store)) is not None
    except PostpriorError:
        return False
