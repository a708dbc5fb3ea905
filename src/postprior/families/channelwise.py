"""CFG, the channel-factorised Gaussian: a full covariance inside each filter-channel kernel.

Shapes: N filters, C channels, *S the kernel's own axes, K = ∏S weights in one kernel, P = K (K - 1) / 2.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor, nn

from postprior.errors import BeliefError
from postprior.families.family import Draw, Family, Natural, Role, as_parameter
from postprior.maths import cholesky, gaussian


@final
class Channelwise(Family):
    """q(w) = Π N(w_nc | μ_nc, L_nc L_ncᵀ), equation (4) of the paper, for the filters of convolutions.

    L has a positive diagonal by construction: L = diag(exp(log_diagonal)) (I + M), and ``lower`` holds M.
    """

    roles: ClassVar[frozenset[Role]] = frozenset({"kernel"})
    spread: ClassVar[frozenset[str]] = frozenset({"lower", "log_diagonal"})

    def __init__(self, mu: Tensor, lower: Tensor, log_diagonal: Tensor) -> None:
        super().__init__()
        self.mu = as_parameter(mu)  # [N, C, *S]
        self.lower = as_parameter(lower)  # [N, C, P]
        self.log_diagonal = as_parameter(log_diagonal)  # [N, C, K]
        self._inverse: tuple[object, Tensor] | None = None

    @classmethod
    def from_gaussian(cls, mean: Tensor, sd: Tensor, generator: torch.Generator) -> Self:
        del generator
        log_diagonal = sd.log().flatten(2)
        size = log_diagonal.shape[-1]
        return cls(mean, mean.new_zeros(*log_diagonal.shape[:-1], size * (size - 1) // 2), log_diagonal)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        return cls(tensors["mu"], tensors["lower"], tensors["log_diagonal"])

    @property
    def location(self) -> nn.Parameter:
        return self.mu

    def factor(self) -> Tensor:
        """L, [N, C, K, K]."""
        return cholesky.factor(self.lower, self.log_diagonal)

    def inverse_factor(self) -> Tensor:
        """L⁻¹, [N, C, K, K]; kept once computed where nothing trains, since a prior is asked at every step."""
        if self.lower.requires_grad:
            return cholesky.inverse(self.factor())
        key = (self.lower.device, self.lower.dtype, self.lower._version, self.log_diagonal._version)
        if self._inverse is None or self._inverse[0] != key:
            self._inverse = (key, cholesky.inverse(self.factor()))
        return self._inverse[1]

    def __getstate__(self) -> dict[str, Any]:
        # A copy counts its versions anew, so that what is kept here could pass for its own after it was trained.
        return {**vars(self), "_inverse": None}

    def draw(self, generator: torch.Generator) -> Draw:
        white = gaussian.noise(self.log_diagonal, generator)
        return Draw(cholesky.sample(self.mu.flatten(2), self.lower, self.log_diagonal, white).view_as(self.mu))

    def mirrored(self, draw: Draw) -> Draw:
        return Draw(2 * self.mu - draw.weight)

    def log_density(self, draw: Draw) -> Tensor:
        weight, mu = draw.weight.flatten(2), self.mu.flatten(2)
        return cholesky.log_density(weight, mu, self.inverse_factor(), self.log_diagonal)

    def mean(self) -> Tensor:
        return self.mu

    def sd(self) -> Tensor:
        return self.factor().square().sum(-1).sqrt().view_as(self.mu)

    def natural(self) -> Natural:
        inverse = cholesky.inverse(self.factor().double())
        precision = inverse.mT @ inverse
        return Natural(precision, cholesky.multiply(precision, self.mu.double().flatten(2)).view_as(self.mu))

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        factor = cholesky.factor_of_inverse(natural.precision)
        if none := int((~factor.isfinite().all((-2, -1))).sum()):
            raise BeliefError(f"{none} of {factor[..., 0, 0].numel()} kernels would have no positive precision")
        mean = cholesky.multiply(factor @ factor.mT, natural.shift.flatten(2)).view_as(natural.shift)
        return cls(mean, *cholesky.parts_of(factor))
