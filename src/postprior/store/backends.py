"""What a store asks of the place where it lies."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from postprior.store.files import Lock


class Backend(ABC):
    """Files by name, a few folders deep; whoever calls has checked the names."""

    address: str

    def where(self, name: str) -> str:
        """The file's full address, for messages."""
        return f"{self.address}/{name}" if name else self.address

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The file, or None if there is none."""

    @abstractmethod
    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        """Many files, together where that is faster."""

    def put(self, name: str, data: bytes | Path) -> bool:
        """Bring a new file, whole and durable, unless one stands there; whether what stands there now is this one."""
        folder, _, file = name.rpartition("/")
        return self.put_all(folder, {file: data})[file]

    @abstractmethod
    def put_all(self, folder: str, files: Mapping[str, bytes | Path]) -> dict[str, bool]:
        """The same for several files of one folder; until it returns, any of them may be there, and any missing."""

    @abstractmethod
    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Bring a file, whole, in the place of one that may stand there.

        If it need not be durable, the one before may stand there again once the machine has crashed.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file or an empty folder, if it is there."""

    @abstractmethod
    def children(self, folder: str) -> list[str]:
        """What is directly in a folder, sorted; nothing if there is no such folder."""

    @abstractmethod
    @contextmanager
    def staged(self) -> Generator[Path]:
        """A local path to write a file at before it is put."""
        yield Path()

    @abstractmethod
    @contextmanager
    def fetched(self, name: str) -> Generator[Path]:
        """A local path to read a file at; what is mapped from it outlives the path."""
        yield Path()

    @abstractmethod
    def claim(self) -> Lock | None:
        """Keeps ``sweeping`` away until it is released, where the backend can."""

    @abstractmethod
    @contextmanager
    def locked(self, wait: bool) -> Generator[None]:
        """One at a time, where the backend can."""
        yield

    @abstractmethod
    @contextmanager
    def sweeping(self) -> Generator[bool]:
        """Whether leftovers may be removed now: temporaries are gone already, and nobody claims anything meanwhile."""
        yield False

    @abstractmethod
    def seconds_since(self, name: str) -> float:
        """How long ago a file was written, as far as that decides what is left over."""
