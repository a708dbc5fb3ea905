"""All factorised Gaussians of a network as two long vectors while it is trained.

A draw, the KL and the optimizer's step are then a few operations on long vectors rather than dozens for every tensor:
what the arithmetic of a belief costs beside the network's own is then small. The families' own tensors become windows
on the vectors, so that whoever reads them sees what was learned.

Shapes: P all weights that are gathered.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from postprior.families import Draw, Factorized, Family
from postprior.maths import gaussian


class Gathered:
    """The means and the logarithms of the widths of many factorised Gaussians, and those of their priors."""

    def __init__(self, posterior: Mapping[str, Factorized], prior: Mapping[str, Factorized]) -> None:
        self.shapes = {name: family.mu.shape for name, family in posterior.items()}
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.mu = nn.Parameter(_joined([family.mu for family in posterior.values()]))  # [P]
        self.log_sd = nn.Parameter(_joined([family.log_sd for family in posterior.values()]))  # [P]
        self._prior_mu = _joined([prior[name].mu for name in posterior])
        self._prior_log_sd = _joined([prior[name].log_sd for name in posterior])
        self._prior_precision_root = (-self._prior_log_sd).exp()
        means, widths = self._cut(self.mu.detach()), self._cut(self.log_sd.detach())
        for name, family in posterior.items():
            family.mu.data, family.log_sd.data = means[name], widths[name]

    def draw(self, generator: torch.Generator) -> dict[str, Draw]:
        """One sample of every tensor."""
        pieces = self._cut(gaussian.sample(self.mu, self.log_sd, generator))
        return {name: Draw(piece) for name, piece in pieces.items()}

    def mirrored(self, draws: Mapping[str, Draw]) -> dict[str, Draw]:
        """The draw on the other side of the mean."""
        weights = torch.cat([draws[name].weight.flatten() for name in self.shapes])
        return {name: Draw(piece) for name, piece in self._cut(2 * self.mu - weights).items()}

    def kl(self) -> Tensor:
        """KL(posterior ‖ prior) in nats, exact."""
        return _GaussianKL.apply(self.mu, self.log_sd, self._prior_mu, self._prior_log_sd, self._prior_precision_root)  # pyright: ignore[reportReturnType]

    def _cut(self, vector: Tensor) -> dict[str, Tensor]:
        pieces = vector.split(self._sizes)
        return {name: piece.view(shape) for piece, (name, shape) in zip(pieces, self.shapes.items(), strict=True)}


def gather(posterior: Mapping[str, Family], prior: Mapping[str, Family]) -> Gathered | None:
    """Joins the factorised Gaussians that learn, have one type and lie in one place; None where there are none."""
    chosen: dict[str, Factorized] = {}
    priors: dict[str, Factorized] = {}
    for name, family in posterior.items():
        old = prior[name]
        if isinstance(family, Factorized) and isinstance(old, Factorized) and family.mu.requires_grad:
            first = next(iter(chosen.values()), family)
            if (family.mu.dtype, family.mu.device) == (first.mu.dtype, first.mu.device):
                chosen[name], priors[name] = family, old
    return Gathered(chosen, priors) if chosen else None


class _GaussianKL(torch.autograd.Function):
    """``gaussian.kl`` with its gradient written down: autograd would take three times as many passes over memory."""

    @staticmethod
    def forward(ctx: Any, mu: Tensor, log_sd: Tensor, prior_mu: Tensor, prior_log_sd: Tensor, root: Tensor) -> Tensor:
        log_ratio = log_sd - prior_log_sd
        excess = torch.expm1(2 * log_ratio)
        distance = (mu - prior_mu).mul_(root)
        ctx.save_for_backward(excess, distance, root)
        return 0.5 * (excess - 2 * log_ratio).addcmul_(distance, distance).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        excess, distance, root = ctx.saved_tensors
        return (distance * root).mul_(gradient), excess * gradient, None, None, None


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
