"""Reading everything in a store, to find what is not as it was written."""

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from postprior.errors import StoreError
from postprior.store import beliefs
from postprior.store.backends import Backend
from postprior.store.journal import ENTRY, FOLDER, LAST, Entry, Journal, name_of
from postprior.store.sealed import ID, damaged, unseal, unstamp

STORE, DRAFTS = "store.json", "draft"


@dataclass(frozen=True)
class Problem:
    """A file, and what is wrong with it."""

    path: str
    what: str


def audit(backend: Backend, journal: Journal, progress: Callable[[int, int], None] | None) -> list[Problem]:
    """Every problem there is; leftovers that nobody acknowledged are none."""
    audit = _Audit(backend)
    with audit.of(STORE):
        header, where = unseal(backend.read(STORE), backend.where(STORE)), backend.where(STORE)
        if header["checksum"] != journal.anchor:
            raise damaged(where, "it is not the one that the archive was opened with")
    first = audit.entries(journal)
    for done, id in enumerate(first, 1):
        audit.belief(id, first)
        if progress is not None:
            progress(done, len(first))
    for name in backend.children(DRAFTS):
        with audit.of(f"{DRAFTS}/{name}"):
            # Work in progress: it may be gone by now.
            if (data := backend.read(f"{DRAFTS}/{name}")) is not None:
                unstamp(data, backend.where(f"{DRAFTS}/{name}"))
    audit.strangers(FOLDER, {LAST.rpartition("/")[2]}, ENTRY)
    audit.strangers(beliefs.FOLDER, set(), ID)
    return audit.problems


class _Audit:
    """The problems found so far."""

    def __init__(self, backend: Backend) -> None:
        self.problems: list[Problem] = []
        self._backend = backend
        self._all_entries = False
        """Only where each can be read can it be judged what one says of others."""

    @contextmanager
    def of(self, name: str) -> Generator[None]:
        """Whatever error is raised inside is this file's problem."""
        try:
            yield
        except StoreError as error:
            where = self._backend.where(name)
            self.problems.append(Problem(where, str(error).removeprefix(where).lstrip(": ")))

    def entries(self, journal: Journal) -> dict[str, int]:
        """Read all entries; which of them acknowledged each belief."""
        count, known = max(journal.sequences(), default=0), dict[int, Entry]()
        with self.of(LAST):
            count = max(count, journal.told())
        for sequence in range(1, count + 1):
            with self.of(name_of(sequence)):
                known[sequence] = journal.read(sequence)
                if sequence == 1 or sequence - 1 in known:
                    journal.check_follows(known[sequence], known.get(sequence - 1))
        first = {entry.belief: entry.sequence for entry in reversed(known.values()) if entry.belief is not None}
        self._all_entries = len(known) == count
        for entry in known.values() if self._all_entries else ():
            with self.of(name_of(entry.sequence)):
                for alias, id in entry.aliases.items():
                    if first.get(id, count + 1) > entry.sequence:
                        raise StoreError(f"{alias} points to {id}, which no entry up to this one acknowledges")
        return first

    def belief(self, id: str, first: Mapping[str, int]) -> None:
        """Read one belief and all that belongs to it."""
        folder, files = f"{beliefs.FOLDER}/{id}", dict[str, str]()
        with self.of(f"{folder}/{beliefs.MANIFEST}"):
            manifest = beliefs.read_manifest(self._backend, id)
            files = manifest["files"]
            for file in sorted(files.keys() - {beliefs.CARD}):
                with self.of(f"{folder}/{file}"):
                    if file == beliefs.TENSORS:
                        beliefs.read_tensors_of(self._backend, manifest)
                    else:
                        beliefs.check_file(self._backend, manifest, file)
            with self.of(f"{folder}/{beliefs.CARD}"):
                beliefs.read_card_of(self._backend, manifest)
            for parent in beliefs.parents_of(manifest) if self._all_entries else ():
                if first.get(parent, first[id]) >= first[id]:
                    raise StoreError(f"no entry before its own acknowledges its parent {parent}")
        # Where the manifest cannot be read, any belief's files are taken for its own.
        known = {*files} or {beliefs.TENSORS, beliefs.INDEX, beliefs.CARD}
        self.strangers(folder, {beliefs.MANIFEST, *known}, None if files else beliefs.SHARE)

    def strangers(self, folder: str, expected: set[str], pattern: re.Pattern[str] | None = None) -> None:
        """What does not belong in a folder, unless its name is hidden."""
        for name in self._backend.children(folder):
            if name not in expected and not name.startswith(".") and not (pattern and pattern.fullmatch(name)):
                with self.of(f"{folder}/{name}"):
                    raise StoreError("is not a file of the store: move it away")
