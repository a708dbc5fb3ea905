"""A belief as plain tensors and JSON, and back."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from postprior.errors import StoreError
from postprior.families import FAMILIES, Family, name_of
from postprior.networks.belief import Belief
from postprior.store.sealed import FORMAT

WEIGHTS, BUFFERS = "weights/", "buffers/"
"""What the names of tensors begin with."""


def to_plain(belief: Belief) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and everything else as JSON."""
    tensors = {
        f"{WEIGHTS}{name}/{k}": v for name, family in belief.weights.items() for k, v in family.state_dict().items()
    }
    tensors |= {f"{BUFFERS}{name}": value for name, value in belief.buffers.items()}
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
    """The inverse of ``to_plain``; the belief takes the tensors over."""
    if about.get("format") != FORMAT:
        raise StoreError(
            f"the file has format {about.get('format')}, expected {FORMAT}: read it with the code it was written by"
        )
    try:
        return _taken_over(
            weights={name: _family(name, kind, tensors) for name, kind in about["families"].items()},
            held=frozenset(about["held"]),
            buffers={key.removeprefix(BUFFERS): value for key, value in tensors.items() if key.startswith(BUFFERS)},
            counts={name: int(count) for name, count in about["counts"].items()},
            num_parts=int(about["num_parts"]),
            num_examples=int(about["num_examples"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise StoreError(f"the file does not hold a whole belief ({error!r}): take a copy, or save again") from error


def _taken_over(**fields: Any) -> Belief:
    # The constructor copies what it is given, as others may hold it. Nobody else holds what was just read, and
    # copying it would cost more than reading it.
    belief = object.__new__(Belief)
    vars(belief).update({k: MappingProxyType(v) if isinstance(v, dict) else v for k, v in fields.items()})
    return belief


def _family(name: str, kind: str, tensors: Mapping[str, Tensor]) -> Family:
    if kind not in FAMILIES:
        raise StoreError(f"{name} has family {kind!r}, which is not known here: expected one of {', '.join(FAMILIES)}")
    prefix = f"{WEIGHTS}{name}/"
    # As parameters, the family takes them over too.
    own = {
        key.removeprefix(prefix): nn.Parameter(value, requires_grad=False)
        for key, value in tensors.items()
        if key.startswith(prefix)
    }
    return FAMILIES[kind].from_tensors(own).requires_grad_(False)
