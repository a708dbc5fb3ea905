"""Law 6 of `Archive` on every kind of place: names lead to beliefs and nowhere else; what reading all of it finds."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from tiny_archives import CARD, RECIPE, Place, grown, id_of, manifest_of, put_tiny, tiny_belief

from postprior.errors import StoreError
from postprior.store import Archive

BAD_NAMES = ("", ".", "..", "../head", "a/b", "/etc/passwd", ".hidden", "a\\b", "head\n", "ä", "x" * 65, "0" * 64)
BAD_IDS: tuple[Any, ...] = ("", "../../outside", "A" * 64, "0" * 63, "0" * 64 + "\n", 7)


# 6. No name leads out of the store


def test_names_that_lead_elsewhere_are_refused(place: Place) -> None:
    archive, ids = grown(place.address, 1)
    before = place.files()
    uses: list[Callable[[str], Any]] = [
        lambda name: archive.append(name),
        lambda name: archive.append("mark", moves={name: ids[0]}),
        lambda name: archive.append("mark", expect={name: ids[0]}),
        lambda name: archive.write_draft(name, b""),
        lambda name: archive.draft(name),
    ]
    for name in BAD_NAMES:
        for use in uses:
            with pytest.raises(StoreError, match="is no name: expected 1 to 64 of"):
                use(name)
        with pytest.raises(StoreError, match="names no belief"):
            archive.resolve(name)
    assert place.files() == before


def test_ids_that_are_none_are_refused(place: Place) -> None:
    archive, _ = grown(place.address, 1)
    before = place.files()
    uses: list[Callable[[Any], Any]] = [
        lambda id: archive.manifest(id),
        lambda id: archive.belief(id),
        lambda id: archive.append("absorb", belief=id),
        lambda id: put_tiny(archive, 1, parent=id),
        lambda id: archive.put(tiny_belief(1), manifest_of(parents=[id]), CARD),
    ]
    for id in BAD_IDS:
        for use in uses:
            with pytest.raises(StoreError, match="is no id of a belief: expected 64 hex digits"):
                use(id)
        with pytest.raises(StoreError, match="no entry acknowledges"):
            archive.append("promote", moves={"champion": id})
    assert place.files() == before


def test_text_that_is_none_is_recorded_all_the_same(place: Place) -> None:
    archive = Archive.create(place.address, RECIPE)
    name = "caf\udce9"  # how Python shows a file's name that is no UTF-8
    id = archive.put(tiny_belief(), manifest_of(files_read={name: name}), name)
    archive.append("absorb", belief=id, about={name: name})
    assert archive.entries()[0].about == {"caf\\udce9": "caf\\udce9"}
    assert archive.verify() == []


# Names of beliefs


def test_resolve(place: Place) -> None:
    archive, ids = grown(place.address, 4)
    archive.append("mark", moves={"v1.0": ids[1], ids[0][:6]: ids[3]})
    for ref, id in {
        "head": ids[3],
        "head~": ids[2],
        "head~0": ids[3],
        "head~3": ids[0],
        "v1.0~1": ids[0],
        ids[2]: ids[2],
        ids[2][:4]: ids[2],
        f"{ids[2][:10]}~2": ids[0],
        ids[0][:6]: ids[3],  # an alias comes first
    }.items():
        assert archive.resolve(ref) == id, ref
    for ref, message in {
        "head~4": r"head~4 is before the first belief: head has 3 before it, the first is ",
        "haed": r"haed names no belief in .*: the aliases are [0-9a-f]{6}, head, v1\.0",
        ids[2][:3]: "the beginning of an id has 4 digits or more",
        "head~x": "names no belief: expected an alias or an id",
        "head~1~1": "names no belief: expected an alias or an id",
    }.items():
        with pytest.raises(StoreError, match=message):
            archive.resolve(ref)


def test_the_beginning_of_two_ids_is_no_name(place: Place) -> None:
    archive = Archive.create(place.address, RECIPE)
    sample = archive.manifest(archive.put(tiny_belief(), manifest_of(part="0"), CARD))
    seen: dict[str, str] = {}
    for part in map(str, count()):
        id = id_of({**sample, "part": {"id": part}})
        if id[:4] in seen:
            break
        seen[id[:4]] = part
    both = [archive.put(tiny_belief(), manifest_of(part=p), CARD) for p in (seen[id[:4]], part)]
    for each in both:
        archive.append("absorb", belief=each)
    with pytest.raises(StoreError, match=f"{id[:4]} is the beginning of 2 ids, .* among them: give more of it"):
        archive.resolve(id[:4])
    assert [archive.resolve(each[:20]) for each in both] == both


# Reading everything


def test_verify_tells_how_far_it_is(place: Place) -> None:
    archive, _ = grown(place.address, 3)
    told: list[tuple[int, int]] = []
    assert archive.verify(lambda done, of: told.append((done, of))) == []
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_verify_finds_what_does_not_belong(place: Place) -> None:
    archive, ids = grown(place.address, 1)
    for name in ("journal/notes.txt", "beliefs/mine", f"beliefs/{ids[0]}/virus.py"):
        place.write(name, b"?")
    found = {problem.path.removeprefix(f"{archive.address}/"): problem.what for problem in archive.verify()}
    assert found == dict.fromkeys(
        ("journal/notes.txt", "beliefs/mine", f"beliefs/{ids[0]}/virus.py"),
        "is not a file of the store: move it away",
    )
