"""What a family of beliefs about one weight tensor must be able to do."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from postprior.errors import BeliefError

Role = Literal["kernel", "dense", "other"]
"""How a layer uses a tensor: filters [N, C, *kernel] of a convolution, a matrix [out, in], or anything else."""


class Draw(NamedTuple):
    """One sample: the weights, and the latent variable they were drawn with where the family has one."""

    weight: Tensor
    latent: Tensor | None = None
    latent_log_density: Tensor | None = None
    """log q(z) at this z, where drawing it has told."""


@dataclass(frozen=True)
class Natural:
    """Natural parameters of Gaussians, in float64: they add up where distributions are multiplied."""

    precision: Tensor
    """Of every weight, or the matrix of every block."""
    shift: Tensor
    """Precision times mean, in the shape of the weights."""

    def __add__(self, other: "Natural") -> "Natural":
        return Natural(self.precision + other.precision, self.shift + other.shift)

    def __mul__(self, power: float) -> "Natural":
        """Of the distribution to this power."""
        return Natural(power * self.precision, power * self.shift)

    def surer_than(self, other: "Natural") -> Tensor:
        """Whether each weight, or each block, is known at least as well as there, in every direction."""
        gained = self.precision - other.precision
        if self.precision.shape == self.shift.shape:
            return gained >= 0
        # By no more than rounding below zero, where nothing was gained in some direction.
        least = -1e-9 * other.precision.diagonal(dim1=-2, dim2=-1).amax(-1)
        return torch.linalg.eigvalsh(gained).amin(-1) >= least

    def where(self, kept: Tensor, other: "Natural") -> "Natural":
        """These where ``kept``, the other's elsewhere."""

        def chosen(own: Tensor, instead: Tensor) -> Tensor:
            return torch.where(kept.reshape(*kept.shape, *(1 for _ in own.shape[kept.dim() :])), own, instead)

        return Natural(chosen(self.precision, other.precision), chosen(self.shift, other.shift))


class Family(nn.Module, ABC):
    """A distribution over one weight tensor. It serves as prior and as posterior: those are roles, not classes.

    A family is trainable (its tensors are parameters) until `frozen` makes the copy that leaves `absorb`.
    """

    roles: ClassVar[frozenset[Role]]
    """The roles this family is made for; tensors in other roles get the factorised Gaussian."""
    spread: ClassVar[frozenset[str]] = frozenset()
    """The parameters that say how wide the belief is; they may learn at a rate of their own."""

    @classmethod
    @abstractmethod
    def from_gaussian(cls, mean: Tensor, sd: Tensor, generator: torch.Generator) -> Self:
        """The member of this family that is, or in a stated way extends, independent N(mean, sd²)."""

    @classmethod
    def first_prior(cls, mean: Tensor, sd: Tensor, generator: torch.Generator) -> Self:
        """What is believed before any data: the same Gaussian, but for families that extend it in another way."""
        return cls.from_gaussian(mean, sd, generator)

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of ``state_dict``."""

    @property
    @abstractmethod
    def location(self) -> nn.Parameter:
        """The parameter that takes the place of the network's own."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> Draw:
        """One sample, differentiable in the family's parameters."""

    def mirrored(self, draw: Draw) -> Draw:
        """A draw just as likely, on the other side of the mean where the family is symmetric; else the draw itself.

        Averaging over both takes out every odd power of the noise, and with it most of the noise in the gradient.
        """
        return draw

    @abstractmethod
    def log_density(self, draw: Draw) -> Tensor:
        """The exact log-density of the whole draw, in nats: with a latent variable, of both together."""

    @abstractmethod
    def mean(self) -> Tensor:
        """The mean of every weight."""

    @abstractmethod
    def sd(self) -> Tensor:
        """The standard deviation of every weight."""

    def local_moments(self, draw: Draw) -> tuple[Tensor, Tensor] | None:
        """Mean and variance of every weight given the draw's latent, or None where weights are then correlated."""
        del draw
        return None

    def natural(self) -> Natural | None:
        """What adds up where beliefs are multiplied, or None where the family has no such thing."""
        return None

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """The inverse of ``natural``; a BeliefError where no distribution of this family has these parameters."""
        raise BeliefError(f"{cls.__name__} beliefs have no natural parameters")


FamilyT = TypeVar("FamilyT", bound=Family)


def frozen(family: FamilyT) -> FamilyT:
    """A detached copy that nothing trains."""
    return copy.deepcopy(family).requires_grad_(False)


def as_parameter(tensor: Tensor) -> nn.Parameter:
    """The tensor itself where it is a parameter already, so that a belief can share the network's own tensor."""
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach().clone())
