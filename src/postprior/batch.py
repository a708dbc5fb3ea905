"""What every room means by a batch and by a part of data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Some examples: how the network is called on them, and what should come out."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    targets: Tensor | None

    def to(self, device: torch.device, dtype: torch.dtype) -> "Batch":
        """On the network's device, floating inputs in the network's own type."""
        targets = None if self.targets is None else _move(self.targets, device, dtype)
        args = tuple(_move(value, device, dtype) for value in self.args)
        return Batch(args, {key: _move(value, device, dtype) for key, value in self.kwargs.items()}, targets)

    def __len__(self) -> int:
        """How many examples there are."""
        tensors = (value for _, value in [("", self.targets), *self.inputs()] if isinstance(value, Tensor))
        return next((len(value) for value in tensors if value.dim() > 0), 0)

    def cut(self, start: int, length: int) -> "Batch":
        """Some of the examples, in order, without targets; tensors that do not count examples stay as they are."""
        size = len(self)

        def some(value: Any) -> Any:
            counts = isinstance(value, Tensor) and value.dim() > 0 and len(value) == size
            return value[start : start + length] if counts else value

        return Batch(tuple(map(some, self.args)), {key: some(value) for key, value in self.kwargs.items()}, None)

    def inputs(self) -> list[tuple[str, Any]]:
        """Every input with a name for messages."""
        positional = [("input" if len(self.args) == 1 else f"input {i}", value) for i, value in enumerate(self.args)]
        return [*positional, *((f"input {key!r}", value) for key, value in self.kwargs.items())]


class Part(Protocol):
    """One part of the data, readable more than once."""

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """All examples once, shuffled by the generator, or in their own order without one."""
        ...

    def num_batches(self, batch_size: int) -> int | None:
        """How many batches one pass has, or None where only a pass can tell."""
        ...

    def split(self, num_held: int, generator: torch.Generator) -> tuple[Self, Self]:
        """The part without a random choice of its examples, and those."""
        ...


@runtime_checkable
class IndexedPart(Part, Protocol):
    """A part whose examples have numbers, so that a batch can be fetched where and when it is needed."""

    def chunks(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        """The numbers of the examples of each batch, in the order of ``batches``."""
        ...

    def fetch(self, indices: Tensor) -> Batch:
        """The examples with these numbers."""
        ...


@runtime_checkable
class DrawingPart(Part, Protocol):
    """A part that draws from generators of its own, which have to be known to go on in the middle of a pass."""

    def generators(self) -> list[torch.Generator]:
        """They themselves, always in the same order."""
        ...


def _move(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(device, dtype if value.is_floating_point() else None, non_blocking=True)
