"""A belief as plain tensors and JSON, and back."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from postprior.errors import StoreError
from postprior.families import FAMILIES, Family, name_of
from postprior.networks.belief import Belief

FORMAT = 1
"""Raised whenever older code could misread a newer file."""


def to_plain(belief: Belief) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and everything else as JSON."""
    tensors = {
        f"weights/{name}/{k}": v for name, family in belief.weights.items() for k, v in family.state_dict().items()
    }
    tensors |= {f"buffers/{name}": value for name, value in belief.buffers.items()}
    about = {
        "format": FORMAT,
        "families": {name: name_of(family) for name, family in belief.weights.items()},
        "held": sorted(belief.held),
        "counts": dict(belief.counts),
        "num_parts": belief.num_parts,
        "num_examples": belief.num_examples,
    }
    return tensors, about


def from_plain(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Belief:
    """The inverse of ``to_plain``."""
    if about.get("format") != FORMAT:
        raise StoreError(
            f"the file has format {about.get('format')}, expected {FORMAT}: read it with the code it was written by"
        )
    buffers = {name.removeprefix("buffers/"): value for name, value in tensors.items() if name.startswith("buffers/")}
    weights = {name: _family(name, kind, tensors) for name, kind in about["families"].items()}
    counts = {name: int(count) for name, count in about["counts"].items()}
    return Belief(weights, frozenset(about["held"]), buffers, counts, about["num_parts"], about["num_examples"])


def _family(name: str, kind: str, tensors: Mapping[str, Tensor]) -> Family:
    if kind not in FAMILIES:
        raise StoreError(f"{name} has family {kind!r}, which is not known here: expected one of {', '.join(FAMILIES)}")
    prefix = f"weights/{name}/"
    own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    return FAMILIES[kind].from_tensors(own)
