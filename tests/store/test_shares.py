"""A belief in several files: read back on any number of processes, checked, and never whole in one of them."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_archives import CARD, RECIPE, commit, manifest_of, tiny_belief

from postprior import distributed
from postprior.errors import BeliefError, StoreError
from postprior.families import Factorized
from postprior.networks.belief import Belief, digest
from postprior.networks.sharded import ShardedBelief
from postprior.store import Archive, beliefs, shares
from postprior.store.files import digest_of
from postprior.store.local import LocalBackend
from processes import said, together

SHAPES = {"0.weight": (5, 3), "0.bias": (5,), "scale": ()}
"""On four processes one holds nothing of the bias's last, and three nothing of the scale."""


def belief(seed: int = 0, dtype: torch.dtype = torch.float32) -> Belief:
    g = torch.Generator().manual_seed(seed)
    weights = {
        name: Factorized(*(torch.randn(shape, generator=g).to(dtype) for _ in range(2)))
        for name, shape in SHAPES.items()
    }
    return Belief(weights, frozenset(), {"1.running_mean": torch.randn(3, generator=g)}, {"1": 7}, 2, 20)


def put_sharded(place: Path, seed: int = 0, act: Callable[[int], None] | None = None) -> Callable[[int], str]:
    """What each process does."""

    def work(rank: int) -> str:
        archive = Archive.open(place)
        if act:
            act(rank)
        share = ShardedBelief.of(belief(seed))
        id = archive.put(share, manifest_of(None, "a part") if rank == 0 else {}, CARD if rank == 0 else "")
        if rank == 0:
            archive.append("absorb", belief=id, moves={"head": id})
        return id

    return work


@pytest.fixture
def place(tmp_path: Path) -> Path:
    Archive.create(tmp_path / "archive", RECIPE)
    return tmp_path / "archive"


def folder_of(place: Path, id: str) -> Path:
    return place / "beliefs" / id


@pytest.mark.parametrize("count", [2, 4])
def test_it_is_read_back_on_any_number_of_processes(count: int, place: Path, tmp_path: Path) -> None:
    (id,) = set(said(together(count, put_sharded(place), tmp_path)))
    archive = Archive.open(place)
    assert sorted(archive.manifest(id)["files"]) == sorted(path.name for path in folder_of(place, id).iterdir())[:-1]
    assert len(list(folder_of(place, id).glob("belief-*-of-*.safetensors"))) == count
    assert digest(archive.belief(id)) == digest(belief())
    assert not archive.verify()

    def read(_: int) -> Any:
        share = Archive.open(place).share(id)
        assert digest(share.whole()) == digest(belief())
        return len(share.mu)

    total = sum(torch.Size(shape).numel() for shape in SHAPES.values())
    for readers in (1, 2, 3, 4):
        assert max(said(together(readers, read, tmp_path))) < total / readers + len(SHAPES)
    # The same shares have the same id, and writing them again changes nothing.
    before = {path: path.stat().st_mtime_ns for path in folder_of(place, id).iterdir()}
    assert set(said(together(count, put_sharded(place), tmp_path))) == {id}
    assert {path: path.stat().st_mtime_ns for path in folder_of(place, id).iterdir()} == before


def test_the_index_is_the_usual_one(place: Path, tmp_path: Path) -> None:
    (id,) = set(said(together(2, put_sharded(place), tmp_path)))
    index = json.loads((folder_of(place, id) / beliefs.INDEX).read_text())
    assert index["weight_map"] == {"buffers/1.running_mean": "belief-00001-of-00002.safetensors"}
    assert index["metadata"]["total_size"] == 4 * (2 * 21 + 3)
    assert index["pieces"]["weights/0.weight/log_sd"] == {
        "dtype": "F32",
        "shape": [5, 3],
        "files": {"belief-00001-of-00002.safetensors": [0, 8], "belief-00002-of-00002.safetensors": [8, 15]},
    }
    assert index["pieces"]["weights/scale/mu"]["files"] == {"belief-00001-of-00002.safetensors": [0, 1]}


def test_a_process_opens_only_the_files_it_needs(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (id,) = set(said(together(4, put_sharded(place), tmp_path)))
    opened: list[str] = []

    def noted(path: Path) -> str:
        opened.append(path.name)
        return digest_of(path)

    monkeypatch.setattr(shares, "digest_of", noted)

    def read(_: int) -> Any:
        Archive.open(place).share(id)
        return opened

    def file(number: int) -> str:
        return f"belief-0000{number}-of-00004.safetensors"

    # The last one holds no number of the bias, as 2 + 2 + 1 are enough; buffers are in the first file.
    assert said(together(4, read, tmp_path)) == [[file(1)], [file(2), file(1)], [file(3), file(1)], [file(4), file(1)]]
    # Of the bias two processes have 3 + 2, so that the second one needs a number of the second file.
    found = [sorted(each) for each in said(together(2, read, tmp_path))]
    assert found == [[file(1), file(2)], [file(1), file(2), file(3), file(4)]]


def test_an_old_belief_in_one_file_is_read_in_shares(place: Path, tmp_path: Path) -> None:
    archive = Archive.open(place)
    id = archive.put(belief(3, torch.float64), manifest_of(None, "a part"), CARD)

    def read(_: int) -> Any:
        return digest(Archive.open(place).share(id).whole()) == digest(belief(3, torch.float64))

    assert all(said(together(3, read, tmp_path)))
    assert archive.manifest(id)["format"] == 1, "what older code can read stays as it was"
    assert list(archive.manifest(id)["files"]) == ["README.md", "belief.safetensors"]
    other = commit(archive)
    with pytest.raises(BeliefError, match="is not of factorised Gaussians alone"):
        archive.share(other)
    with pytest.raises(BeliefError, match=r"bias is believed in as Point.*family='factorized'"):
        ShardedBelief.of(tiny_belief())


def test_a_flipped_bit_in_any_file_is_found(place: Path, tmp_path: Path) -> None:
    (id,) = set(said(together(3, put_sharded(place), tmp_path)))
    archive = Archive.open(place)
    for path in sorted(folder_of(place, id).iterdir()):
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
            assert [problem.path for problem in archive.verify()] == [str(path)]
        if path.name != "README.md":
            with pytest.raises(StoreError, match=f"{path.name}.*(checksum|damaged|JSON)"):
                archive.belief(id)
            with pytest.raises(StoreError, match=f"{path.name}.*(checksum|damaged|JSON)"):
                archive.share(id)
        path.unlink()
        assert str(path) in [problem.path for problem in archive.verify()]
        path.write_bytes(whole)
    assert not archive.verify()
    (folder_of(place, id) / "belief-00004-of-00003.safetensors").write_bytes(b"")
    assert [problem.what for problem in archive.verify()] == ["is not a file of the store: move it away"]


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("moment", ["before its file", "after its file"])
def test_one_is_killed_and_nothing_is_there(
    rank: int, moment: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all = LocalBackend.put_all

    def dying(self: LocalBackend, folder: str, files: Any) -> Any:
        is_share = any(beliefs.SHARE.fullmatch(name) for name in files)
        if is_share and distributed.rank() == rank and moment == "before its file":
            os.kill(os.getpid(), signal.SIGKILL)
        found = put_all(self, folder, files)
        if is_share and distributed.rank() == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "put_all", dying)
        for number, end in enumerate(together(3, put_sharded(place), tmp_path, timeout=20)):
            if number == rank:
                assert end.status == -signal.SIGKILL
            else:
                assert str(end.error).startswith("WorkersError")
    archive = Archive.open(place)
    assert archive.entries() == []
    assert not archive.verify()
    # The next attempt finds what was left, and ends as if nothing had happened; or it is swept away.
    assert archive.sweep() == 1
    assert list((place / "beliefs").iterdir()) == []
    (id,) = set(said(together(3, put_sharded(place), tmp_path)))
    assert digest(archive.belief(id)) == digest(belief())


def test_what_a_dead_process_left_is_mended(place: Path, tmp_path: Path) -> None:
    (id,) = set(said(together(2, put_sharded(place), tmp_path)))
    folder = folder_of(place, id)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / beliefs.MANIFEST).unlink()
    for name in (beliefs.INDEX, "belief-00002-of-00002.safetensors"):
        (folder / name).write_bytes(b"half")
    assert set(said(together(2, put_sharded(place), tmp_path))) == {id}
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {n: d for n, d in after.items() if n != beliefs.MANIFEST} == {
        n: d for n, d in whole.items() if n != beliefs.MANIFEST
    }
    assert not Archive.open(place).verify()


def test_what_one_process_cannot_write_all_refuse(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    def act(rank: int) -> None:
        if rank == 1:
            monkeypatch.setattr(shares, "dump_tensors", full)

    ends = together(3, put_sharded(place, act=act), tmp_path)
    for end in ends:
        assert "belief-00002-of-00003.safetensors cannot be written: No space left on device" in str(end.error)
    assert Archive.open(place).entries() == []
    assert list(place.glob(".tmp-*")) == []
