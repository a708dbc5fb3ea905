"""The exit statuses: what each says to a script, and which error ends in which."""

from enum import IntEnum

from postprior.errors import (
    BusyError,
    PostpriorError,
    RacedError,
    RepeatedPartError,
    SettingError,
    UnfinishedError,
)


class Exit(IntEnum):
    """What the process leaves with; the numbers are kept for good, as scripts rely on them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    GATE = 3
    REPEATED = 4
    BUSY = 5
    UNFINISHED = 6
    PROBLEMS = 7
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Exit.DONE: "done",
    Exit.FAILED: "failed; the message says what, where, and the cure",
    Exit.USAGE: "wrong usage: an option, argument or setting that cannot be",
    Exit.GATE: "the gate failed: the belief is kept as candidate, and not promoted",
    Exit.REPEATED: "the part was absorbed before",
    Exit.BUSY: "another process holds the store, or was first",
    Exit.UNFINISHED: "an absorption was interrupted: resume it, or discard it",
    Exit.PROBLEMS: "verify found files that are not as they were written",
    Exit.INTERRUPTED: "interrupted (SIGINT); what was learned is kept for resume",
    Exit.TERMINATED: "terminated (SIGTERM); what was learned is kept for resume",
}

OF_ERRORS: tuple[tuple[type[PostpriorError], Exit], ...] = (
    (RepeatedPartError, Exit.REPEATED),
    (BusyError, Exit.BUSY),
    (RacedError, Exit.BUSY),
    (UnfinishedError, Exit.UNFINISHED),
    (SettingError, Exit.USAGE),
)


def exit_of(error: BaseException) -> Exit:
    """The status that an error ends in."""
    return next((status for kind, status in OF_ERRORS if isinstance(error, kind)), Exit.FAILED)


def help_text() -> str:
    """All of them, as the help shows them."""
    return "\n".join(f"{status.value:<4} {meaning}" for status, meaning in MEANINGS.items())
