"""Kills processes that work on a store, at random moments, and holds the store to its laws after every one.

    python tests/pipeline/killing.py --kills 200 --out results/kills.json

The same verbs run on two stores: on one they run undisturbed, on the other each is killed (SIGKILL) after a random time
or right before a random file operation, and taken up again as its user would: ``resume`` where an absorption was begun,
the verb again where nothing was recorded. In the end both stores hold the same beliefs, to the byte.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from postprior import Store
from postprior.pipeline import drafts

EXAMPLES = 60
EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir"}
VERBS = ("absorb", "absorb", "absorb, gate fails", "promote", "rollback", "absorb")
"""What is done to a store, again and again."""
TWICE = 0.3
"""How often what is taken up is killed again."""


@dataclass(frozen=True)
class Moment:
    """When to kill: after some seconds, or before a file operation."""

    seconds: float | None = None
    operation: int | None = None

    def __str__(self) -> str:
        return f"after {1000 * self.seconds:.1f} ms" if self.seconds else f"before file operation {self.operation}"


@dataclass(frozen=True)
class Ran:
    """What became of a child."""

    killed: bool
    said: dict[str, Any] | None
    """What it could report, if it lived until then."""


def run(work: Callable[[], str], moment: Moment | None) -> Ran:
    """Do the work in a forked child, and kill it there and then."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, of which none works here
        pid = os.fork()
    if pid == 0:
        _be_the_child(work, writing, moment.operation if moment else None)
    os.close(writing)
    if moment and moment.seconds is not None:
        time.sleep(moment.seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the child failed with status {status}"
    return Ran(status != 0, json.loads(told) if told else None)


def _be_the_child(work: Callable[[], str], writing: int, last: int | None) -> None:
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in EVENTS:
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    began = time.perf_counter()
    try:
        belief = work()
        about = {"belief": belief, "seconds": time.perf_counter() - began, "operations": count}
        os.write(writing, json.dumps(about).encode())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class Pair:
    """A store that is left in peace and one that is not, through the same verbs."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self.random, self.say = random.Random(seed), say
        self.folder, self.peaceful, self.killed = folder, folder / "peaceful", folder / "killed"
        self.kills, self.resumed, self.acknowledged = Counter[str](), 0, set[str]()
        _write_part(folder / "held-out.npz", 10_000)
        for place in (self.peaceful, self.killed):
            options: dict[str, Any] = {"arguments": {"in_features": 3, "num_outputs": 2, "hidden": [8]}}
            Store.create(place, "mlp", epochs=3, batch_size=20, **options)

    def turn(self, number: int) -> None:
        """One verb on both."""
        verb = VERBS[number % len(VERBS)]
        if verb.startswith("absorb"):
            _write_part(self.folder / f"part-{number}.npz", number)
        told = run(lambda: self._do(self.peaceful, verb, number, math.inf), None).said
        assert told is not None
        before = len(Store.open(self.killed).log())
        again: Callable[[float], str] = lambda every: self._do(self.killed, verb, number, every)  # noqa: E731
        named = verb
        while True:
            moment = self._moment(told)
            every = self.random.choice([0.0, math.inf])
            if named != verb and self.random.random() > TWICE:
                moment = None
            ran = run(lambda todo=again, seconds=every: todo(seconds), moment)
            self._hold_to_the_laws(ran)
            if not ran.killed:
                break
            self.kills[named] += 1
            self.say(f"{sum(self.kills.values())}: {named} killed {moment}")
            store = Store.open(self.killed)
            if drafts.read_intent(store.archive) is not None:
                named, again = "resume", self._resume
                self.resumed += 1
            elif len(store.log()) > before:
                break
        found, expected = Store.open(self.killed), Store.open(self.peaceful)
        assert len(found.log()) == before + 1, f"{verb} was recorded {len(found.log()) - before} times"
        assert found.aliases == expected.aliases, f"after {verb}: {found.aliases} and {expected.aliases}"

    def compare(self) -> int:
        """Every belief of the killed store beside the other's, byte for byte; how many there are."""
        ids = {entry.belief for entry in Store.open(self.peaceful).log() if entry.belief}
        assert ids == {entry.belief for entry in Store.open(self.killed).log() if entry.belief}
        for id in ids:
            files = [place / "beliefs" / id / "belief.safetensors" for place in (self.peaceful, self.killed)]
            assert files[0].read_bytes() == files[1].read_bytes(), f"belief {id} differs"
        return len(ids)

    def _do(self, place: Path, verb: str, number: int, every: float) -> str:
        store = Store.open(place)
        if verb == "promote":
            return store.promote("candidate").aliases["champion"]
        if verb == "rollback":
            return store.rollback().aliases["head"]
        gate = "nll<=champion-100" if verb == "absorb, gate fails" else "nll<=champion+100"
        held_out, part = self.folder / "held-out.npz", self.folder / f"part-{number}.npz"
        return store.absorb(part, evaluate=held_out, gate=gate, every_seconds=every).belief

    def _resume(self, every: float) -> str:
        return Store.open(self.killed).resume(every_seconds=every).belief

    def _moment(self, told: dict[str, Any]) -> Moment:
        if self.random.random() < 0.5:
            return Moment(seconds=self.random.uniform(0, 1.3 * told["seconds"]))
        return Moment(operation=self.random.randint(1, told["operations"]))

    def _hold_to_the_laws(self, ran: Ran) -> None:
        store = Store.open(self.killed)
        problems = store.verify()
        assert not problems, problems
        recorded = {entry.belief for entry in store.log() if entry.belief}
        if ran.said:
            self.acknowledged.add(ran.said["belief"])
        assert self.acknowledged <= recorded, "an acknowledged belief is gone"
        assert set(store.aliases.values()) <= recorded


def _import_everything(place: Path) -> None:
    """What is imported at first use is imported here, so that it takes no time of the children."""
    place.mkdir()
    _write_part(place / "part.npz", 0)
    store = Store.create(place / "store", "mlp", arguments={"in_features": 3, "num_outputs": 2}, epochs=1)
    store.absorb(place / "part.npz")


def _write_part(path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((EXAMPLES, 3)).astype(np.float32)
    np.savez(path, x=x, y=(x.sum(1) > 0).astype(np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # a forked child has no other threads
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        _import_everything(Path(folder) / "first")
        pair = Pair(Path(folder), asked.seed, lambda line: print(line, flush=True))  # noqa: T201
        turns = 0
        while sum(pair.kills.values()) < asked.kills:
            pair.turn(turns)
            turns += 1
        num_beliefs = pair.compare()
    figures = {
        "command": f"python tests/pipeline/killing.py --kills {asked.kills} --seed {asked.seed}",
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip() or None,
        "device": f"{platform.processor() or platform.machine()}, {platform.system()}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "seed": asked.seed,
        "verbs": turns,
        "kills": dict(pair.kills),
        "resumed": pair.resumed,
        "beliefs_equal_to_the_byte": num_beliefs,
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(figures, indent=2))  # noqa: T201
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
