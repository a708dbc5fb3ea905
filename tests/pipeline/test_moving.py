"""Aliases move by verbs that say what is meant."""

from pathlib import Path

import pytest
from small_store import part, small_store

from postprior import Store
from postprior.errors import RacedError, StoreError, UnfinishedError
from postprior.pipeline import drafts


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two parts learned after the first belief."""
    found = small_store(tmp_path)
    for seed in range(2):
        found.absorb(part(seed), part=f"p{seed}")
    return found


def test_rollback_takes_head_and_champion_back(store: Store) -> None:
    ids = [store.archive.resolve(f"head~{back}") for back in range(3)]
    entry = store.rollback()
    assert entry.about == {"from": ids[0]}
    assert (store.aliases["head"], store.aliases["champion"]) == (ids[1], ids[1])
    store.rollback(ids[2][:8])
    assert store.aliases["head"] == ids[2]
    with pytest.raises(StoreError, match="before the first belief"):
        store.rollback()
    with pytest.raises(StoreError, match="is no ancestor of head"):
        store.rollback(ids[0])


def test_rollback_leaves_a_champion_that_is_behind(store: Store) -> None:
    champion = store.aliases["champion"]
    for seed in (5, 6):
        store.absorb(part(seed), part=f"p{seed}", promote=False)
    store.rollback()
    assert store.aliases["champion"] == champion


def test_promote_moves_head_only_forwards(store: Store) -> None:
    head, parent = store.aliases["head"], store.archive.resolve("head~1")
    store.promote(parent)
    assert (store.aliases["champion"], store.aliases["head"]) == (parent, head)
    ahead = store.absorb(part(7), part="p7", evaluate=part(8), gate="nll<=0").belief
    assert store.aliases["head"] == head
    store.promote()
    assert (store.aliases["champion"], store.aliases["head"]) == (ahead, ahead)
    with pytest.raises(StoreError, match="names no belief"):
        store.promote("nobody")


def test_own_aliases_come_and_go(store: Store) -> None:
    store.alias("release-1", "head~1")
    assert store.aliases["release-1"] == store.archive.resolve("head~1")
    assert store.show("release-1")["part"]["id"] == "p0"
    store.alias("release-1", None)
    assert "release-1" not in store.aliases
    with pytest.raises(StoreError, match="release-1 is no alias: there are candidate, champion, head"):
        store.alias("release-1", None)
    with pytest.raises(StoreError, match="head is moved by absorb, promote and rollback alone"):
        store.alias("head", "head~1")
    with pytest.raises(StoreError, match="alias"):
        store.alias("../evil", "head")


def test_whoever_comes_second_decides_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    state = store.archive.state()
    Store.open(store.address).rollback()
    monkeypatch.setattr(store.archive, "state", lambda: state)
    with pytest.raises(RacedError, match="head"):
        store.rollback("head")


def test_head_stays_while_an_absorption_waits_to_be_resumed(store: Store) -> None:
    drafts.write_intent(store.archive, intent := _intent(store))
    with pytest.raises(UnfinishedError, match=f"part {intent.part} was begun"):
        store.rollback()
    store.promote("head~1")
    store.alias("mine", "head")
    store.discard()
    store.rollback()


def _intent(store: Store) -> drafts.Intent:
    return drafts.Intent(
        token="t",
        data="x.npz",
        part="p9",
        fingerprint="0" * 64,
        onto=store.aliases["head"],
        alias="head",
        promote=True,
        judged=False,
        evaluate=None,
        gate=None,
        repeat=False,
        settings={},
    )


def test_the_log_is_of_everything_or_of_one_belief(store: Store) -> None:
    store.rollback()
    branch = store.absorb(part(9), part="p9").belief
    assert [entry.event for entry in store.log()] == ["absorb", "rollback", "absorb", "absorb", "init"]
    assert store.log("head")[0].belief == branch
    assert [entry.about.get("part") for entry in store.log("head")] == ["p9", "p0", None]
    assert [record["id"] for record in store.parts()] == ["p0", "p9"]
