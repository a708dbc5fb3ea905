"""Laws 4, 5 and 7 of `Archive` on every kind of place: many writers, readers, locks and work in progress."""

from contextlib import nullcontext
from itertools import chain

import pytest
from tiny_archives import RECIPE, Place, commit, grown, put_tiny, tiny_belief, together

from postprior.errors import BusyError, RacedError, StoreError
from postprior.networks.belief import digest
from postprior.store import Archive, State

# 4. All moves of an entry at once; of two writers one comes second


def test_an_entry_moves_all_its_aliases_at_once(place: Place) -> None:
    archive, ids = grown(place.address, 2)
    archive.append("promote", moves={"champion": ids[0], "candidate": ids[1], "head": None})
    entry = archive.append("rollback", moves={"champion": ids[1]}, about={"why": "drift", "nll": float("nan")})
    assert Archive.open(place.address).state() == State(4, {"champion": ids[1], "candidate": ids[1]}, entry.checksum)
    assert entry.about == {"why": "drift", "nll": None}
    assert [dict(entry.aliases) for entry in archive.entries()] == [
        {"head": ids[0]},
        {"head": ids[1]},
        {"champion": ids[0], "candidate": ids[1]},
        {"champion": ids[1], "candidate": ids[1]},
    ]


def test_whoever_comes_second_is_told_and_records_nothing(place: Place) -> None:
    first, ids = grown(place.address, 1)
    second = Archive.open(place.address)
    stale = second.state().aliases["head"]
    late = put_tiny(second, 7, stale)
    winner = commit(first, 1)
    before = place.files()
    for expect in ({"head": stale}, {"head": None}, {"head": winner, "champion": ids[0]}):
        with pytest.raises(RacedError, match="nothing was recorded, start again from where it points now"):
            second.append("absorb", belief=late, moves={"head": late}, expect=expect)
    assert place.files() == before
    second.append("absorb", belief=late, moves={"head": late}, expect={"head": winner, "champion": None})
    assert first.resolve("head") == late


def test_without_expectations_appends_come_one_after_another(place: Place) -> None:
    first, ids = grown(place.address, 1)
    second = Archive.open(place.address)
    for _ in range(2):
        first.append("mark", moves={"a": ids[0]})
        second.append("mark", moves={"b": ids[0]})
    assert [entry.sequence for entry in first.entries()] == [1, 2, 3, 4, 5]
    assert first.entries() == second.entries()
    assert first.state().aliases == {"head": ids[0], "a": ids[0], "b": ids[0]}


def test_of_many_at_once_exactly_one_moves_the_alias(place: Place) -> None:
    _, ids = grown(place.address, 1)

    def move(number: int) -> str:
        archive = Archive.open(place.address)
        id = put_tiny(archive, 10 + number, ids[0])
        archive.append("absorb", belief=id, moves={"head": id}, expect={"head": ids[0]})
        return id

    found = together(move, 4)
    winners = [id for id in found if isinstance(id, str)]
    assert [type(error) for error in found if not isinstance(error, str)] == [RacedError] * 3
    assert Archive.open(place.address).state().aliases == {"head": winners[0]}
    assert Archive.open(place.address).verify() == []


def test_no_update_is_lost_among_many(place: Place) -> None:
    Archive.create(place.address, RECIPE)

    def work(number: int) -> list[str]:
        archive, done = Archive.open(place.address), list[str]()
        while len(done) < 3:
            try:
                done.append(commit(archive, 10 * number + len(done)))
            except RacedError:
                continue
        return done

    done = together(work, 4)
    archive = Archive.open(place.address)
    assert sorted(entry.belief or "" for entry in archive.entries()) == sorted(chain(*done))
    assert archive.manifest(archive.resolve("head~11"))["parent"] is None
    assert archive.verify() == []


def test_many_may_put_the_same_belief_at_once(place: Place) -> None:
    Archive.create(place.address, RECIPE)
    found = together(lambda _: put_tiny(Archive.open(place.address)), 4)
    assert len(set(found)) == 1
    archive = Archive.open(place.address)
    archive.append("absorb", belief=found[0])
    assert archive.verify() == []


# 5. Readers see whole beliefs, take no lock and write nothing


def test_readers_neither_write_nor_wait(place: Place) -> None:
    archive, ids = grown(place.address, 2)
    archive.write_draft("work", b"half done")
    before = place.files()
    with archive.locked():
        reader = Archive.open(place.address)
        assert reader.state().sequence == len(reader.entries()) == 2
        assert reader.resolve("head~1") == reader.manifest(ids[1])["parent"] == ids[0]
        assert digest(reader.belief(ids[0])) == digest(tiny_belief(0))
        assert reader.draft("work") == b"half done"
        assert reader.verify() == []
    assert place.files() == before


@pytest.mark.parametrize("file", ["belief.safetensors", "manifest.json"])
@pytest.mark.parametrize("fault", ["removed", "cut short", "of another"])
def test_a_file_that_is_not_as_written_is_never_returned(place: Place, file: str, fault: str) -> None:
    archive, ids = grown(place.address, 2)
    name, other = f"beliefs/{ids[0]}/{file}", f"beliefs/{ids[1]}/{file}"
    if fault == "removed":
        place.remove(name)
    else:
        files = place.files()
        place.write(name, files[name][:-1] if fault == "cut short" else files[other])
    with pytest.raises(StoreError, match=name):
        archive.belief(ids[0])
    assert f"{archive.address}/{name}" in [problem.path for problem in archive.verify()]
    assert digest(archive.belief(ids[1])) == digest(tiny_belief(1))


def test_a_belief_without_its_manifest_is_written_anew(place: Place) -> None:
    archive = Archive.create(place.address, RECIPE)
    id = put_tiny(archive)
    whole = place.files()
    place.remove(f"beliefs/{id}/manifest.json")
    place.write(f"beliefs/{id}/belief.safetensors", b"half")
    place.write(f"beliefs/{id}/README.md", b"a card of yesterday")
    assert put_tiny(archive) == id
    archive.append("absorb", belief=id)
    assert archive.verify() == []
    assert place.files().keys() == whole.keys() | {"journal/00000001.json"}
    assert digest(archive.belief(id)) == digest(tiny_belief())


# 7. Locks, and work in progress


def test_one_at_a_time_where_the_place_has_locks(place: Place) -> None:
    archive, other = Archive.create(place.address, RECIPE), Archive.open(place.address)
    with archive.locked():
        busy = pytest.raises(BusyError, match=r"is in use by process \d+, which holds .*: try again later")
        with busy if place.locks else nullcontext(), other.locked():
            pass
    with other.locked():
        pass


def test_drafts_are_kept_replaced_and_dropped(place: Place) -> None:
    archive, _ = grown(place.address, 1)
    before = place.files()
    assert archive.draft("step") is None
    for data in (b"one", b"", bytes(range(256)) * 50):
        archive.write_draft("step", data)
        archive.write_draft("other", b"\n")
        assert (Archive.open(place.address).draft("step"), archive.draft("other")) == (data, b"\n")
    assert archive.verify() == []
    archive.drop_drafts()
    assert archive.draft("step") is None
    assert place.files() == before


def test_a_damaged_draft_is_an_error(place: Place) -> None:
    archive = Archive.create(place.address, RECIPE)
    archive.write_draft("step", b"content")
    place.write("draft/step", place.files()["draft/step"].replace(b"content", b"contest"))
    with pytest.raises(StoreError, match="draft/step is damaged: its checksum does not agree"):
        archive.draft("step")
    assert [problem.path for problem in archive.verify()] == [f"{archive.address}/draft/step"]
