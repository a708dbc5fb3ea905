"""Some work done by several forked processes together, as a launcher would start them."""

import json
import os
import socket
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  # which optimizers bring in at first use: here it takes no time of each process

from postprior import distributed
from postprior.errors import PostpriorError

Work = Callable[[int], Any]
"""What each does, by its number; returns JSON."""


@dataclass(frozen=True)
class Ended:
    """How one process ended."""

    status: int
    """Of the process: 0, or the signal that killed it, negative."""
    said: Any
    """What its work returned; None where that raised."""
    error: str | None
    """What it raised of ours: the class and the message."""
    seconds: float
    """From the start of all."""


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


def together(
    count: int, work: Work, folder: Path, *, timeout: float = 60.0, variables: Mapping[str, str] | None = None
) -> list[Ended]:
    """Each process's end, in their order; it forks, since to start a new interpreter with torch takes seconds."""
    began, port, children = time.monotonic(), free_port(), dict[int, int]()
    for rank in range(count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, of which none works here
            pid = os.fork()
        if pid == 0:
            launcher = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in launcher.items()})
            os.environ.update({"MASTER_ADDR": "127.0.0.1", **(variables or {})})
            _be_one(rank, work, folder / f"said-{rank}.json", timeout)
        children[pid] = rank
    ends = dict[int, Ended]()
    while children:
        time.sleep(0.005)
        # Each by its number: whoever runs the tests may have children of its own.
        pid, status = next((found for found in (os.waitpid(own, os.WNOHANG) for own in children) if found[0]), (0, 0))
        if not pid:
            continue
        rank = children.pop(pid)
        file = folder / f"said-{rank}.json"
        said = json.loads(file.read_text()) if file.exists() else {}
        file.unlink(missing_ok=True)
        code = os.waitstatus_to_exitcode(status)
        ends[rank] = Ended(code, said.get("said"), said.get("error"), time.monotonic() - began)
    return [ends[rank] for rank in range(count)]


def said(ends: list[Ended]) -> list[Any]:
    """What all of them returned, each having done its work."""
    assert [(end.status, end.error) for end in ends] == [(0, None)] * len(ends), ends
    return [end.said for end in ends]


def _be_one(rank: int, work: Work, file: Path, timeout: float) -> None:
    try:
        try:
            with distributed.joined(timeout):
                found: dict[str, Any] = {"said": work(rank)}
        except PostpriorError as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        file.write_text(json.dumps(found))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
