"""A single value: no uncertainty. Learning with it is fine-tuning, the baseline."""

from collections.abc import Mapping
from typing import ClassVar, Self, final

import torch
from torch import Tensor, nn

from postprior.families.family import Draw, Family, Role, as_parameter


@final
class Point(Family):
    """All mass on one value."""

    roles: ClassVar[frozenset[Role]] = frozenset({"kernel", "dense", "other"})

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = as_parameter(value)

    @classmethod
    def from_gaussian(cls, mean: Tensor, sd: Tensor, generator: torch.Generator) -> Self:
        """The mean; the width is dropped, which is what a point estimate does."""
        del sd, generator
        return cls(mean)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        return cls(tensors["value"])

    @property
    def location(self) -> nn.Parameter:
        return self.value

    def draw(self, generator: torch.Generator) -> Draw:
        del generator
        return Draw(self.value)

    def log_density(self, draw: Draw) -> Tensor:
        """With respect to counting: 0 at the value, minus infinity elsewhere."""
        return torch.where((draw.weight == self.value).all(), 0.0, -torch.inf)

    def mean(self) -> Tensor:
        return self.value

    def sd(self) -> Tensor:
        return torch.zeros_like(self.value.real)
