"""What arrives: data as the store takes it, recognised if it was absorbed before."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from postprior.batch import Part
from postprior.data.encoding import Encoding
from postprior.data.fingerprint import Fingerprint, Hashed, fingerprint, overlap
from postprior.data.parts import as_inputs, as_part
from postprior.data.readers import read
from postprior.data.tables import Table
from postprior.errors import RepeatedPartError, SettingError
from postprior.pipeline.lineage import Record
from postprior.pipeline.recipe import Recipe

REPORTED_OVERLAP = 0.05
"""Share of a new part's examples in an earlier one from which on it is reported."""

NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


@dataclass(frozen=True)
class Overlap:
    """Examples of a new part that an earlier one seems to have held."""

    part: str
    share: float

    @property
    def sentence(self) -> str:
        """For people."""
        return f"about {100 * self.share:.0f}% of its examples were in part {self.part} already, and count twice"


@dataclass(frozen=True)
class Incoming:
    """A part before it is learned."""

    name: str
    raw: Table | Part
    hashed: Hashed
    overlaps: tuple[Overlap, ...]
    forced: bool
    """Whether it repeats an earlier part, and was allowed to."""

    def record(self) -> dict[str, Any]:
        """What is kept of it."""
        return {"id": self.name, **self.hashed.fingerprint.to_json()}


def receive(data: Any, name: str | None, recipe: Recipe, known: Sequence[Record], repeat: bool) -> Incoming:
    """Read a part and compare it with the records of all parts that the belief has ``known``."""
    raw = raw_data(data, recipe, labelled=True)
    hashed = fingerprint(raw)
    name = checked_name(data, name, hashed.fingerprint)
    forced, overlaps = compare(name, hashed, known, repeat)
    return Incoming(name, raw, hashed, overlaps, forced)


def compare(name: str, hashed: Hashed, known: Sequence[Record], repeat: bool) -> tuple[bool, tuple[Overlap, ...]]:
    """Whether a part repeats one of those known, and what it shares with others; a RepeatedPartError if it may not."""
    forced, overlaps = False, list[Overlap]()
    for record in known:
        old = Fingerprint.from_json(record)
        same_name, same_content = record["id"] == name, old.digest == hashed.fingerprint.digest
        if (same_name or same_content) and not repeat:
            raise RepeatedPartError(_repeated(name, record["id"], same_content))
        forced = forced or same_name or same_content
        share = 1.0 if same_content else overlap(hashed.hashes, old)
        if share >= REPORTED_OVERLAP:
            overlaps.append(Overlap(record["id"], share))
    return forced, tuple(overlaps)


def checked_name(data: Any, name: str | None, found: Fingerprint) -> str:
    """What the part is called: as the user says, or else as its data do."""
    name = default_name(data, found) if name is None else name
    if not NAME.fullmatch(name):
        raise SettingError(f"part {name!r:.80}: expected a name of 1 to 200 printable characters")
    return name


def raw_data(data: Any, recipe: Recipe, *, labelled: bool) -> Table | Part:
    """Data from an address, from arrays, or from whatever ``as_part`` takes."""
    if isinstance(data, (str, os.PathLike)):
        return read(cast(str, data), target=recipe.target, inputs=recipe.inputs, labelled=labelled)
    if isinstance(data, Table):
        return data
    if labelled:
        pair = cast(tuple[Any, ...], data) if isinstance(data, tuple) else ()
        if len(pair) == 2 and all(isinstance(value, (np.ndarray, Tensor)) for value in pair):
            return Table(_array(pair[0]), _array(pair[1]))
        return as_part(data, target=recipe.target)
    return Table(_array(data), None) if isinstance(data, (np.ndarray, Tensor)) else as_inputs(data)


def encoding_for(raw: Table | Part, recipe: Recipe, known: Any) -> Encoding:
    """The store's encoding, or that of the first part, which all later ones are held to."""
    if known is not None:
        return Encoding.from_json(known)
    # What a function returns is fed as it is, so the default has nothing to do there.
    how = recipe.normalise if isinstance(raw, Table) or recipe.normalise != "standard" else "none"
    return Encoding.fit(raw, cast(Any, how), classes=recipe.classes)


def address_of(data: Any) -> str | None:
    """Where the data can be read again, if it has an address."""
    if not isinstance(data, (str, os.PathLike)):
        return None
    address = os.fspath(cast(str, data))
    # A resumed absorption may be started from another folder.
    return str(Path(address).resolve()) if Path(address).exists() else address


def default_name(data: Any, found: Fingerprint) -> str:
    """The name of the file without its ending, or else the beginning of the fingerprint."""
    address = address_of(data)
    return Path(address.partition("?")[0]).stem if address and ":" not in Path(address).name else found.digest[:12]


def _repeated(name: str, earlier: str, same_content: bool) -> str:
    what = f"holds exactly the examples of part {earlier}" if same_content else "has a used name, with other data"
    cure = "Absorbing evidence twice makes a belief too sure" if same_content else "Choose another name with --part"
    return f"part {name} {what}, which this belief has absorbed already. {cure}; --allow-repeat does it all the same"


def _array(values: Any) -> Any:
    if not isinstance(values, Tensor):
        return values
    # NumPy has no such type, and every one of its numbers is a float32.
    return (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()
