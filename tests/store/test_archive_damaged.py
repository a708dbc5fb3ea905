"""Damage of every kind: an error that names the file, nothing executed or lost besides; every flipped bit is found."""

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tiny_archives import Place, commit, grown, id_of, manifest_of, put_tiny, tiny_belief

from postprior.errors import StoreError
from postprior.networks.belief import digest
from postprior.store import Archive
from postprior.store.sealed import digest as sha256
from postprior.store.sealed import seal
from postprior.store.tensors import read_tensors

Damage = Callable[[bytes], bytes]
Example = tuple[Path, list[str]]

NUM_FLIPS = 200


def sealed_with(**changes: Any) -> Damage:
    """A file with a right checksum and a wrong content, as only somebody who means to makes it."""
    return lambda data: seal({**json.loads(data), **changes})


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def one_letter_changed(data: bytes) -> bytes:
    at = data.index(b'": "') + 5
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def nothing(_: bytes) -> bytes:
    return b""


def noise(_: bytes) -> bytes:
    return bytes(range(255, 0, -1))


def a_list(_: bytes) -> bytes:
    return b"[]\n"


def bottomless(_: bytes) -> bytes:
    return b"[" * 200_000


def a_number_too_long(_: bytes) -> bytes:
    return b'{"format": ' + b"9" * 5000 + b"}\n"


def indented_otherwise(data: bytes) -> bytes:
    return json.dumps(json.loads(data), indent=4).encode()


EVERY_JSON = ("store.json", "journal/00000002.json", "journal/last.json", "beliefs/{1}/manifest.json")
TORN = (half, one_letter_changed, nothing, noise, a_list, bottomless, a_number_too_long, indented_otherwise)
FORGED: tuple[tuple[str, Damage, str], ...] = (
    *((name, sealed_with(format=3), "has format 3, this version reads up to") for name in EVERY_JSON),
    *((name, sealed_with(format="1"), "has format '1', this version reads up to") for name in EVERY_JSON),
    *((name, sealed_with(format=2), "has format 2, this version reads up to 1") for name in EVERY_JSON[:-1]),
    ("beliefs/{1}/manifest.json", sealed_with(format=2), "is not that of the belief the folder is named after"),
    ("store.json", sealed_with(recipe=None), "holds no recipe"),
    ("journal/last.json", sealed_with(sequence=-1), "'sequence' is -1"),
    ("journal/last.json", sealed_with(sequence="../1"), "'sequence' is '../1'"),
    ("journal/00000002.json", sealed_with(sequence=1), "it is entry 1"),
    ("journal/00000002.json", sealed_with(previous="0" * 64), "it was written after another journal/00000001.json"),
    ("journal/00000002.json", sealed_with(aliases={"../head": "0" * 64}), "'../head' is no name"),
    ("journal/00000002.json", sealed_with(aliases={"head": "../../x"}), "'../../x' is no id of a belief"),
    ("journal/00000002.json", sealed_with(aliases=[]), "'aliases' is [], expected dict"),
    ("journal/00000002.json", sealed_with(belief="../../x"), "'../../x' is no id of a belief"),
    ("journal/00000002.json", sealed_with(about="x"), "'about' is 'x', expected dict"),
    ("beliefs/{1}/manifest.json", sealed_with(parent="../../../x"), "'../../../x' is no id of a belief"),
    ("beliefs/{1}/manifest.json", sealed_with(parents=["/etc"]), "'/etc' is no id of a belief"),
    ("beliefs/{1}/manifest.json", sealed_with(parents="x"), "'parents' is 'x', expected a list of ids"),
    ("beliefs/{1}/manifest.json", sealed_with(parent=None), "its content is not that of the belief"),
    ("beliefs/{1}/manifest.json", sealed_with(id="0" * 64), "its content is not that of the belief"),
    ("beliefs/{1}/manifest.json", sealed_with(part={"id": "a\x1b[2J"}), "the part's id is 'a\\x1b[2J'"),
    ("beliefs/{1}/manifest.json", sealed_with(files={"../x": "0" * 64}), "expected the checksums of"),
    ("beliefs/{1}/manifest.json", sealed_with(files=None), "expected the checksums of"),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """An archive that is copied before anything is done to it, and its ids."""
    root = tmp_path_factory.mktemp("example") / "archive"
    return root, grown(root, 3)[1]


def read_everything(root: Path) -> None:
    """Whatever an error keeps from being read, raises it."""
    archive = Archive.open(root)
    archive.state()
    for entry in archive.entries():
        if entry.belief is not None:
            archive.belief(entry.belief)


def assert_is_named_and_costs_nothing_more(root: Path, name: str, change: Damage, message: str) -> None:
    place, whole = Place(str(root)), Place(str(root)).files()
    already_open = Archive.open(root)
    damaged = {**whole, name: change(whole[name])}
    (root / name).write_bytes(damaged[name])
    with pytest.raises(StoreError) as caught:
        read_everything(root)
    assert str(caught.value).startswith(f"{root / name}")
    assert message in str(caught.value)
    assert f"{root / name}" in [problem.path for problem in already_open.verify()]
    with suppress(StoreError):
        already_open.sweep()
    assert place.files() == damaged
    (root / name).write_bytes(whole[name])
    assert Archive.open(root).verify() == []


@pytest.mark.parametrize("change", TORN, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", EVERY_JSON)
def test_a_torn_file_is_named(example: Example, root: Path, name: str, change: Damage) -> None:
    shutil.copytree(example[0], root)
    assert_is_named_and_costs_nothing_more(root, name.format(*example[1]), change, "")


@pytest.mark.parametrize(("name", "change", "message"), FORGED, ids=range(len(FORGED)))
def test_a_forged_file_is_named(example: Example, root: Path, name: str, change: Damage, message: str) -> None:
    shutil.copytree(example[0], root)
    assert_is_named_and_costs_nothing_more(root, name.format(*example[1]), change, message)


def test_a_hint_at_an_entry_that_is_not_there_is_a_journal_cut_short(root: Path) -> None:
    archive, _ = grown(root, 2)
    (root / "journal/last.json").write_bytes(seal({"sequence": 3}))
    with pytest.raises(StoreError, match=r"00000003\.json is missing: the journal was truncated"):
        archive.state()
    assert [problem.path for problem in archive.verify()] == [f"{root}/journal/00000003.json"]


def test_a_damaged_card_is_found_and_the_belief_still_there(root: Path) -> None:
    archive, ids = grown(root, 1)
    (root / "beliefs" / ids[0] / "README.md").write_bytes(b"\xff")
    assert [problem.path for problem in archive.verify()] == [f"{root}/beliefs/{ids[0]}/README.md"]
    assert digest(archive.belief(ids[0])) == digest(tiny_belief(0))


def test_entries_that_speak_of_what_no_entry_acknowledges_are_found(root: Path) -> None:
    archive, ids = grown(root, 2)
    stranger = put_tiny(archive, 9, ids[1])
    name = root / "journal/00000002.json"
    name.write_bytes(sealed_with(aliases={"head": stranger})(name.read_bytes()))
    problems = archive.verify()
    assert [problem.path for problem in problems] == [str(name)]
    assert f"head points to {stranger}, which no entry up to this one acknowledges" in problems[0].what


class Touches:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (str(self._path),)


def test_a_pickle_by_another_name_is_not_executed(root: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    data = pickle.dumps(Touches(mark))
    pickle.loads(data)
    mark.unlink()

    archive, ids = grown(root, 1)
    manifest = archive.manifest(ids[0])
    manifest["files"] = {**manifest["files"], "belief.safetensors": sha256(data)}
    manifest["id"] = id_of(manifest)
    folder = root / "beliefs" / manifest["id"]
    (root / "beliefs" / ids[0]).rename(folder)
    (folder / "belief.safetensors").write_bytes(data)
    (folder / "manifest.json").write_bytes(seal(manifest))
    assert archive.manifest(manifest["id"])["part"] == {"id": "part 0"}
    with pytest.raises(StoreError, match=rf"{folder}/belief\.safetensors is damaged or not one of ours"):
        archive.belief(manifest["id"])
    with pytest.raises(StoreError, match=r"is damaged or not one of ours"):
        read_tensors(folder / "belief.safetensors")
    assert not mark.exists()


def test_every_flipped_bit_is_found(root: Path) -> None:
    archive, ids = grown(root, 4)
    archive.append("promote", moves={"champion": ids[2], "head": None}, about={"why": "Prüfung bestanden"})
    archive.write_draft("intent", b'{"part": "part 4"}')
    archive.write_draft("checkpoint", bytes(range(256)))
    draw = random.Random(0)
    names = sorted(Place(str(root)).files())
    assert len(names) == 1 + 6 + 4 * 3 + 2
    missed = list[str]()
    for number in range(NUM_FLIPS):
        name = names[number % len(names)]
        whole = (root / name).read_bytes()
        bit = draw.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (root / name).write_bytes(flipped)
        if str(root / name) not in [problem.path for problem in archive.verify()]:
            missed.append(f"bit {bit} of {name}, with an archive that was open")
        if name == "store.json":
            with pytest.raises(StoreError, match=rf"^{root / name} "):
                Archive.open(root)
        elif str(root / name) not in [problem.path for problem in Archive.open(root).verify()]:
            missed.append(f"bit {bit} of {name}")
        (root / name).write_bytes(whole)
    assert missed == []
    assert archive.verify() == []


def test_putting_a_belief_again_does_not_hide_its_damage(root: Path) -> None:
    archive, ids = grown(root, 1)
    (root / "beliefs" / ids[0] / "manifest.json").write_bytes(b"{}")
    with pytest.raises(StoreError, match=rf"beliefs/{ids[0]}/manifest\.json is damaged"):
        archive.put(tiny_belief(0), manifest_of(part="part 0"), "card")


def test_what_was_put_of_a_damaged_parent_is_refused(root: Path) -> None:
    archive, ids = grown(root, 1)
    before = Place(str(root)).files()
    (root / "beliefs" / ids[0] / "manifest.json").write_bytes(b"{}")
    with pytest.raises(StoreError, match=rf"beliefs/{ids[0]}/manifest\.json is damaged"):
        commit(archive, 1)
    assert Place(str(root)).files().keys() == before.keys()
