"""A belief in several files, one for each process that held a share of it, and an index that says what lies where.

The index is the usual ``*.safetensors.index.json``: ``weight_map`` names the file of each tensor that is whole. Of one
that is cut, ``pieces`` gives type and shape, and which of its numbers (row by row, from and up to but without) each
file has under its name. Whoever wants some numbers opens, checks and reads the files that hold them, and no others.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from postprior import distributed
from postprior.errors import BeliefError, PostpriorError, StoreError
from postprior.families import FAMILIES, Factorized
from postprior.networks.belief import Belief
from postprior.networks.sharded import Cut, ShardedBelief
from postprior.store.backends import Backend
from postprior.store.beliefs import (
    CARD,
    FOLDER,
    INDEX,
    MANIFEST,
    TENSORS,
    check_origin,
    identity,
    mend_file,
    now,
    read_manifest,
    share_name,
    versions,
)
from postprior.store.files import digest_of, naming, syncing
from postprior.store.manifest import BUFFERS, WEIGHTS, from_plain, to_plain
from postprior.store.sealed import IN_SEVERAL_FILES, canonical, damaged, digest, plain, seal
from postprior.store.tensors import HEADER, dump_tensors

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Of weights, by the names they have in safetensors."""

VECTORS = ("mu", "log_sd")

FACTORIZED = next(name for name, family in FAMILIES.items() if family is Factorized)


def write_shares(backend: Backend, share: ShardedBelief, manifest: Mapping[str, Any], card: str) -> str:
    """Each process writes its file, then the first one the index, and the manifest last; the belief's id.

    All processes call it together; ``manifest`` and ``card`` are the first one's. Nobody holds more than a share.
    """
    share.check_here()
    file, first = share_name(distributed.rank(), distributed.size()), distributed.is_first()
    with ExitStack() as stack:
        with distributed.agreed():
            path = stack.enter_context(backend.staged())
            with naming(f"{backend.address}: the new belief's {file}"):
                dump_tensors(path, _tensors(share), {"share": [distributed.rank(), distributed.size()]})
                with syncing(path):
                    checksum = digest_of(path)
        files = dict(distributed.told_by_each([file, checksum]))
        index = canonical(_index(share))
        checksums = {**files, INDEX: digest(index)}
        with distributed.agreed():
            content = _content(backend, share, manifest) if first else {}
            id = identity(content, checksums)
            known = first and backend.read(f"{FOLDER}/{id}/{MANIFEST}") is not None and read_manifest(backend, id)
        id, known = distributed.told([id, bool(known)])
        if known:
            return id
        folder = f"{FOLDER}/{id}"
        with distributed.agreed():
            if not backend.put_all(folder, {file: path})[file]:
                mend_file(backend, f"{folder}/{file}", path, checksum)
        with distributed.agreed():
            if first:
                words = _put_index(backend, folder, index, card.encode("utf-8", "backslashreplace"))
                about = {"id": id, "time": now(), "versions": versions()}
                sums = {"files": {**checksums, CARD: digest(words)}}
                backend.put(f"{folder}/{MANIFEST}", seal({**content, **about, **sums}))
    return id


def read_share(backend: Backend, manifest: Mapping[str, Any]) -> ShardedBelief:
    """This process's share, whatever files the belief is in and however many processes there are now."""
    with _opened(backend, manifest) as files, files.reading():
        if {*files.about["families"].values()} != {FACTORIZED} or files.about["held"]:
            raise BeliefError(
                f"{backend.address}: belief {manifest['id'][:12]} is not of factorised Gaussians alone, and only these "
                "can be cut among processes: absorb into it without --shard"
            )
        names = [name.removeprefix(WEIGHTS).removesuffix("/mu") for name in files.pieces if name.endswith("/mu")]
        shapes = {name: files.pieces[f"{WEIGHTS}{name}/mu"].shape for name in names}
        kinds = {files.pieces[f"{WEIGHTS}{name}/{vector}"].dtype for name in names for vector in VECTORS}
        if len(kinds) != 1:
            raise BeliefError(f"{backend.address}: belief {manifest['id'][:12]} has weights of several types")
        cut, like = Cut.here(shapes), torch.empty(0, dtype=kinds.pop())
        vectors = {vector: cut.empty(like) for vector in VECTORS}
        for vector, values in vectors.items():
            for name, own in cut.pieces(values):
                files.read(f"{WEIGHTS}{name}/{vector}", cut.own(name)[0], own)
        buffers = {name.removeprefix(BUFFERS): files.whole(name) for name in files.names if name.startswith(BUFFERS)}
        # All but the weights, read as a belief without any.
        rest = from_plain({}, {**files.about, "families": {}})
        figures = rest.counts, rest.num_parts, rest.num_examples
        return ShardedBelief(cut, vectors["mu"], vectors["log_sd"], buffers, *figures)


def read_whole(backend: Backend, manifest: Mapping[str, Any]) -> Belief:
    """The belief in one piece, from all of its files."""
    with _opened(backend, manifest) as files, files.reading():
        found = {name: files.whole(name) for name in files.names}
        for name, piece in files.pieces.items():
            if name not in found:
                values = torch.empty(piece.shape.numel(), dtype=piece.dtype)
                files.read(name, 0, values)
                found[name] = values.view(piece.shape)
        return from_plain(found, files.about)


@dataclass(frozen=True)
class _Piece:
    """Where the numbers of one tensor lie."""

    dtype: torch.dtype
    shape: torch.Size
    files: Mapping[str, tuple[int, int]]


@final
class _Files:
    """The files of one belief, opened and compared with their checksums when something is read from them."""

    def __init__(self, backend: Backend, manifest: Mapping[str, Any], stack: ExitStack) -> None:
        self._backend, self._stack = backend, stack
        self._folder, self._checksums = f"{FOLDER}/{manifest['id']}", manifest["files"]
        self._open: dict[str, tuple[Path, IO[bytes], dict[str, Any], int]] = {}
        self.pieces: dict[str, _Piece] = {}
        self.names: list[str] = []
        """The tensors that are whole in some file."""
        self.about: dict[str, Any] = {}
        self._places: dict[str, str] = {}
        self.where = backend.where(f"{self._folder}/{INDEX if INDEX in self._checksums else TENSORS}")
        with self.reading():
            self._find()

    @contextmanager
    def reading(self) -> Generator[None]:
        """What is not as it should be, as a sentence."""
        try:
            yield
        except PostpriorError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OSError, SafetensorError) as error:
            raise damaged(self.where, f"it cannot be read ({error!r:.200})") from error

    def read(self, name: str, start: int, into: Tensor) -> None:
        """Fill a vector with a tensor's numbers from ``start`` on."""
        piece, stop, done = self.pieces[name], start + into.numel(), 0
        for file, (first, last) in piece.files.items():
            low, high = max(start, first), min(stop, last)
            if low < high:
                self._read(file, name, low - first, into[low - start : high - start])
                done += high - low
        if done != into.numel():
            raise damaged(self.where, f"it has {done} of {into.numel()} numbers of {name}")

    def whole(self, name: str) -> Tensor:
        """A tensor that is whole in some file."""
        path = self._opened(self._places[name])[0]
        with safe_open(path, framework="pt") as file:
            return file.get_tensor(name).clone()

    def _find(self) -> None:
        if INDEX not in self._checksums:
            header = self._opened(TENSORS)[2]
            self.about = json.loads(header["__metadata__"][HEADER])["belief"]
            self._places = {name: TENSORS for name in header if name != "__metadata__"}
            known = {name: entry for name, entry in header.items() if entry.get("dtype") in TYPES}
            self.pieces = {name: _piece(entry, {TENSORS: None}) for name, entry in known.items()}
        else:
            data = self._backend.read(f"{self._folder}/{INDEX}")
            if data is None:
                raise StoreError(f"{self.where} is missing: restore it from a copy")
            if digest(data) != self._checksums[INDEX]:
                raise damaged(self.where, "it does not have the checksum that the manifest gives")
            index = json.loads(data)
            self.about, self._places = index["metadata"]["belief"], dict(index["weight_map"])
            self.pieces = {name: _piece(entry, entry["files"]) for name, entry in index["pieces"].items()}
        self.names = list(self._places)

    def _opened(self, file: str) -> tuple[Path, IO[bytes], dict[str, Any], int]:
        if file not in self._open:
            name = f"{self._folder}/{file}"
            where = self._backend.where(name)
            if file not in self._checksums:
                raise damaged(self.where, f"it names {file!r:.80}, which is no file of the belief")
            path = self._stack.enter_context(self._backend.fetched(name))
            if not path.is_file():
                raise StoreError(f"{where} is missing: restore it from a copy")
            with naming(where, "read"):
                if digest_of(path) != self._checksums[file]:
                    raise damaged(where, "it does not have the checksum that the manifest gives")
                # Not mapped: what a process has read of a map counts as its memory until the map is gone.
                handle = self._stack.enter_context(path.open("rb"))
                length = int.from_bytes(handle.read(8), "little")
                self._open[file] = path, handle, json.loads(handle.read(length)), 8 + length
        return self._open[file]

    def _read(self, file: str, name: str, first: int, into: Tensor) -> None:
        _, handle, header, begin = self._opened(file)
        offset = begin + header[name]["data_offsets"][0] + first * into.element_size()
        handle.seek(offset)
        room = into.view(torch.uint8).numpy().data
        if handle.readinto(room) != len(room):  # type: ignore[attr-defined]
            raise damaged(self._backend.where(f"{self._folder}/{file}"), f"it ends within {name}")


def _piece(entry: Mapping[str, Any], files: Mapping[str, Any]) -> _Piece:
    shape = torch.Size(entry["shape"])
    stretches = {file: (0, shape.numel()) if ends is None else (ends[0], ends[1]) for file, ends in files.items()}
    return _Piece(TYPES[entry["dtype"]], shape, stretches)


@contextmanager
def _opened(backend: Backend, manifest: Mapping[str, Any]) -> Generator[_Files]:
    with ExitStack() as stack:
        yield _Files(backend, manifest, stack)


def _about(share: ShardedBelief) -> dict[str, Any]:
    """All that the belief says but for its tensors, as JSON."""
    rest = Belief({}, frozenset(), {}, share.counts, share.num_parts, share.num_examples)
    return {**to_plain(rest)[1], "families": dict.fromkeys(share.cut.shapes, FACTORIZED)}


def _content(backend: Backend, share: ShardedBelief, manifest: Mapping[str, Any]) -> dict[str, Any]:
    where = f"{backend.address}: the new belief's {MANIFEST}"
    content = plain({**manifest, "format": IN_SEVERAL_FILES, "belief": _about(share)}, where)
    check_origin(content, where)
    return content


def _put_index(backend: Backend, folder: str, index: bytes, card: bytes) -> bytes:
    """Bring the index and the card; the card that stands there in the end."""
    ours = backend.put_all(folder, {INDEX: index, CARD: card})
    if not ours[INDEX] and backend.read(f"{folder}/{INDEX}") != index:
        # Left behind by a dead process, and damaged since: no manifest speaks of it yet.
        backend.remove(f"{folder}/{INDEX}")
        backend.put(f"{folder}/{INDEX}", index)
    return card if ours[CARD] else backend.read(f"{folder}/{CARD}") or card


def _tensors(share: ShardedBelief) -> dict[str, Tensor]:
    """What this process writes: its own numbers, and the first one the buffers too."""
    found = {
        f"{WEIGHTS}{name}/{vector}": piece
        for vector in VECTORS
        for name, piece in share.cut.pieces(getattr(share, vector))
        if piece.numel()
    }
    return found | ({BUFFERS + k: v for k, v in share.buffers.items()} if distributed.is_first() else {})


def _index(share: ShardedBelief) -> dict[str, Any]:
    """The same in every process, since the cut tells what the others hold."""
    cuts = [Cut(share.cut.shapes, rank, share.cut.size) for rank in range(share.cut.size)]
    name_of_type = next(name for name, dtype in TYPES.items() if dtype == share.mu.dtype)

    def stretches(name: str) -> dict[str, list[int]]:
        ends = {share_name(each.rank, each.size): [*each.own(name)] for each in cuts}
        return {file: [start, stop] for file, (start, stop) in ends.items() if stop > start}

    pieces = {
        f"{WEIGHTS}{name}/{vector}": {"dtype": name_of_type, "shape": [*shape], "files": stretches(name)}
        for name, shape in share.cut.shapes.items()
        for vector in VECTORS
    }
    size = sum(shape.numel() for shape in share.cut.shapes.values()) * 2 * share.mu.element_size()
    size += sum(value.numel() * value.element_size() for value in share.buffers.values())
    return {
        "format": IN_SEVERAL_FILES,
        "metadata": {"total_size": size, "belief": _about(share)},
        "weight_map": {BUFFERS + name: share_name(0, share.cut.size) for name in share.buffers},
        "pieces": pieces,
    }
