"""What is asked of a local disk: files that appear whole or not at all and outlive a crash, and locks that do not."""

import fcntl
import functools
import hashlib
import os
import shutil
import weakref
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from postprior.errors import StoreError

TEMPORARY = ".tmp-"


@contextmanager
def naming(where: str | os.PathLike[str], verb: str = "written") -> Generator[None]:
    """Turns what the operating system says into an error that names the file."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        kept = "; what stood there before still stands" if verb == "written" else ""
        raise StoreError(f"{os.fspath(where)} cannot be {verb}: {error.strerror or error}{kept}") from error


@contextmanager
def staged(folder: Path) -> Generator[Path]:
    """A path on the folder's disk for a file that nobody sees until it is moved; gone afterwards, whatever happens.

    It lies in a folder of its own, as libraries that write it may put temporary files beside it.
    """
    own = folder / f"{TEMPORARY}{uuid4().hex}"
    own.mkdir(parents=True)
    try:
        yield own / "file"
    finally:
        shutil.rmtree(own, ignore_errors=True)


def check_place(path: Path) -> None:
    """Raise a StoreError where no file can be put; to be asked before long work."""
    if not path.parent.is_dir():
        raise StoreError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise StoreError(f"{path} cannot be written: it is a folder; give the name of a file in it")


@contextmanager
def appearing(path: Path) -> Generator[Path]:
    """A path for a file that becomes ``path`` once all inside went well, in a folder that is there."""
    check_place(path)
    with naming(path), staged(path.parent) as temporary:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)


def sync(path: Path) -> None:
    """Brings a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def syncing(path: Path) -> Generator[None]:
    """Brings a file to the disk while it is read."""
    with ThreadPoolExecutor(1) as pool:
        synced = pool.submit(sync, path)
        yield
        synced.result()


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Lock:
    """A lock on a file, which the kernel lets go of when its holder dies, in whatever way.

    Several may hold it shared, or one exclusively. Children that the holder forks do not hold it, else a worker that
    outlives a killed parent would.
    """

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle
        _let_go_in_children()
        _held.add(self)

    @classmethod
    def take(cls, path: Path, *, shared: bool = False, wait: bool = False) -> "Lock | None":
        """The lock, or None if another holds it and one does not wait."""
        with naming(path, "locked"):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                os.close(handle)
                return None
            except BaseException:
                os.close(handle)
                raise
        return cls(handle)

    def sign(self) -> None:
        """Write down who holds it, for the messages of others."""
        # On a full disk the lock holds all the same.
        with suppress(OSError):
            if self._handle is not None:
                os.ftruncate(self._handle, 0)
                os.pwrite(self._handle, f"process {os.getpid()}".encode(), 0)

    def release(self) -> None:
        """Let go; more than once does no harm."""
        # Closing lets go once no copy of the handle is open: in a forked child, the parent's still is.
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __del__(self) -> None:
        self.release()


_held = weakref.WeakSet[Lock]()


@functools.cache
def _let_go_in_children() -> None:
    os.register_at_fork(after_in_child=lambda: [lock.release() for lock in list(_held)])
