"""A store's part learned in shares: what is recorded is as many files, and any number of processes goes on with it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.small_store import arrays, content, part_file, small_store
from pipeline.test_several import absorbing, at_step, die
from postprior import Store
from postprior.errors import StoppedError
from postprior.networks.belief import digest
from postprior.store import beliefs
from processes import said, together


def files_of(place: Path, id: str) -> list[str]:
    return sorted(path.name for path in (place / "beliefs" / id).iterdir())


def test_nights_of_different_numbers_of_processes(tmp_path: Path) -> None:
    store = small_store(tmp_path, epochs=15, temperature=0.1, learning_rate=0.03)
    place = Path(store.address)
    found = said(together(2, absorbing(place, part_file(tmp_path, 0), shard=True), tmp_path))
    assert found[0] == found[1]
    id, name, promoted, before, steps = found[0]
    assert (name, promoted, steps, store.aliases["champion"]) == ("part-0", True, 45, id)
    assert before["num_examples"] == 60
    assert before["nll"] > 0
    assert files_of(place, id) == sorted(
        ["README.md", *(beliefs.share_name(i, 2) for i in range(2)), beliefs.INDEX, "manifest.json"]
    )
    store.forget("part-0")
    assert store.belief().num_examples == 0
    store.rollback(id)
    # One process goes on with it as with any belief, in one file again; then four, sharded.
    alone = store.absorb(part_file(tmp_path, 1))
    assert files_of(place, alone.belief) == ["README.md", beliefs.TENSORS, "manifest.json"]
    found = said(together(4, absorbing(place, part_file(tmp_path, 2), shard=True), tmp_path))
    assert len(list((place / "beliefs" / found[0][0]).glob("belief-*-of-00004.safetensors"))) == 4
    x, y = arrays(9, 200)
    assert store.evaluate((x, y))["accuracy"] > 0.85
    assert [each["id"] for each in store.parts()] == ["part-0", "part-1", "part-2"]
    assert store.belief().num_examples == 180
    assert not store.verify()
    # The other verbs take such beliefs as any others.
    assert store.export(tmp_path / "model.pt2", num_samples=2).stat().st_size
    store.rollback(id)
    assert digest(store.belief()) == digest(store.belief(id))
    assert store.diff("head", "head~1")
    assert store.report(tmp_path / "report.html").stat().st_size


def test_what_needs_a_whole_belief_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    store, part = small_store(tmp_path, family="channelwise", point=["*.bias"]), part_file(tmp_path, 0)
    place, before = Path(store.address), content(Path(store.address))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"evaluate": part, "gate": "nll<100"}, "SettingError: held-out data are judged by whole beliefs"),
        ({}, "is not of factorised Gaussians alone, and only these can be cut"),
    ]
    for options, expected in cases:
        for end in together(2, absorbing(place, part, shard=True, **options), tmp_path):
            assert expected in str(end.error)
        assert content(place) == before
    plain = small_store(tmp_path / "other")
    for end in together(2, absorbing(Path(plain.address), part, shard=True, holdout=0.1), tmp_path):
        assert "SettingError: holdout=0.1 needs a whole belief" in str(end.error)
    assert [entry.event for entry in plain.log()] == ["init"]
    assert plain.absorb(part).promoted, "nothing stands in the way"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The belief that three processes end at."""
    folder = tmp_path_factory.mktemp("undisturbed")
    store = small_store(folder)
    return said(together(3, absorbing(Path(store.address), part_file(folder, 0), shard=True), folder))[0][0]


def test_one_is_killed_and_resuming_begins_the_part_anew(undisturbed: str, tmp_path: Path) -> None:
    store, part = small_store(tmp_path), part_file(tmp_path, 0)
    place, dying = Path(store.address), at_step(5, 1, die)

    def work(own: int) -> Any:
        return absorbing(place, part, shard=True, every_seconds=0.0, progress=dying(own))(own)

    for number, end in enumerate(together(3, work, tmp_path, timeout=20.0)):
        assert number == 1 or str(end.error).startswith("WorkersError")
    assert [entry.event for entry in store.log()] == ["init"]
    assert not store.verify()
    steps: list[int] = []

    def resumed(_: int) -> Any:
        outcome = Store.open(place).resume(progress=lambda progress: steps.append(progress.step))
        return [outcome.belief, steps[0]]

    assert said(together(3, resumed, tmp_path)) == [[undisturbed, 1]] * 3
    assert [entry.event for entry in store.log()] == ["absorb", "init"]


def test_one_asks_to_stop_and_all_stop(tmp_path: Path) -> None:
    store, part = small_store(tmp_path), part_file(tmp_path, 0)

    def work(rank: int) -> Any:
        asked: list[int] = []

        def stop() -> bool:
            asked.append(1)
            return rank == 1 and len(asked) == 4

        with pytest.raises(StoppedError, match="at step 4 of 9; a belief that is sharded leaves no checkpoint"):
            Store.open(Path(store.address)).absorb(part, shard=True, stop=stop)

    said(together(2, work, tmp_path))
    # As many processes as one likes, since there is nothing that was cut.
    assert said(together(4, lambda _: Store.open(Path(store.address)).resume().promoted, tmp_path)) == [True] * 4


def test_alone_it_is_one_share(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    outcome = store.absorb(part_file(tmp_path, 0), shard=True)
    assert beliefs.share_name(0, 1) in files_of(Path(store.address), outcome.belief)
    assert outcome.update is not None
    assert math.isfinite(outcome.update.kl)
    assert all(torch.isfinite(each).all() for each in store.belief().mean().values())
