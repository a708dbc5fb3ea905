"""What this room's tests share: a dataset small enough to serve, cut short and damage, and pickles of two kinds."""

import gzip
import hashlib
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from postprior.data import datasets
from postprior.data.formats import Format, Splits
from postprior.data.published import Dataset, Download, OfficialFile


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def random_splits(num_train: int, num_test: int, *shape: int) -> Splits:
    draw = np.random.default_rng(0).integers
    images = [draw(0, 256, (num, *shape), np.uint8) for num in (num_train, num_test)]
    labels = [draw(0, 10, num, np.uint8) for num in (num_train, num_test)]
    return Splits(images[0], labels[0], images[1], labels[1])


@dataclass
class Server:
    """Serves `files` and notes the Range header of each request; the other fields make it misbehave."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges_asked: list[str | None] = field(default_factory=list)
    knows_ranges: bool = True
    cut_after: int | None = None
    address: str = ""


@dataclass(frozen=True)
class Tiny:
    """A dataset in the catalog, with its arrays and the bytes of its official files."""

    dataset: Dataset
    splits: Splits
    files: dict[str, bytes]

    def write_files(self, folder: Path, suffix: str = "") -> Path:
        folder.mkdir(exist_ok=True)
        for name, content in self.files.items():
            (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix == ".gz" else content)
        return folder


def enter(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: Format, splits: Splits, address: str, **more: object
) -> Tiny:
    files = kind.encode(splits)
    known = tuple(OfficialFile(file, len(content), md5(content)) for file, content in files.items())
    zipped = {file: gzip.compress(content, mtime=0) for file, content in files.items()}
    downloads = tuple(Download(f"{address}/{file}.gz", md5(content)) for file, content in zipped.items())
    dataset = Dataset(name, 10, kind, known, downloads, **more)  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(datasets.DATASETS, name, dataset)
    return Tiny(dataset, splits, files)


def python2_array(shape: tuple[int, ...], dtype: bytes, content: bytes) -> bytes:
    """The instructions with which Python 2's numpy pickled an array, protocol 2."""
    lengths = b"".join(b"M" + struct.pack("<H", length) for length in shape)
    kind = (
        b"cnumpy\ndtype\nU"
        + bytes([len(dtype)])
        + dtype
        + b"K\0K\1\x87R(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    head = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87R(K\1"
    return head + b"(" + lengths + b"t" + kind + b"\x89T" + struct.pack("<i", len(content)) + content + b"tb"


def python2_batch(records: bytes) -> bytes:
    """A batch of the binary version as the python version has it: labels and pixels in a pickled dict."""
    rows = np.frombuffer(records, np.uint8).reshape(-1, 3073)
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in rows[:, 0]) + b"e"
    pixels = python2_array((len(rows), 3072), b"u1", rows[:, 1:].tobytes())
    names = b"U\x09filenames](" + b"U\x05a.png" * len(rows) + b"e"
    return b"\x80\2}(U\x0bbatch_labelU\x15training batch 1 of 5U\6labels" + labels + b"U\4data" + pixels + names + b"u."


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)
