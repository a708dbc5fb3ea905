"""What tells a part that was absorbed before, whole or in part, without keeping the part.

Every example has a hash: BLAKE2b, 128 bits, of its inputs and its target. The digest of a part is the SHA-256 of the
sorted hashes, so it does not depend on the order of the examples, but on how often each occurs. The sketch is the
SKETCH_SIZE smallest of the hashes' first 64 bits, each once ("k minimum values"): since hashes are as good as random, a
random choice of the examples, by which the examples of another part can be recognised.

The same values have the same hash in whatever order of bytes or memory they are kept. Whole numbers are compared as
int64, names as UTF-8. Pixels (uint8 inputs) differ from whole numbers, and float32 from float64 with the same values;
columns are taken in the order of their names.

What a sketch reveals: whoever holds a candidate example, byte for byte, can compute its hash and so test whether it was
in the part (surely for parts of up to SKETCH_SIZE examples, by chance for larger ones), and can try all values of
examples of which there are few. It holds no values, no statistic of them, and nothing about examples that cannot be
guessed whole; a near copy has another hash.

References:
    On Synopses for Distinct-Value Estimation Under Multiset Operations (Beyer, Haas, Reinwald, Sismanis and Gemulla,
    2007). https://doi.org/10.1145/1247480.1247504
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from postprior.batch import Batch, Part
from postprior.data.tables import ALONE, Array, Table
from postprior.errors import PartError, StoreError

SKETCH_SIZE = 512
"""Part of the format: a sketch of fewer hashes is known to be complete."""

HASH_BYTES = 16

KNOWN_TO_NUMPY = (torch.float16, torch.float32, torch.float64)

BLOCK = 1 << 20
"""Bytes that are laid side by side at a time."""


@dataclass(frozen=True)
class Fingerprint:
    """What is kept of a part."""

    digest: str
    """Hexadecimal; equal for parts of the same examples."""
    num_examples: int
    sketch: tuple[int, ...]
    """Ascending."""

    @property
    def is_complete(self) -> bool:
        """Whether the sketch knows every example of the part."""
        return len(self.sketch) < SKETCH_SIZE or len(self.sketch) == self.num_examples

    def to_json(self) -> dict[str, Any]:
        """Plain values that ``from_json`` takes; the sketch is base64 of little-endian 64-bit numbers."""
        sketch = base64.b64encode(np.array(self.sketch, "<u8").tobytes()).decode()
        return {"fingerprint": self.digest, "num_examples": self.num_examples, "sketch": sketch}

    @classmethod
    def from_json(cls, given: Any) -> Self:
        """The inverse of ``to_json``; further keys are passed over. A StoreError where the values cannot be those."""
        try:
            digest, num_examples = given["fingerprint"], given["num_examples"]
            sketch = tuple(np.frombuffer(base64.b64decode(given["sketch"], validate=True), "<u8").tolist())
        except (LookupError, TypeError, ValueError) as error:
            raise StoreError(f"the fingerprint of a part is damaged ({error!r}); restore its file") from error
        fine = type(digest) is str and re.fullmatch("[0-9a-f]{64}", digest) and type(num_examples) is int
        fine = fine and all(a < b for a, b in pairwise(sketch)) and bool(num_examples) == bool(sketch)
        if not (fine and len(sketch) <= min(num_examples, SKETCH_SIZE)):
            found = f"digest {digest!r} of {num_examples!r} examples with a sketch of {len(sketch)}"
            raise StoreError(f"the fingerprint of a part is damaged: {found}; restore its file")
        return cls(digest, num_examples, sketch)


@dataclass(frozen=True, eq=False)
class Hashed:
    """A fingerprint with the hashes it was made from, which are not kept: they would tell more than the sketch does."""

    fingerprint: Fingerprint
    hashes: NDArray[np.uint64]
    """The first 64 bits of each example's, in no order that means anything."""


def fingerprint(data: Table | Part) -> Hashed:
    """The hash of every example, and the fingerprint of them all.

    A table is hashed as it was read, before it is encoded. Of a part that a function gave, each batch of one pass is
    hashed: where examples are changed at random or padded to the longest of their batch, every pass has other hashes.
    """
    digests = sorted(_of_table(data) if isinstance(data, Table) else _of_part(data))
    joined = b"".join(digests)
    hashes = np.frombuffer(joined, ">u8")[:: HASH_BYTES // 8].astype(np.uint64)
    sketch = tuple(np.unique(hashes)[:SKETCH_SIZE].tolist())
    return Hashed(Fingerprint(hashlib.sha256(joined).hexdigest(), len(digests), sketch), hashes)


def overlap(hashes: NDArray[np.uint64], old: Fingerprint) -> float:
    """An estimate of the share of the new part's examples, given by their hashes, that the old part held.

    Exact where the old part's sketch is complete. Otherwise those new examples are looked at whose hashes are not above
    the largest in the sketch, about SKETCH_SIZE / old.num_examples of them all: if these are m, the standard error is
    about sqrt(share (1 - share) / m). Parts without a common example have overlap 0, without any error. Where m is 0
    nothing can be said, and 0 is returned.
    """
    sketch = np.array(old.sketch, np.uint64)
    looked_at = hashes if old.is_complete else hashes[hashes <= sketch[-1]]
    return float(np.isin(looked_at, sketch).mean()) if len(looked_at) else 0.0


def _of_table(table: Table) -> Iterator[bytes]:
    return _digests(table.named_inputs(), table.targets, np.argsort(table.columns) if table.columns else None)


def _of_part(part: Part) -> Iterator[bytes]:
    for batch in part.batches(1000):
        inputs = _inputs(batch)
        targets = None if batch.targets is None else _array("targets", batch.targets)
        lengths = {
            name: len(array) for name, array in (inputs | ({} if targets is None else {"targets": targets})).items()
        }
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{length} {name}" for name, length in lengths.items())
            raise PartError(f"a batch has {found}: expected as many of each; mend what makes the batches")
        yield from _digests(inputs, targets)


def _inputs(batch: Batch) -> dict[str, Array]:
    alone = len(batch.args) == 1 and not batch.kwargs
    values = {ALONE if alone else f"input {i}": value for i, value in enumerate(batch.args)} | dict(batch.kwargs)
    return {name: _array(name, value) for name, value in values.items()}


def _array(name: str, value: Any) -> Array:
    if not isinstance(value, Tensor) or value.dim() == 0:
        found = f"{type(value).__name__} in a batch"
        raise PartError(f"{name}: expected a tensor of examples to make a fingerprint of, found {found}")
    value = value.detach().cpu()
    if value.is_floating_point() and value.dtype not in KNOWN_TO_NUMPY:
        value = value.view({1: torch.int8, 2: torch.int16}[value.element_size()])
    return value.numpy()


def _digests(inputs: Mapping[str, Array], targets: Array | None, order: Array | None = None) -> Iterator[bytes]:
    """The hash of each example, its columns taken in this order; its key says what the bytes are."""
    arrays = {f"input {name}": inputs[name] for name in sorted(inputs)}
    if targets is not None:
        arrays["target"] = _names_hashed(targets) if targets.dtype.kind == "U" else targets

    def canonical(start: int, stop: int) -> list[Array]:
        blocks = {name: array[start:stop] for name, array in arrays.items()}
        if order is not None:
            blocks[f"input {ALONE}"] = blocks[f"input {ALONE}"][:, order]
        return [_canonical(block, is_target=name == "target") for name, block in blocks.items()]

    # Block by block, as the whole may not fit into memory.
    none = dict(zip(arrays, canonical(0, 0), strict=True))
    kinds = [(name, array.dtype.str, array.shape[1:]) for name, array in none.items()]
    key = hashlib.blake2b(json.dumps(["postprior example 1", kinds]).encode()).digest()
    width = sum(math.prod(array.shape[1:]) * array.itemsize for array in none.values())
    if not width:
        raise PartError("the examples of the part have no numbers in them, expected some; mend what gives the part")
    count, step = len(next(iter(arrays.values()))), max(1, BLOCK // width)
    for start in range(0, count, step):
        blocks = canonical(start, start + step)
        rows = [np.ascontiguousarray(block).view(np.uint8).reshape(len(block), -1) for block in blocks]
        content = memoryview(np.concatenate(rows, axis=1).tobytes())
        for at in range(0, len(content), width):
            yield hashlib.blake2b(content[at : at + width], digest_size=HASH_BYTES, key=key).digest()


def _canonical(array: Array, *, is_target: bool) -> Array:
    """Little-endian, and whole numbers as int64 unless they are pixels."""
    if array.dtype.kind in ("biu" if is_target else "iu") and (is_target or array.dtype != np.uint8):
        return array.astype("<i8", copy=False)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _names_hashed(names: Array) -> Array:
    """Names as rows of bytes of one length."""
    distinct, positions = np.unique(names, return_inverse=True)
    digests = [hashlib.blake2b(name.encode(), digest_size=HASH_BYTES).digest() for name in distinct.tolist()]
    return np.frombuffer(b"".join(digests), f"V{HASH_BYTES}")[positions]
