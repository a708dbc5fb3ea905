"""A store in a folder on a local disk."""

import errno
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import final

from postprior.errors import BusyError
from postprior.store.backends import Backend
from postprior.store.files import TEMPORARY, Lock, naming, staged, sync


@final
class LocalBackend(Backend):
    """A folder on a local disk: temporary name, sync, link or rename, sync the folder; locks of the kernel."""

    def __init__(self, root: Path) -> None:
        self.address, self._root = str(root), root
        self._lasting = {root}
        """Folders whose names are on the disk and are never removed."""

    def read(self, name: str) -> bytes | None:
        with naming(self.where(name), "read"):
            try:
                return (self._root / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        return [self.read(name) for name in names]

    def put_all(self, folder: str, files: Mapping[str, bytes | Path]) -> dict[str, bool]:
        ours = {name: self._placed(f"{folder}/{name}".lstrip("/"), data) for name, data in files.items()}
        with naming(self.where(folder)):
            self._sync_folders(self._root / folder)
        return ours

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        with naming(self.where(name)), self.staged() as path:
            target = self._root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            sync(path)
            path.replace(target)
            if durable:
                self._sync_folders(target.parent)

    def remove(self, name: str) -> None:
        with naming(self.where(name), "removed"):
            path = self._root / name
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)

    def children(self, folder: str) -> list[str]:
        with naming(self.where(folder), "listed"):
            path = self._root / folder
            return sorted(child.name for child in path.iterdir()) if path.exists() else []

    @contextmanager
    def staged(self) -> Generator[Path]:
        with naming(self.address):
            missing = [folder for folder in (self._root, *self._root.parents) if not folder.exists()]
            self._root.mkdir(parents=True, exist_ok=True)
            for folder in missing:
                sync(folder.parent)
        with ExitStack() as stack:
            stack.callback(self.claim().release)
            with naming(self.address):
                path = stack.enter_context(staged(self._root))
            yield path

    @contextmanager
    def fetched(self, name: str) -> Generator[Path]:
        yield self._root / name

    def claim(self) -> Lock:
        claim = Lock.take(self._root / ".writing", shared=True, wait=True)
        assert claim is not None
        return claim

    @contextmanager
    def locked(self, wait: bool) -> Generator[None]:
        path = self._root / ".lock"
        lock = Lock.take(path, wait=wait)
        if lock is None:
            holder = path.read_text() or "another process"
            raise BusyError(f"{self.address} is in use by {holder}, which holds {path}: try again later, or wait")
        lock.sign()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def sweeping(self) -> Generator[bool]:
        lock = Lock.take(self._root / ".writing")
        if lock is None:
            yield False
            return
        try:
            for name in self.children(""):
                if name.startswith(TEMPORARY):
                    shutil.rmtree(self._root / name, ignore_errors=True)
            yield True
        finally:
            lock.release()

    def seconds_since(self, name: str) -> float:
        # Whoever sweeps has seen that nobody writes.
        return float("inf")

    def _placed(self, name: str, data: bytes | Path) -> bool:
        with naming(self.where(name)):
            if isinstance(data, bytes):
                with self.staged() as path:
                    path.write_bytes(data)
                    return self._placed(name, path)
            target = self._root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            sync(data)
            return _linked(data, target, self._root / ".linking")

    def _sync_folders(self, folder: Path) -> None:
        chain = (folder, *folder.parents)
        # A new file is a name in its folder, which may itself be a new name in the folder above.
        for each in chain:
            sync(each)
            if each in self._lasting:
                break
        self._lasting.update(each for each in chain if each.parent == self._root)


def _linked(path: Path, target: Path, lock_path: Path) -> bool:
    """Give the file its name unless another has it."""
    try:
        os.link(path, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EMLINK, errno.ENOTSUP):
            raise
    else:
        return True
    # Not every disk has hard links; there, those who look and then rename do it one at a time.
    lock = Lock.take(lock_path, wait=True)
    assert lock is not None
    try:
        if target.exists():
            return False
        path.rename(target)
        return True
    finally:
        lock.release()
