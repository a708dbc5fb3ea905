"""A store wherever fsspec reaches, and which address leads where."""

import os
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from postprior.errors import MissingExtraError, StoreError
from postprior.store.backends import Backend
from postprior.store.local import LocalBackend

CONDITIONAL = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
"""The filesystems whose ``pipe_file(mode="create")`` the server itself decides, in one step."""

_one_put_at_a_time = threading.Lock()


@final
class RemoteBackend(Backend):
    """Whatever fsspec can reach. What holds depends on what stands behind it.

    Object stores (CONDITIONAL) write a file in one request, whole or not at all, and put one only if there is none.
    Elsewhere it is looked for and then written, which is one step within this process (so on ``memory://``), but not
    between processes: there, let one process write at a time. No such place has locks that die with their holder, so
    ``locked`` lets everyone in and what is left over shows by its age alone.
    """

    def __init__(self, address: str, filesystem: Any, root: str) -> None:
        self.address, self._files, self._root = address.rstrip("/"), filesystem, root.rstrip("/")
        protocol = filesystem.protocol
        self._conditional = not CONDITIONAL.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)

    def read(self, name: str) -> bytes | None:
        with self._naming(name, "read"):
            try:
                return self._files.cat_file(self._path(name))
            except (FileNotFoundError, IsADirectoryError):
                return None

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        with self._naming("", "read"):
            paths = [self._path(name) for name in names]
            # One path would come back alone, and none not at all.
            found = self._files.cat(paths, on_error="return") if len(paths) > 1 else {}
        whole = (found.get(path) for path in paths)
        return [data if isinstance(data, bytes) else self.read(name) for name, data in zip(names, whole, strict=True)]

    def put_all(self, folder: str, files: Mapping[str, bytes | Path]) -> dict[str, bool]:
        return {name: self._put(f"{folder}/{name}".lstrip("/"), data) for name, data in files.items()}

    def _put(self, name: str, data: bytes | Path) -> bool:
        whole = data if isinstance(data, bytes) else data.read_bytes()
        try:
            if self._created(self._path(name), whole):
                return True
        except Exception as error:
            if self.read(name) != whole:
                raise self._failed(name, "written", error) from error
        # An answer to a request that was sent again may speak of its own first try.
        return self.read(name) == whole

    def _created(self, path: str, data: bytes) -> bool:
        if self._conditional:
            try:
                self._files.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True
        with _one_put_at_a_time:
            if self._files.exists(path):
                return False
            self._files.pipe_file(path, data)
            return True

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        del durable  # in one request it is, or it fails
        with self._naming(name):
            self._files.pipe_file(self._path(name), data)

    def remove(self, name: str) -> None:
        with self._naming(name, "removed"):
            if self._files.isfile(self._path(name)):
                self._files.rm_file(self._path(name))

    def children(self, folder: str) -> list[str]:
        with self._naming(folder, "listed"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    @contextmanager
    def staged(self) -> Generator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / "file"

    @contextmanager
    def fetched(self, name: str) -> Generator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            with self._naming(name, "read"):
                self._files.get_file(self._path(name), str(path))
            yield path

    def claim(self) -> None:
        return None

    @contextmanager
    def locked(self, wait: bool) -> Generator[None]:
        yield

    @contextmanager
    def sweeping(self) -> Generator[bool]:
        yield True

    def seconds_since(self, name: str) -> float:
        with self._naming(name, "read"):
            try:
                return time.time() - self._files.modified(self._path(name)).timestamp()
            except FileNotFoundError:
                return float("inf")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _naming(self, name: str, verb: str = "written") -> Generator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # each filesystem has exceptions of its own
            raise self._failed(name, verb, error) from error

    def _failed(self, name: str, verb: str, error: Exception) -> StoreError:
        return StoreError(f"{self.where(name)} cannot be {verb}: {type(error).__name__}: {error}")


def backend_at(address: str | os.PathLike[str]) -> Backend:
    """The local disk for a path or a ``file://`` address, fsspec for every other."""
    address = os.fspath(address)
    if "://" not in address:
        return LocalBackend(Path(address).expanduser().absolute())
    if "::" in address:
        raise StoreError(f"{address}: a store cannot lie behind a chain of filesystems; give the last one's address")
    from fsspec.core import url_to_fs  # takes as long to import as the rest of this room

    try:
        filesystem, path = url_to_fs(address)
    except ImportError as error:
        raise MissingExtraError(f"{address} needs one more package: {error}") from error
    except Exception as error:
        raise StoreError(f"{address} cannot be reached: {error}") from error
    if type(filesystem).__name__ == "LocalFileSystem":
        return LocalBackend(Path(path))
    return RemoteBackend(address, filesystem, path)
