"""A belief about all the weights of a network at once."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from postprior.families import Family, Point, frozen


@dataclass(frozen=True)
class Belief:
    """What is known after some parts, and all that is carried to the next one. It is frozen and detached."""

    weights: Mapping[str, Family]
    """A family for every floating parameter, by the network's own name; the likelihood's come after ``likelihood.``"""
    held: frozenset[str]
    """The parameters that never learn."""
    buffers: Mapping[str, Tensor]
    """The network's buffers, running statistics among them."""
    counts: Mapping[str, int]
    """How many observations stand behind the running statistics of each normalisation layer."""
    num_parts: int = 0
    num_examples: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", MappingProxyType({k: frozen(v) for k, v in self.weights.items()}))
        object.__setattr__(self, "buffers", MappingProxyType({k: v.detach().clone() for k, v in self.buffers.items()}))
        object.__setattr__(self, "counts", MappingProxyType(dict(self.counts)))

    def __getstate__(self) -> dict[str, Any]:
        # Read-only views can be neither copied nor sent to another process; what they show can.
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    @torch.no_grad()
    def mean(self) -> dict[str, Tensor]:
        """The mean of every weight."""
        return {name: family.mean().detach().clone() for name, family in self.weights.items()}

    @torch.no_grad()
    def sd(self) -> dict[str, Tensor]:
        """The standard deviation of every weight; zero where it is a point."""
        return {name: family.sd().detach().clone() for name, family in self.weights.items()}

    @property
    def points(self) -> frozenset[str]:
        """The parameters known by a single value: point-estimated ones and held ones."""
        return frozenset(name for name, family in self.weights.items() if isinstance(family, Point))

    def to(self, device: torch.device | str) -> "Belief":
        """The same belief on another device."""
        weights = {name: frozen(family).to(device) for name, family in self.weights.items()}
        return replace(self, weights=weights, buffers={k: v.to(device) for k, v in self.buffers.items()})


def digest(belief: Belief) -> str:
    """A hash of all that the belief says; the same for equal beliefs, wherever they lie."""
    kinds = {name: type(family).__name__ for name, family in belief.weights.items()}
    counted = sorted(belief.counts.items()), belief.num_parts, belief.num_examples
    found = hashlib.sha256(repr((sorted(kinds.items()), sorted(belief.held), *counted)).encode())
    tensors = {f"{name}/{k}": v for name, family in belief.weights.items() for k, v in family.state_dict().items()}
    for name, tensor in sorted({**tensors, **{f"buffer {k}": v for k, v in belief.buffers.items()}}.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(_bytes(tensor))
    return found.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
