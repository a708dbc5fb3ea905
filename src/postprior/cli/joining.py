"""`torchrun ... -m postprior absorb`: several processes run the same verb on one part, and one of them speaks."""

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from postprior.learning.training import Progress

Timeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0.0, help="Under torchrun: after which a process that does not answer is given up."
    ),
]


@contextmanager
def joined(timeout: float) -> Generator[bool]:
    """Inside, the processes that torchrun started work together; whether this is the one that speaks."""
    from postprior import distributed

    with distributed.joined(timeout):
        yield distributed.is_first()


@contextmanager
def learning(speaks: bool) -> Generator["Callable[[Progress], None] | None"]:
    """How far learning is, shown by the process that speaks."""
    from postprior.learning.progress import shown

    with shown("learning") if speaks else nullcontext() as progress:
        yield progress
