"""A store's part learned by several processes: one writes, all are told; whoever dies or hangs, nothing is lost."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.small_store import arrays, content, part_file, small_store
from postprior import Store
from postprior.learning.training import Progress
from postprior.pipeline import drafts
from processes import Ended, said, together

LAUNCH = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
AGAIN = {**LAUNCH, "TORCHELASTIC_RESTART_COUNT": "1"}


def absorbing(place: Path, data: Any, **options: Any) -> Callable[[int], Any]:
    """What each process does: absorb, and say what came of it."""

    def work(_: int) -> Any:
        outcome = Store.open(place).absorb(data, **options)
        assert outcome.update is not None
        return [outcome.belief, outcome.part, outcome.promoted, dict(outcome.before), outcome.update.num_steps]

    return work


def at_step(number: int, rank: int, act: Callable[[], None]) -> Callable[[int], Callable[[Progress], None]]:
    """What one process does once it has taken so many steps."""

    def progress_of(own: int) -> Callable[[Progress], None]:
        def tell(progress: Progress) -> None:
            if own == rank and progress.step == number:
                act()

        return tell

    return progress_of


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_one_writes_and_all_are_told(tmp_path: Path) -> None:
    store, part = small_store(tmp_path), part_file(tmp_path, 0)
    place = Path(store.address)
    found = said(together(2, absorbing(place, part, evaluate=part, gate="nll<100"), tmp_path))
    assert found[0] == found[1]
    assert [entry.event for entry in store.log()] == ["absorb", "init"]
    assert store.aliases["head"] == store.aliases["champion"] == found[0][0]
    assert store.parts()[0]["num_examples"] == 60
    assert found[0][4] == 9
    assert not store.verify()
    before = content(place)
    for end in together(2, absorbing(place, part), tmp_path):
        assert end.error is not None
        assert end.error.startswith("RepeatedPartError: part part-0 holds exactly the examples")
    assert content(place) == before


def test_what_was_handed_over_is_handed_over_by_each(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    found = said(together(2, absorbing(Path(store.address), arrays(0), part="monday"), tmp_path))
    assert found[0][1] == "monday"
    assert store.aliases["head"] == found[0][0] == found[1][0]


def test_a_bad_part_is_refused_by_all_and_leaves_nothing_behind(tmp_path: Path) -> None:
    store = small_store(tmp_path, normalise="none")
    x, y = arrays(0)
    x[31, 0] = np.nan  # an example of the second process
    np.savez(tmp_path / "bad.npz", x=x, y=y)
    before = content(Path(store.address))
    for end in together(2, absorbing(Path(store.address), tmp_path / "bad.npz"), tmp_path):
        assert end.error is not None
        assert end.error.startswith("PartError: example")
        assert "nan" in end.error
    assert content(Path(store.address)) == before


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The belief that four processes end at."""
    folder = tmp_path_factory.mktemp("undisturbed")
    store = small_store(folder)
    return said(together(4, absorbing(Path(store.address), part_file(folder, 0)), folder))[0][0]


def disturbed(place: Path, part: Path, act: Callable[[], None], rank: int, folder: Path, timeout: float) -> list[Ended]:
    happening = at_step(5, rank, act)

    def work(own: int) -> Any:
        return absorbing(place, part, every_seconds=0.0, progress=happening(own))(own)

    return together(4, work, folder, timeout=timeout, variables=LAUNCH)


@pytest.mark.parametrize("rank", [0, 2])
def test_one_of_four_is_killed_and_a_restart_ends_at_the_same_belief(
    rank: int, undisturbed: str, tmp_path: Path
) -> None:
    store, part = small_store(tmp_path), part_file(tmp_path, 0)
    place = Path(store.address)
    ends = disturbed(place, part, die, rank, tmp_path, timeout=20.0)
    for number, end in enumerate(ends):
        if number == rank:
            assert end.status == -signal.SIGKILL
            continue
        assert end.error is not None
        assert end.error.startswith(f"WorkersError: process {number} of 4 has lost the others: one of them failed")
        assert end.seconds < 20
    # Nothing was recorded, and what was learned is there to go on with.
    assert [entry.event for entry in store.log()] == ["init"]
    assert not store.verify()
    checkpoint = drafts.read_checkpoint(store.archive)
    assert checkpoint is not None
    assert checkpoint[1]["training"]["steps"]["step"] >= 4
    # A launch that has nothing to do with it is told to resume; the launcher's own next attempt does.
    stranger = together(4, absorbing(place, part), tmp_path, variables={**AGAIN, "TORCHELASTIC_RUN_ID": "other"})
    assert all("UnfinishedError: part part-0 was begun and not finished" in str(end.error) for end in stranger)
    fewer = together(2, lambda _: Store.open(place).resume().belief, tmp_path)
    assert all("was begun by 4 processes, found 2: resume it with as many" in str(end.error) for end in fewer)
    steps: list[int] = []

    def again(own: int) -> Any:
        return [*absorbing(place, part, progress=lambda p: steps.append(p.step))(own), steps[0]]

    found = said(together(4, again, tmp_path, variables=AGAIN))
    assert {each[0] for each in found} == {undisturbed}
    assert all(each[-1] >= 5 for each in found), "it went on where it was left"
    assert store.aliases["head"] == undisturbed
    # Killed after it was recorded, the next attempt finds it done.
    assert {each[0] for each in said(together(4, recorded_already(place, part), tmp_path, variables=AGAIN))} == {
        undisturbed
    }
    assert [entry.event for entry in store.log()] == ["absorb", "init"]


def recorded_already(place: Path, part: Path) -> Callable[[int], Any]:
    def work(_: int) -> Any:
        outcome = Store.open(place).absorb(part)
        return [outcome.belief, outcome.update is None]

    return work


def test_a_hung_process_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    store, part = small_store(tmp_path), part_file(tmp_path, 0)
    ends = disturbed(Path(store.address), part, lambda: time.sleep(6), 1, tmp_path, timeout=2.0)
    for number in (0, 2, 3):
        error, seconds = ends[number].error, ends[number].seconds
        assert error is not None
        assert error.startswith("WorkersError")
        assert 2 < seconds < 6, "before the hung one woke up"
    assert [entry.event for entry in store.log()] == ["init"]
