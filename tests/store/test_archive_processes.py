"""Many processes at one archive on a local disk, and processes that die at any moment."""

import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from tiny_archives import RECIPE, Place, commit, elsewhere, grown, put_tiny, started, tiny_belief

from postprior.errors import BusyError, RacedError, StoreError
from postprior.networks.belief import digest
from postprior.store import Archive

NUM_PROCESSES, NUM_COMMITS = 8, 5
NUM_KILLS = 12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: what only processes die at need not wait for a disk."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


def entries_of(root: Path) -> list[str]:
    return [entry.belief or "" for entry in Archive.open(root).entries()]


def leftovers(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(".tmp")]


def killed(process: object) -> None:
    """End it as a power cut would, and wait until it is gone."""
    process.kill()  # type: ignore[attr-defined]
    process.join()  # type: ignore[attr-defined]


# Eight at once


def compete(pipe: Connection, root: Path, number: int) -> None:
    """Commit after whatever is newest, with the lock or without; tell what was acknowledged and how often it lost."""
    archive, done, raced, busy = Archive.open(root), list[str](), 0, 0
    pipe.send("ready")
    pipe.recv()
    while len(done) < NUM_COMMITS:
        try:
            seed = 100 * number + len(done)
            if number % 2:
                done.append(commit(archive, seed))
            else:
                with archive.locked():
                    done.append(commit(archive, seed))
        except RacedError:
            raced += 1
        except BusyError:
            busy += 1
            time.sleep(0.002)
    pipe.send((done, raced, busy))


def test_eight_processes_lose_no_update_and_tear_no_file(root: Path) -> None:
    archive = Archive.create(root, RECIPE)
    workers = [started(compete, root, number) for number in range(NUM_PROCESSES)]
    assert [pipe.recv() for _, pipe in workers] == ["ready"] * NUM_PROCESSES
    for _, pipe in workers:
        pipe.send("go")
    seen, reads = [0], 0
    while any(process.is_alive() for process, _ in workers):
        # A reader meanwhile sees one whole store after another.
        seen.append(archive.state().sequence)
        assert Archive.open(root).verify() == []
        reads += 1
    answers = [pipe.recv() for _, pipe in workers]
    for process, pipe in workers:
        process.join()
        pipe.close()
    assert reads > 1
    assert seen == sorted(seen)
    acknowledged = entries_of(root)
    assert sorted(acknowledged) == sorted(chain.from_iterable(done for done, _, _ in answers))
    assert len(set(acknowledged)) == NUM_PROCESSES * NUM_COMMITS
    assert [archive.manifest(id)["parent"] for id in acknowledged] == [None, *acknowledged[:-1]]
    assert sum(raced for _, raced, _ in answers) > 0
    assert sum(busy for _, _, busy in answers) > 0
    before = len(list((root / "beliefs").iterdir()))
    assert archive.sweep() == before - len(acknowledged)
    assert archive.verify() == []
    assert leftovers(root) == []


# Processes that die


def commit_for_ever(pipe: Connection, root: Path, first: int) -> None:
    """Tell each id once it is acknowledged."""
    archive = Archive.open(root)
    for seed in count(first):
        with archive.locked():
            archive.write_draft("step", b"%d" % seed * 1000)
            pipe.send_bytes(commit(archive, seed).encode())
            archive.drop_drafts()


def test_whenever_a_process_is_killed_what_was_acknowledged_is_there(root: Path) -> None:
    Archive.create(root, RECIPE)
    acknowledged, draw = list[str](), random.Random(0)
    for kill in range(NUM_KILLS):
        process, pipe = started(commit_for_ever, root, 1000 * kill)
        acknowledged.append(pipe.recv_bytes().decode())
        time.sleep(draw.uniform(0, 0.05))
        killed(process)
        acknowledged += all_told(pipe)
        archive = Archive.open(root)
        assert archive.verify() == []
        found = entries_of(root)
        # The last may stand in the journal though nobody was told.
        assert [id for id in found if id in acknowledged] == acknowledged
        assert len(found) <= len(acknowledged) + kill + 1
        assert archive.state().aliases == {"head": found[-1]}
        with archive.locked():
            pass
    archive.sweep()
    assert leftovers(root) == []
    assert sorted(path.name for path in (root / "beliefs").iterdir()) == sorted(entries_of(root))
    assert digest(archive.belief(acknowledged[0])) == digest(tiny_belief(0))
    commit(archive, 77)
    assert archive.verify() == []


STEPS = frozenset({"os.link", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "fcntl.flock"})
"""The events of Python at which a file or folder comes, goes or is locked; a file that is opened to write comes too."""


def all_told(pipe: Connection) -> list[str]:
    """What came through the pipe before the process at its other end was gone."""
    told = list[str]()
    with pipe, suppress(EOFError):
        while True:
            told.append(pipe.recv_bytes().decode())
    return told


def die_at(steps: int) -> None:
    """From now on, end this process the way SIGKILL does just before it takes one more of so many steps."""
    left = iter(range(steps))

    def step(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in STEPS) and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(step)


def commit_and_die(pipe: Connection, root: Path, steps: int) -> None:
    archive = Archive.open(root)
    put_tiny(Archive.open(root), 7)  # nobody will acknowledge it
    die_at(steps)
    pipe.send_bytes(commit(archive, 2).encode())
    archive.write_draft("step", b"of work")
    archive.drop_drafts()
    archive.sweep()


def test_at_whichever_step_a_process_dies_what_was_acknowledged_is_there(memory: Path) -> None:
    root = memory / "archive"
    _, ids = grown(root.with_name("before"), 2)
    lengths = list[int]()
    for steps in range(500):
        shutil.copytree(root.with_name("before"), root)
        process, pipe = started(commit_and_die, root, steps)
        process.join()
        told = all_told(pipe)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        archive = Archive.open(root)
        assert archive.verify() == []
        found = entries_of(root)
        assert [*ids, *told] in (found, found[:-1])
        assert archive.state().aliases == {"head": found[-1]}
        assert archive.draft("step") in (None, b"of work")
        archive.sweep()
        assert leftovers(root) == []
        assert sorted(path.name for path in (root / "beliefs").iterdir()) == sorted(found)
        commit(archive, 9)
        assert archive.verify() == []
        lengths.append(len(found))
        shutil.rmtree(root)
    assert set(lengths) == {2, 3}
    assert lengths == sorted(lengths)
    assert len(lengths) > 50


def create_and_die(pipe: Connection, root: Path, steps: int) -> None:
    Archive.create(root.with_name("another"), RECIPE)
    die_at(steps)
    Archive.create(root, RECIPE)
    pipe.close()


def test_at_whichever_step_a_process_dies_that_makes_an_archive_it_is_made_or_can_be(memory: Path) -> None:
    opened, made = 0, 0
    for steps in range(500):
        folder = memory / str(steps)
        folder.mkdir()
        root = folder / "archive"
        process, pipe = started(create_and_die, root, steps)
        process.join()
        with pipe:
            if process.exitcode == 0:
                break
        try:
            archive = Archive.open(root)
            opened += 1
        except StoreError:
            archive = Archive.create(root, RECIPE)
            made += 1
        assert archive.verify() == []
        commit(archive)
    assert made > 5
    assert opened > 0


# Locks


def hold(pipe: Connection, root: Path) -> None:
    with Archive.open(root).locked():
        pipe.send(os.getpid())
        pipe.recv()


def hold_with_a_child(pipe: Connection, root: Path) -> None:
    archive = Archive.open(root)
    with archive.locked():
        put_tiny(archive)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        pipe.send(child)
        time.sleep(60)


def test_a_living_process_keeps_the_lock_and_a_dead_one_does_not(root: Path) -> None:
    archive = Archive.create(root, RECIPE)
    process, pipe = started(hold, root)
    with pipe:
        holder = pipe.recv()
        with pytest.raises(BusyError, match=rf"in use by process {holder}, which holds "), archive.locked():
            pass
        killed(process)
    with archive.locked():
        pass


def test_a_child_that_outlives_a_killed_holder_does_not_hold_the_lock(root: Path) -> None:
    archive = Archive.create(root, RECIPE)
    process, pipe = started(hold_with_a_child, root)
    with pipe:
        child = pipe.recv()
        try:
            assert archive.sweep() == 0
            killed(process)
            os.kill(child, 0)  # it lives
            with archive.locked():
                pass
            assert archive.sweep() == 1
        finally:
            os.kill(child, signal.SIGKILL)


def test_whoever_waits_comes_in_when_the_other_leaves(root: Path) -> None:
    archive, order = Archive.create(root, RECIPE), list[str]()
    process, pipe = started(hold, root)

    def wait() -> None:
        with archive.locked(wait=True):
            order.append("in")

    with pipe:
        pipe.recv()
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.1)
        order.append("still held")
        pipe.send("leave")
        waiting.join(10)
    process.join()
    assert order == ["still held", "in"]


def put_and_tell(root: Path) -> str:
    return put_tiny(Archive.open(root), 5)


def test_a_lock_does_not_keep_readers_in_other_processes_out(root: Path) -> None:
    archive, ids = grown(root, 2)
    with archive.locked():
        assert elsewhere(entries_of, root) == ids
        assert f"beliefs/{elsewhere(put_and_tell, root)}/manifest.json" in Place(str(root)).files()
