"""The journal: one immutable file an entry, each with all aliases after it and the checksum of the entry before."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from postprior.errors import StoreError
from postprior.store.backends import Backend
from postprior.store.beliefs import now
from postprior.store.sealed import check_id, check_name, damaged, plain, seal, unseal

FOLDER, LAST = "journal", "journal/last.json"
ENTRY = re.compile(r"[0-9]{8}\.json")
BEGUN = seal({"sequence": 0})
"""The hint before the first entry. There is one from the beginning: where it is missing, the journal was cut short."""


@dataclass(frozen=True)
class Entry:
    """What was acknowledged at one moment."""

    sequence: int
    time: str
    event: str
    belief: str | None
    aliases: Mapping[str, str]
    """All of them, after it."""
    about: Mapping[str, Any]
    previous: str
    """The checksum of the entry before; before the first stands the store's own."""
    checksum: str


def name_of(sequence: int) -> str:
    """The file of an entry."""
    return f"{FOLDER}/{sequence:08d}.json"


def only_begun(backend: Backend) -> bool:
    """Whether there is no more of a journal than a process leaves that died while it made a store."""
    return backend.children(FOLDER) in ([], [LAST.rpartition("/")[2]]) and backend.read(LAST) in (None, BEGUN)


class Journal:
    """The entries of one store. Those once read are not read again, as no entry ever changes."""

    def __init__(self, backend: Backend, anchor: str) -> None:
        self.anchor, self._backend = anchor, backend
        self._known: list[Entry] = []

    def last(self) -> Entry | None:
        """The newest entry, fresh from the disk, whatever the number of entries."""
        sequence = self.told()
        last = self.read(sequence) if sequence else None
        # The hint is written after the entry, so it may lag behind, by as much as there are writers.
        while (data := self._backend.read(name_of(sequence + 1))) is not None:
            sequence, previous = sequence + 1, last
            last = self._entry(sequence, data)
            self.check_follows(last, previous)
        return last

    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        last, known = self.last(), list(self._known)
        names = [name_of(sequence) for sequence in range(len(known) + 1, (last.sequence if last else 0) + 1)]
        for data in self._backend.read_all(names):
            entry = self._entry(len(known) + 1, data)
            self.check_follows(entry, known[-1] if known else None)
            known.append(entry)
        self._known = known
        return list(known)

    def add(
        self, last: Entry | None, event: str, belief: str | None, aliases: Mapping[str, str], about: Mapping[str, Any]
    ) -> Entry | None:
        """Write the entry after ``last``, or None if another was written there first."""
        sequence = last.sequence + 1 if last else 1
        content = {
            "sequence": sequence,
            "time": now(),
            "event": event,
            "belief": belief,
            "aliases": dict(aliases),
            "about": plain(about, f"{self._backend.where(name_of(sequence))}: about"),
            "previous": last.checksum if last else self.anchor,
            # No two writers write the same bytes, so each can tell which of them the entry is from.
            "nonce": uuid4().hex,
        }
        data = seal(content)
        if not self._backend.put(name_of(sequence), data):
            return None
        # If this fails, the entry stands, and is what counts; the next one brings the hint up to date.
        with suppress(StoreError):
            self._backend.replace(LAST, seal({"sequence": sequence}), durable=False)
        return self._entry(sequence, data)

    def read(self, sequence: int) -> Entry:
        """One entry; what stands there is that one, unchanged."""
        return self._entry(sequence, self._backend.read(name_of(sequence)))

    def told(self) -> int:
        """The newest entry's number according to the hint; 0 before the first."""
        data, where = self._backend.read(LAST), self._backend.where(LAST)
        if data is None:
            raise StoreError(
                f"{where} is missing: the journal may be cut short; restore it from a copy, an old one does as well"
            )
        sequence = unseal(data, where).get("sequence")
        if not isinstance(sequence, int) or sequence < 0:
            raise damaged(where, f"'sequence' is {sequence!r:.20}, expected the number of an entry")
        return sequence

    def sequences(self) -> list[int]:
        """The numbers of the entries that are there."""
        return [int(name[:8]) for name in self._backend.children(FOLDER) if ENTRY.fullmatch(name)]

    def check_follows(self, entry: Entry, previous: Entry | None) -> None:
        """Refuse an entry that was not written after the one before it."""
        if entry.previous != (previous.checksum if previous else self.anchor):
            before = name_of(previous.sequence) if previous else "store.json"
            raise damaged(
                self._backend.where(name_of(entry.sequence)), f"it was written after another {before} than stands there"
            )

    def _entry(self, sequence: int, data: bytes | None) -> Entry:
        where = self._backend.where(name_of(sequence))
        if data is None:
            raise StoreError(f"{where} is missing: the journal was truncated; restore it from a copy")
        content = unseal(data, where)
        kinds = {"sequence": int, "time": str, "event": str, "aliases": dict, "about": dict, "previous": str}
        for key, kind in kinds.items():
            if not isinstance(content.get(key), kind):
                raise damaged(where, f"{key!r} is {content.get(key)!r:.80}, expected {kind.__name__}")
        if content["sequence"] != sequence:
            raise damaged(where, f"it is entry {content['sequence']}")
        belief = content.get("belief")
        for id in (*content["aliases"].values(), *([] if belief is None else [belief])):
            check_id(id, where)
        for alias in content["aliases"]:
            check_name(alias, where)
        return Entry(**{key: content[key] for key in kinds}, belief=belief, checksum=content["checksum"])
