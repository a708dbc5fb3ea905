"""FFG, the fully factorised Gaussian: every weight on its own."""

from collections.abc import Mapping
from typing import ClassVar, Self, final

import torch
from torch import Tensor, nn

from postprior.errors import BeliefError
from postprior.families.family import Draw, Family, Natural, Role, as_parameter
from postprior.maths import gaussian


@final
class Factorized(Family):
    """q(w) = Π N(wᵢ | μᵢ, σᵢ²), equation (3) of the paper."""

    roles: ClassVar[frozenset[Role]] = frozenset({"kernel", "dense", "other"})
    spread: ClassVar[frozenset[str]] = frozenset({"log_sd"})

    def __init__(self, mu: Tensor, log_sd: Tensor) -> None:
        super().__init__()
        self.mu = as_parameter(mu)
        self.log_sd = as_parameter(log_sd)

    @classmethod
    def from_gaussian(cls, mean: Tensor, sd: Tensor, generator: torch.Generator) -> Self:
        del generator
        return cls(mean, sd.log())

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        return cls(tensors["mu"], tensors["log_sd"])

    @property
    def location(self) -> nn.Parameter:
        return self.mu

    def draw(self, generator: torch.Generator) -> Draw:
        return Draw(gaussian.sample(self.mu, self.log_sd, generator))

    def mirrored(self, draw: Draw) -> Draw:
        return Draw(2 * self.mu - draw.weight)

    def log_density(self, draw: Draw) -> Tensor:
        return gaussian.log_density(draw.weight, self.mu, self.log_sd)

    def mean(self) -> Tensor:
        return self.mu

    def sd(self) -> Tensor:
        return self.log_sd.exp()

    def local_moments(self, draw: Draw) -> tuple[Tensor, Tensor] | None:
        del draw
        return self.mu, gaussian.variance(self.log_sd)

    def natural(self) -> Natural:
        precision = (-2 * self.log_sd.double()).exp()
        return Natural(precision, precision * self.mu)

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        if none := int((~(natural.precision > 0)).sum()):
            raise BeliefError(f"{none} of {natural.precision.numel()} weights would have no positive precision")
        return cls(natural.shift / natural.precision, -0.5 * natural.precision.log())
