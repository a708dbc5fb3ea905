"""All factorised Gaussians of a network as a few long vectors while it is trained.

A draw, the KL and the optimizer's step are then a few passes over memory rather than dozens of operations for every
tensor: what the arithmetic of a belief costs beside the network's own is then small. The families' own tensors become
windows on the vectors, so that whoever reads them sees what was learned.

The chain rule from the weights to the belief is so short that it is written down here instead of left to autograd:
with w = μ + s, s = σ ε, a slope g in w is g in μ and g s in log σ; a slope g in the variance v = σ² is 2 g v in log σ;
the KL's own slopes are known while its value is computed. So autograd ends at the weights drawn, or where outputs are
sampled at means and variances, and at the KL; ``settle`` takes their slopes to μ and log σ.
All vectors are made once: to fill new memory costs several times what the arithmetic does.

Shapes: P all weights that are gathered.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from postprior.errors import NetworkError
from postprior.families import Draw, Factorized, Family
from postprior.maths import gaussian

WITH_CACHES = frozenset({"cpu"})
"""Kinds of devices on which a few passes near each other cost less than one over everything."""


@final
class Gathered:
    """The means and the logarithms of the widths of many factorised Gaussians, and those of their priors.

    ``linear`` are the weights that, where outputs are sampled instead, need not be drawn.
    """

    def __init__(
        self, posterior: Mapping[str, Factorized], prior: Mapping[str, Factorized], linear: Collection[str] = ()
    ) -> None:
        self.shapes = {name: family.mu.shape for name, family in posterior.items()}
        self.mu = nn.Parameter(_joined([family.mu for family in posterior.values()]))  # [P]
        self.log_sd = nn.Parameter(_joined([family.log_sd for family in posterior.values()]))  # [P]
        self._prior_mu = _joined([prior[name].mu for name in posterior])
        prior_log_sd = _joined([prior[name].log_sd for name in posterior])
        self._prior_precision_root = gaussian.width(-prior_log_sd)
        self._sum_prior_log_sd = prior_log_sd.sum(dtype=torch.float64)
        self._minus_one = self.mu.new_full((), -1.0)
        self._kl: Tensor | None = None
        self._slope_mu, self._slope_log_sd = (torch.empty_like(self.mu, requires_grad=False) for _ in range(2))
        """Of the KL from a draw on, and of the whole objective once they are settled."""
        self._slopes = list(self._at_once())
        self._linear = frozenset(linear)
        self._local: _Moments | None = None
        self._drawn: list[_Drawn] = []
        self._spare: list[_Drawn] = []
        means, widths = cut(self.mu.detach(), self.shapes), cut(self.log_sd.detach(), self.shapes)
        for name, family in posterior.items():
            family.mu.data, family.log_sd.data = means[name], widths[name]

    def draw(self, generator: torch.Generator) -> dict[str, Draw]:
        """One sample of every tensor; where gradients are wanted, they reach μ and log σ by ``settle``."""
        if not torch.is_grad_enabled():
            sampled = gaussian.sample(self.mu, self.log_sd, generator)
            return {name: Draw(piece) for name, piece in cut(sampled, self.shapes).items()}
        drawn = self._take()
        with torch.no_grad():
            first, total = self._kl is None, self._sum_prior_log_sd.clone()
            for weight, shift, mu, log_sd, *others in self._near(drawn.weight, drawn.shift):
                width = gaussian.width(log_sd, out=weight)
                if first:
                    total += self._near_kl(mu, log_sd, width, *others)
                gaussian.fill_with_noise(shift, generator).mul_(width)
                torch.add(mu, shift, out=weight)
        if first:
            self._kl = total.to(self.mu.dtype).requires_grad_()
        return drawn.draws()

    def draw_locally(self, generator: torch.Generator) -> dict[str, Draw]:
        """The same where outputs are sampled by ``moments``: what only gives linear maps stands there at its mean."""
        return {
            name: Draw(mean if name in self._linear else _sampled(mean, variance, generator))
            for name, (mean, variance) in self.moments().items()
        }

    def moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Mean and variance of every tensor; their gradients reach μ and log σ by ``settle``."""
        if self._local is None:
            self._local = _Moments(self.mu, self.shapes)
        if self._kl is None:
            with torch.no_grad():
                total = self._sum_prior_log_sd.clone()
                for variance, mu, log_sd, *others in self._near(self._local.variance):
                    width = gaussian.width(log_sd, out=variance)
                    total += self._near_kl(mu, log_sd, width, *others)
                    variance.square_()
            self._kl = total.to(self.mu.dtype).requires_grad_()
        return self._local.each

    def mirrored(self, draws: Mapping[str, Draw]) -> dict[str, Draw]:
        """The draw on the other side of the mean."""
        drawn = self._take()
        with torch.no_grad():
            torch.cat([draws[name].weight.flatten() for name in self.shapes], out=drawn.weight)
            torch.sub(self.mu, drawn.weight, out=drawn.shift)
            torch.add(self.mu, drawn.shift, out=drawn.weight)
        return drawn.draws()

    def mirrored_locally(self, draws: Mapping[str, Draw]) -> dict[str, Draw]:
        """The same of a draw by ``draw_locally``."""
        return {
            name: draws[name] if draws[name].weight is mean else Draw(2 * mean - draws[name].weight)
            for name, (mean, _) in self.moments().items()
        }

    def kl(self) -> Tensor:
        """KL(posterior ‖ prior) in nats, exact, found with the last draw; its slopes go the same way."""
        assert self._kl is not None, "the KL is asked for between a draw and settle"
        return self._kl

    @torch.no_grad()
    def settle(self) -> None:
        """After the backward pass: from the slopes in what was drawn and in the KL to those in μ and log σ."""
        assert self._kl is not None, "there is a slope to settle only after a draw"
        weight_of_kl = torch.zeros_like(self._kl) if self._kl.grad is None else self._kl.grad
        drawn = [*self._drawn, *([self._local] if self._local else [])]
        for names, in_mu, in_log_sd in self._slopes:
            in_mu.mul_(weight_of_kl)
            in_log_sd.mul_(weight_of_kl)
            for each in drawn:
                each.settle(names, in_mu, in_log_sd)
        self.mu.grad, self.log_sd.grad = self._slope_mu, self._slope_log_sd
        self._spare += self._drawn
        self._drawn, self._kl = [], None

    def _at_once(self) -> Iterator[tuple[list[str], Tensor, Tensor]]:
        """Names of tensors and their slopes: a core takes one, while it is in the cache, and a GPU all of them."""
        if self.mu.device.type not in WITH_CACHES:
            yield list(self.shapes), self._slope_mu, self._slope_log_sd
            return
        in_mu, in_log_sd = (cut(vector, self.shapes) for vector in (self._slope_mu, self._slope_log_sd))
        for name in self.shapes:
            yield [name], in_mu[name], in_log_sd[name]

    def _take(self) -> "_Drawn":
        """A place for a draw whose slopes are still to come; the places of earlier steps are used again."""
        drawn = self._spare.pop() if self._spare else _Drawn(self.mu, self.shapes)
        self._drawn.append(drawn)
        return drawn

    def _near(self, *own: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Pieces of all vectors that fit into the cache together; a GPU takes the vectors whole."""
        prior = (self._prior_mu, self._prior_precision_root)
        vectors = (*own, self.mu, self.log_sd, *prior, self._slope_mu, self._slope_log_sd)
        size = gaussian.NEAR if self.mu.device.type in WITH_CACHES else max(1, self.mu.numel())
        return zip(*(vector.detach().split(size) for vector in vectors), strict=True)

    def _near_kl(
        self,
        mu: Tensor,
        log_sd: Tensor,
        width: Tensor,
        prior_mu: Tensor,
        precision_root: Tensor,
        slope_mu: Tensor,
        slope_log_sd: Tensor,
    ) -> Tensor:
        """The KL of some weights but for their Σ log σ̃; its slopes are written beside it."""
        # ``gaussian.kl`` has expm1 here, which keeps the digits where both widths agree. In a sum these digits do not
        # show, and the width, known already, is a fifth of the time; what is reported of a belief comes from there.
        ratio = torch.mul(width, precision_root, out=slope_log_sd)
        torch.addcmul(self._minus_one, ratio, ratio, out=slope_log_sd)
        distance = torch.sub(mu, prior_mu, out=slope_mu).mul_(precision_root)
        squares = slope_log_sd.sum() + torch.dot(distance, distance)
        slope_mu.mul_(precision_root)
        return 0.5 * squares - log_sd.sum(dtype=torch.float64)


@final
class _Drawn:
    """One draw of all weights: where autograd ends, and leaves the slopes."""

    def __init__(self, like: Tensor, shapes: Mapping[str, torch.Size]) -> None:
        self.weight, self.shift = (torch.empty_like(like, requires_grad=False) for _ in range(2))  # [P]
        self._pieces, self._shifts = _leaves(self.weight, shapes), cut(self.shift, shapes)

    def draws(self) -> dict[str, Draw]:
        return {name: Draw(piece) for name, piece in self._pieces.items()}

    def settle(self, names: Sequence[str], in_mu: Tensor, in_log_sd: Tensor) -> None:
        """Add what autograd has left in these tensors, which is nothing where nothing used them."""
        slope = _taken([self._pieces[name] for name in names])
        if slope is not None:
            shift = self._shifts[names[0]] if len(names) == 1 else self.shift
            in_mu.add_(slope.reshape(in_mu.shape))
            in_log_sd.addcmul_(slope.reshape(in_mu.shape), shift.reshape(in_mu.shape))


@final
class _Moments:
    """Means and variances of all weights: where autograd ends if outputs are sampled, and leaves the slopes."""

    def __init__(self, mu: Tensor, shapes: Mapping[str, torch.Size]) -> None:
        self.variance = torch.empty_like(mu, requires_grad=False)  # [P]
        self._variances = cut(self.variance, shapes)
        means, variances = _leaves(mu.detach(), shapes), _leaves(self.variance, shapes)
        self.each = {name: (means[name], variances[name]) for name in shapes}

    def settle(self, names: Sequence[str], in_mu: Tensor, in_log_sd: Tensor) -> None:
        """Add what autograd has left in these tensors, which is nothing where nothing used them."""
        for name in names:
            mean, variance = self.each[name]
            if mean.grad is not None and variance.grad is None:
                raise NetworkError(
                    f"{name}, the weight of a linear layer, is used where torch does not show it, such as in an "
                    "autograd function of the network's own: set local_reparameterization=False"
                )
        slope, slope_variance = (_taken([self.each[name][i] for name in names]) for i in range(2))
        if slope is not None and slope_variance is not None:
            variance = self._variances[names[0]] if len(names) == 1 else self.variance
            in_mu.add_(slope.reshape(in_mu.shape))
            in_log_sd.addcmul_(slope_variance.reshape(in_mu.shape), variance.reshape(in_mu.shape), value=2)


def gather(
    posterior: Mapping[str, Family], prior: Mapping[str, Family], linear: Collection[str] = ()
) -> Gathered | None:
    """Joins the factorised Gaussians that learn, have one type and lie in one place; None where there are none."""
    chosen: dict[str, Factorized] = {}
    priors: dict[str, Factorized] = {}
    for name, family in posterior.items():
        old = prior[name]
        if isinstance(family, Factorized) and isinstance(old, Factorized) and family.mu.requires_grad:
            first = next(iter(chosen.values()), family)
            if (family.mu.dtype, family.mu.device) == (first.mu.dtype, first.mu.device):
                chosen[name], priors[name] = family, old
    return Gathered(chosen, priors, linear) if chosen else None


def cut(vector: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Windows on a vector, one after another, each with a name and a shape."""
    pieces = vector.split([math.prod(shape) for shape in shapes.values()])
    return {name: piece.view(shape) for piece, (name, shape) in zip(pieces, shapes.items(), strict=True)}


def _leaves(vector: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    return {name: piece.requires_grad_() for name, piece in cut(vector, shapes).items()}


def _sampled(mean: Tensor, variance: Tensor, generator: torch.Generator) -> Tensor:
    return gaussian.sample_given_variance(mean.clone(), variance.clone(), gaussian.noise(mean, generator))


def _taken(leaves: Sequence[Tensor]) -> Tensor | None:
    """The slopes of the leaves, which lose them: of one as it is, of several in one vector."""
    slopes = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    if len(slopes) == 1 or all(slope is None for slope in slopes):
        return slopes[0]
    pairs = zip(leaves, slopes, strict=True)
    return torch.cat([(torch.zeros_like(leaf) if slope is None else slope).flatten() for leaf, slope in pairs])


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
