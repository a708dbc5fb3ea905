"""What this room's tests share: tiny beliefs, committing one, and processes that are quick to start."""

import hashlib
import json
import multiprocessing
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from fsspec.core import url_to_fs

from postprior.families import Factorized, Point
from postprior.networks.belief import Belief
from postprior.store import Archive

CARD = "# A belief\n\nÜber alles, was war.\n"
RECIPE = {"family": "factorized", "prior_sd": 0.1}

# Forked from a process that has imported torch and done nothing else: a new one takes milliseconds, not seconds.
PROCESSES: ForkServerContext = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["postprior.store", "fsspec", "pytest"])


@dataclass(frozen=True)
class Place:
    """Where an archive lies, and what lies there; these ways to it are not those of `Archive`."""

    address: str
    locks: bool = False
    """Whether `locked` keeps others out here."""

    def files(self) -> dict[str, bytes]:
        """Everything by its name, but for hidden files, which say nothing of the content."""
        files, root = url_to_fs(self.address)
        files.invalidate_cache()
        found = {path.removeprefix(root).lstrip("/"): path for path in files.find(root)}
        return {name: files.cat_file(path) for name, path in sorted(found.items()) if not name.startswith(".")}

    def write(self, name: str, data: bytes) -> None:
        files, root = url_to_fs(self.address)
        files.makedirs(root, exist_ok=True)
        files.pipe_file(f"{root}/{name}", data)

    def remove(self, *names: str) -> None:
        files, root = url_to_fs(self.address)
        for name in names:
            files.rm_file(f"{root}/{name}")


def tiny_belief(seed: int = 0) -> Belief:
    """A belief about two tensors, with a buffer; other seeds give other ones."""
    g = torch.Generator().manual_seed(seed)
    weights = {
        "0.weight": Factorized(torch.randn(3, 4, generator=g), torch.randn(3, 4, generator=g)),
        "0.bias": Point(torch.randn(3, generator=g)),
    }
    buffers = {"1.running_mean": torch.randn(3, generator=g)}
    return Belief(weights, frozenset({"0.bias"}), buffers, {"1": 7 + seed}, num_parts=seed, num_examples=10 * seed)


def manifest_of(parent: str | None = None, part: str | None = None, **more: Any) -> dict[str, Any]:
    return {"parent": parent, "part": None if part is None else {"id": part}, **more}


def put_tiny(archive: Archive, seed: int = 0, parent: str | None = None) -> str:
    return archive.put(tiny_belief(seed), manifest_of(parent, f"part {seed}"), CARD)


def commit(archive: Archive, seed: int = 0, alias: str = "head") -> str:
    """One more belief after the one the alias points to, which then points to the new one."""
    parent = archive.state().aliases.get(alias)
    id = put_tiny(archive, seed, parent)
    archive.append("absorb", belief=id, moves={alias: id}, expect={alias: parent}, about={"seed": seed})
    return id


def grown(address: str | Path, num_beliefs: int = 3) -> tuple[Archive, list[str]]:
    """A new archive with a chain of beliefs, and their ids, oldest first."""
    archive = Archive.create(address, RECIPE)
    return archive, [commit(archive, seed) for seed in range(num_beliefs)]


def id_of(manifest: dict[str, Any]) -> str:
    """The id a manifest must have, worked out by hand: the hash of what lasts, in canonical JSON."""
    passing = ("id", "checksum", "time", "seconds", "versions", "files")
    lasting = {key: value for key, value in manifest.items() if key not in passing}
    lasting["belief.safetensors"] = manifest["files"]["belief.safetensors"]
    text = json.dumps(lasting, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    return hashlib.sha256(text.encode()).hexdigest()


def together(function: Callable[[int], Any], num_threads: int) -> list[Any]:
    """What the function returns or raises in each of several threads that begin at once."""
    found: list[Any] = [None] * num_threads
    barrier = threading.Barrier(num_threads)

    def run(number: int) -> None:
        barrier.wait()
        try:
            found[number] = function(number)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def started(function: Callable[..., None], *arguments: Any) -> tuple[ForkServerProcess, Connection]:
    """A process that runs the function with one end of a pipe first, and the other end."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=function, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def elsewhere(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns in a process of its own; what goes wrong there goes wrong here."""
    process, pipe = started(_answer, function, arguments)
    with pipe:
        try:
            done, answer = pipe.recv()
        except EOFError:
            process.join()
            raise AssertionError(f"the process ended with {process.exitcode} and no answer") from None
    process.join()
    if not done:
        raise AssertionError(f"in the other process:\n{answer}")
    return answer


def _answer(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send((True, function(*arguments)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
