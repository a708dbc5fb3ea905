"""The store: beliefs that never change, a journal of what was acknowledged, and aliases that move."""

import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

from postprior import distributed
from postprior.errors import RacedError, StoreError
from postprior.networks.belief import Belief
from postprior.networks.sharded import ShardedBelief
from postprior.store import beliefs, shares
from postprior.store.audit import DRAFTS, STORE, Problem, audit
from postprior.store.backends import Backend
from postprior.store.files import Lock
from postprior.store.journal import BEGUN, LAST, Entry, Journal, only_begun
from postprior.store.journal import FOLDER as JOURNAL
from postprior.store.remote import backend_at
from postprior.store.sealed import FORMAT, check_name, damaged, plain, seal, stamp, unseal, unstamp

DAY = 86_400.0
REFERENCE = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]{0,63})(?:~([0-9]{0,6}))?")
SHORTEST_PREFIX = 4


@dataclass(frozen=True)
class State:
    """Where a store stands."""

    sequence: int
    """How many entries the journal has."""
    aliases: Mapping[str, str]
    checksum: str
    """Of the newest entry, or of ``store.json`` before the first: two equal ones saw the same history."""


class Archive:
    """A folder, or any fsspec address, of immutable beliefs.

    Its laws, which one contract test holds on every backend:

    1. What is written does not change: beliefs and entries of the journal are put where nothing stands, once.
       A belief's id is the hash of its content; putting it again changes nothing.
    2. Acknowledged means: named by an entry of the journal. Once ``append`` returns, that outlives a crash.
       What was put and not yet acknowledged may be swept.
    3. Nothing acknowledged is lost, whatever dies whenever. A journal cut short is an error, never an older store.
    4. Every entry carries all aliases, so all its moves are seen at once or not at all; of two writers one comes
       second and decides again on what the first has left (``expect``).
    5. Readers never see half a belief: its manifest is written last, and checksums are compared before anything is
       returned. They take no lock and write nothing.
    6. Nothing that is read is executed, and no name that is read leads out of the store.
    7. A dead process holds no lock; what it left half-written nobody sees, and ``sweep`` removes it.

    On a local disk all of this holds between processes, for a crash of the machine too. On an object store (S3 and
    those like it) a file is put by one conditional request, and the same holds, but for two things: ``locked`` lets
    everyone in (``append`` still lets nobody overwrite another), and ``sweep`` knows the living from the dead by age
    alone. On other filesystems of fsspec a file may be seen while it is being written and two processes may put one
    at once: there let one process write at a time. ``memory://`` lives and dies with its process.
    """

    def __init__(self, backend: Backend, header: Mapping[str, Any]) -> None:
        """Use ``create`` or ``open``."""
        self.address = backend.address
        self.recipe: dict[str, Any] = header["recipe"]
        self._backend, self._checksum = backend, str(header["checksum"])
        self._journal = Journal(backend, self._checksum)
        self._claims: dict[str, Lock | None] = {}

    @classmethod
    def create(cls, address: str | os.PathLike[str], recipe: Mapping[str, Any]) -> Self:
        """Make an empty store where nothing stands; ``recipe`` is what all its beliefs share, and never changes."""
        backend = backend_at(address)
        found = [name for name in backend.children("") if not name.startswith(".")]
        if found and not (found == [JOURNAL] and only_begun(backend)):
            raise StoreError(f"{backend.address} is not empty, it holds {', '.join(found[:5])}: choose another place")
        content = {"format": FORMAT, "recipe": plain(recipe, "recipe"), "created": beliefs.now()}
        backend.put(LAST, BEGUN)
        if backend.put(LAST, b"?"):
            backend.remove(LAST)
            raise StoreError(
                f"{backend.address} takes a file where one stands (it ignores If-None-Match): there a writer could "
                f"overwrite what another was promised; choose a server that honours conditional writes"
            )
        # With this file there is a store: it comes last.
        header = seal(content)
        if not backend.put(STORE, header):
            raise StoreError(f"{backend.address} holds a store already: open it, or choose another place")
        return cls(backend, unseal(header, backend.where(STORE)))

    @classmethod
    def open(cls, address: str | os.PathLike[str]) -> Self:
        """Take up a store; that costs the same however many entries its journal has."""
        backend = backend_at(address)
        data, where = backend.read(STORE), backend.where(STORE)
        if data is None:
            raise StoreError(
                f"{backend.address} holds no store: {where} is missing; check the address, or make one "
                "(`postprior init`)"
            )
        header = unseal(data, where)
        if not isinstance(header.get("recipe"), dict):
            raise damaged(where, "it holds no recipe")
        return cls(backend, header)

    def state(self) -> State:
        """Where the store stands now: the newest entry is read, and none before it."""
        last = self._journal.last()
        return State(last.sequence, last.aliases, last.checksum) if last else State(0, {}, self._checksum)

    def entries(self) -> list[Entry]:
        """The whole journal, oldest first."""
        return self._journal.entries()

    def put(self, belief: Belief | ShardedBelief, manifest: Mapping[str, Any], card: str) -> str:
        """Write a belief; it is durable, but not acknowledged before an entry names it.

        Of one that is sharded, all processes put their shares together; manifest and card are the first one's.

        Its id is the hash of the belief and the manifest, all but ``time``, ``seconds`` and ``versions``: the same
        belief of the same part has the same id. On a local disk this object keeps sweeps away until the entry.
        """
        claim = self._backend.claim()
        try:
            with distributed.agreed() if isinstance(belief, ShardedBelief) else nullcontext():
                for parent in beliefs.parents_of(manifest):
                    self.manifest(parent)
            write: Any = shares.write_shares if isinstance(belief, ShardedBelief) else beliefs.write_belief
            id = write(self._backend, belief, manifest, card)
        except BaseException:
            _release(claim)
            raise
        _release(self._claims.pop(id, None))
        if distributed.is_first() or not isinstance(belief, ShardedBelief):
            self._claims[id] = claim
        else:  # the first process acknowledges it
            _release(claim)
        return id

    def append(
        self,
        event: str,
        *,
        belief: str | None = None,
        moves: Mapping[str, str | None] | None = None,
        expect: Mapping[str, str | None] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Acknowledge a belief, or what was done with one, and move aliases (to None: remove), all in one entry.

        If others append meanwhile, it comes after them; a RacedError if an alias in ``expect`` then points elsewhere.
        """
        check_name(event, "event")
        moves, expect = dict(moves or {}), dict(expect or {})
        for alias in (*moves, *expect):
            check_name(alias, "alias")
        claim = self._backend.claim()
        try:
            while True:
                last = self._journal.last()
                aliases = dict(last.aliases) if last else {}
                self._check_expected(aliases, expect)
                self._check_acknowledged(belief, moves, aliases)
                aliases = {alias: id for alias, id in {**aliases, **moves}.items() if id is not None}
                if entry := self._journal.add(last, event, belief, aliases, about or {}):
                    _release(self._claims.pop(belief, None) if belief else None)
                    return entry
        finally:
            _release(claim)

    def manifest(self, id: str) -> dict[str, Any]:
        """What is to be known of a belief."""
        return beliefs.read_manifest(self._backend, id)

    def belief(self, id: str) -> Belief:
        """The belief itself. Its tensors show the file, which never changes, until they are written to."""
        manifest = self.manifest(id)
        several = beliefs.INDEX in manifest["files"]
        return (shares.read_whole if several else beliefs.read_tensors_of)(self._backend, manifest)

    def share(self, id: str) -> ShardedBelief:
        """This process's share of the belief, in however many files that is; no other numbers are kept."""
        return shares.read_share(self._backend, self.manifest(id))

    def resolve(self, ref: str) -> str:
        """The id that an alias, an id or the beginning of one stands for; ``head~3`` is the third parent of head."""
        match = REFERENCE.fullmatch(ref)
        if match is None:
            raise StoreError(f"{ref!r:.80} names no belief: expected an alias or an id, and ~N for its N-th parent")
        base, steps = match[1], match[2]
        id = self._named(base)
        for step in range(0 if steps is None else int(steps or 1)):
            parent = self.manifest(id).get("parent")
            if parent is None:
                raise StoreError(f"{ref} is before the first belief: {base} has {step} before it, the first is {id}")
            id = parent
        return id

    def verify(self, progress: Callable[[int, int], None] | None = None) -> list[Problem]:
        """Read everything that was acknowledged, and the drafts; each thing that is not as it was written.

        ``progress`` is told how many beliefs are done, and of how many.
        """
        return audit(self._backend, Journal(self._backend, self._checksum), progress)

    @contextmanager
    def locked(self, wait: bool = False) -> Generator[None]:
        """One process, and one thread, at a time (on a local disk): a BusyError at once, unless one waits."""
        with self._backend.locked(wait):
            yield

    def draft(self, name: str) -> bytes | None:
        """What was written under this name last, or None."""
        file = f"{DRAFTS}/{check_name(name, 'draft')}"
        data = self._backend.read(file)
        return None if data is None else unstamp(data, self._backend.where(file))

    def write_draft(self, name: str, data: bytes) -> None:
        """Keep something of work in progress, in place of what stood under this name."""
        self._backend.replace(f"{DRAFTS}/{check_name(name, 'draft')}", stamp(data))

    def drop_drafts(self) -> None:
        """Forget the work in progress."""
        for name in self._backend.children(DRAFTS):
            self._backend.remove(f"{DRAFTS}/{name}")

    def sweep(self, idle: float = DAY) -> int:
        """Remove what dead processes left: temporaries, and beliefs nobody acknowledged; how many of these.

        On a local disk nothing is removed while a process lives that is writing. Elsewhere what is younger than
        ``idle`` seconds is left alone: no process may take longer from ``put`` to ``append``.
        """
        with self._backend.sweeping() as free:
            if not free:
                return 0
            # In this order: what is put and acknowledged meanwhile is not among the candidates.
            candidates = beliefs.ids(self._backend)
            kept = self._acknowledged()
            left = [id for id in candidates if id not in kept and self._seconds_since(id) >= idle]
            for id in left:
                beliefs.remove_belief(self._backend, id)
            return len(left)

    def _acknowledged(self) -> set[str]:
        return {entry.belief for entry in self.entries() if entry.belief is not None}

    def _seconds_since(self, id: str) -> float:
        files = (f"{beliefs.FOLDER}/{id}/{name}" for name in self._backend.children(f"{beliefs.FOLDER}/{id}"))
        return min((self._backend.seconds_since(file) for file in files), default=float("inf"))

    def _check_expected(self, aliases: Mapping[str, str], expect: Mapping[str, str | None]) -> None:
        for alias, id in expect.items():
            if aliases.get(alias) != id:
                raise RacedError(
                    f"{self.address}: {alias} points to {aliases.get(alias, 'nothing')}, expected {id or 'nothing'}: "
                    f"another process moved it meanwhile; nothing was recorded, start again from where it points now"
                )

    def _check_acknowledged(
        self, belief: str | None, moves: Mapping[str, str | None], aliases: Mapping[str, str]
    ) -> None:
        # Aliases and parents are acknowledged before; what an alias points to is, so most need not be looked up.
        needed = {id for id in moves.values() if id is not None}
        if belief is not None:
            needed |= set(beliefs.parents_of(self.manifest(belief)))
        needed -= {belief, *aliases.values()}
        if missing := needed - (self._acknowledged() if needed else set()):
            raise StoreError(f"{self.address}: no entry acknowledges the belief {min(missing)}: append it first")

    def _named(self, base: str) -> str:
        aliases = self.state().aliases
        if base in aliases:
            return aliases[base]
        found = sorted(id for id in self._acknowledged() if id.startswith(base))
        if len(found) == 1 and len(base) >= SHORTEST_PREFIX:
            return found[0]
        if len(found) > 1 and len(base) >= SHORTEST_PREFIX:
            raise StoreError(f"{base} is the beginning of {len(found)} ids, {found[0]} among them: give more of it")
        known = ", ".join(sorted(aliases)) or "none yet"
        short = f"; the beginning of an id has {SHORTEST_PREFIX} digits or more" if len(base) < SHORTEST_PREFIX else ""
        raise StoreError(f"{base} names no belief in {self.address}: the aliases are {known}{short}")


def _release(claim: Lock | None) -> None:
    if claim is not None:
        claim.release()
