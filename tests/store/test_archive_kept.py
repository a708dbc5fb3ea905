"""Laws 1 to 3 of `Archive` on every kind of place: nothing changes, what is acknowledged, nothing is lost."""

import gc
import json

import pytest
import torch
from tiny_archives import CARD, RECIPE, Place, commit, grown, id_of, manifest_of, put_tiny, tiny_belief, together

from postprior.errors import StoreError
from postprior.networks.belief import digest
from postprior.store import Archive, State

# Making one


def test_an_archive_begins_empty_and_keeps_its_recipe(place: Place) -> None:
    made = Archive.create(place.address, RECIPE)
    opened = Archive.open(place.address)
    assert opened.recipe == made.recipe == RECIPE
    assert opened.state() == made.state() == State(0, {}, json.loads(place.files()["store.json"])["checksum"])
    assert opened.entries() == []
    assert opened.verify() == []


def test_create_refuses_a_place_that_holds_anything(place: Place) -> None:
    place.write("thesis.tex", b"years of work")
    with pytest.raises(StoreError, match=r"is not empty, it holds thesis\.tex: choose another place"):
        Archive.create(place.address, RECIPE)
    assert place.files() == {"thesis.tex": b"years of work"}


def test_create_refuses_a_place_that_holds_a_store(place: Place) -> None:
    grown(place.address, 1)
    before = place.files()
    with pytest.raises(StoreError, match="is not empty"):
        Archive.create(place.address, RECIPE)
    assert place.files() == before


def test_of_many_that_create_at_once_one_does(place: Place) -> None:
    found = together(lambda number: Archive.create(place.address, {"number": number}), 4)
    made = [archive for archive in found if isinstance(archive, Archive)]
    assert len(made) == 1
    assert all(isinstance(other, StoreError) for other in found if other is not made[0])
    assert Archive.open(place.address).recipe == made[0].recipe
    assert made[0].verify() == []


def test_create_goes_on_where_another_died_at_it(place: Place) -> None:
    Archive.create(place.address, RECIPE)
    place.remove("store.json")
    assert Archive.create(place.address, {"second": "try"}).verify() == []
    assert Archive.open(place.address).recipe == {"second": "try"}


def test_open_refuses_a_place_without_a_store(place: Place) -> None:
    with pytest.raises(StoreError, match=r"holds no store: .*store\.json is missing"):
        Archive.open(place.address)


# 1. What is written does not change


def test_what_was_put_comes_back(place: Place) -> None:
    archive, ids = grown(place.address, 2)
    read = Archive.open(place.address)
    manifest = read.manifest(ids[1])
    assert digest(read.belief(ids[1])) == digest(tiny_belief(1))
    assert digest(read.belief(ids[0])) != digest(tiny_belief(1))
    assert (manifest["parent"], manifest["part"], manifest["id"]) == (ids[0], {"id": "part 1"}, ids[1])
    assert place.files()[f"beliefs/{ids[1]}/README.md"].decode() == CARD
    assert archive.entries() == read.entries()


def test_an_id_is_the_hash_of_what_lasts(place: Place) -> None:
    archive = Archive.create(place.address, RECIPE)
    put = archive.put
    id = put(tiny_belief(), manifest_of(part="a", seconds=3.0), CARD)
    assert id_of(archive.manifest(id)) == id
    assert put(tiny_belief(), manifest_of(part="a", seconds=4.0, time="now", versions={}), "another card") == id
    others = [
        put(tiny_belief(1), manifest_of(part="a"), CARD),
        put(tiny_belief(), manifest_of(part="b"), CARD),
        put(tiny_belief(), manifest_of(part="a", parent=id), CARD),
        put(tiny_belief(), manifest_of(part="a", metrics={"nll": 0.1}), CARD),
    ]
    assert len({id, *others}) == 5


def test_putting_it_again_changes_nothing(place: Place) -> None:
    archive, ids = grown(place.address, 1)
    before = place.files()
    assert put_tiny(archive) == put_tiny(Archive.open(place.address)) == ids[0]
    assert place.files() == before


def test_what_stands_is_never_written_again(place: Place) -> None:
    archive, _ = grown(place.address, 2)
    before = place.files()
    commit(archive, 2)
    after = place.files()
    assert before.keys() < after.keys()
    assert [name for name, data in before.items() if after[name] != data] == ["journal/last.json"]


def test_writing_into_what_was_read_changes_nothing(place: Place) -> None:
    archive, ids = grown(place.address, 1)
    before = place.files()
    belief = archive.belief(ids[0])
    with torch.no_grad():
        for family in belief.weights.values():
            for tensor in family.state_dict().values():
                tensor.zero_()
    assert place.files() == before
    assert digest(archive.belief(ids[0])) == digest(tiny_belief())


# 2. Acknowledged means: named by an entry


def test_what_was_only_put_is_not_acknowledged(place: Place) -> None:
    archive = Archive.create(place.address, RECIPE)
    id = put_tiny(archive)
    assert archive.state().sequence == 0
    for ref in (id, id[:8]):
        with pytest.raises(StoreError, match="names no belief"):
            archive.resolve(ref)
    with pytest.raises(StoreError, match=f"no entry acknowledges the belief {id}: append it first"):
        archive.append("promote", moves={"champion": id})
    child = put_tiny(archive, 1, parent=id)
    with pytest.raises(StoreError, match=f"no entry acknowledges the belief {id}: append it first"):
        archive.append("absorb", belief=child)
    assert archive.entries() == []
    archive.append("absorb", belief=id)
    archive.append("absorb", belief=child)
    assert archive.resolve(id[:8]) == id


def test_a_belief_that_was_never_put_is_not_acknowledged(place: Place) -> None:
    archive, _ = grown(place.address, 1)
    before = place.files()
    with pytest.raises(StoreError, match=rf"beliefs/{'0' * 64}/manifest\.json is missing"):
        archive.append("absorb", belief="0" * 64)
    with pytest.raises(StoreError, match=rf"beliefs/{'0' * 64}/manifest\.json is missing"):
        put_tiny(archive, 1, parent="0" * 64)
    assert place.files() == before


def test_sweep_removes_what_nobody_acknowledged_and_nothing_else(place: Place) -> None:
    archive, ids = grown(place.address, 2)
    before = place.files()
    put_tiny(Archive.open(place.address), 5)
    put_tiny(Archive.open(place.address), 6)
    # Whoever put them is gone.
    gc.collect()
    assert place.files().keys() > before.keys()
    assert archive.verify() == []
    assert archive.sweep(idle=0) == 2
    assert place.files() == before
    assert archive.sweep(idle=0) == 0
    id = commit(archive, 5)
    assert [entry.belief for entry in archive.entries()] == [*ids, id]
    assert archive.verify() == []


def test_sweep_leaves_alone_what_is_about_to_be_acknowledged(place: Place) -> None:
    archive, _ = grown(place.address, 1)
    id = put_tiny(archive, 5)
    assert Archive.open(place.address).sweep() == 0
    archive.append("absorb", belief=id, moves={"head": id})
    assert digest(Archive.open(place.address).belief(id)) == digest(tiny_belief(5))


# 3. A journal cut short is an error


@pytest.mark.parametrize("lost", ["journal/00000003.json", "journal/last.json"])
def test_a_journal_without_its_end_is_an_error(place: Place, lost: str) -> None:
    archive, _ = grown(place.address, 3)
    place.remove(lost)
    before = place.files()
    for read in (
        Archive.open(place.address).state,
        Archive.open(place.address).entries,
        archive.sweep,
        lambda: commit(archive),
    ):
        with pytest.raises(StoreError, match=f"{lost} is missing"):
            read()
    assert [problem.path for problem in archive.verify()] == [f"{archive.address}/{lost}"]
    assert place.files() == before


@pytest.mark.parametrize("lost", [1, 2])
def test_a_journal_with_a_gap_is_an_error(place: Place, lost: int) -> None:
    archive, _ = grown(place.address, 3)
    name = f"journal/{lost:08d}.json"
    place.remove(name)
    with pytest.raises(StoreError, match=f"{name} is missing: the journal was truncated; restore it from a copy"):
        Archive.open(place.address).entries()
    assert f"{archive.address}/{name}" in [problem.path for problem in Archive.open(place.address).verify()]


def test_a_lost_journal_is_no_empty_store(place: Place) -> None:
    archive, _ = grown(place.address, 2)
    place.remove(*(name for name in place.files() if name.startswith("journal/")))
    before = place.files()
    for use in (archive.state, archive.entries, lambda: archive.sweep(idle=0), lambda: commit(archive)):
        with pytest.raises(StoreError, match=r"journal/last\.json is missing: the journal may be cut short"):
            use()
    assert place.files() == before


def test_an_old_copy_of_the_hint_is_as_good(place: Place) -> None:
    archive = Archive.create(place.address, RECIPE)
    old = place.files()["journal/last.json"]
    ids = [commit(archive, seed) for seed in range(3)]
    place.write("journal/last.json", old)
    assert Archive.open(place.address).state().aliases == {"head": ids[2]}
    assert Archive.open(place.address).verify() == []
