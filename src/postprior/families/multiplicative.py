"""MNF, multiplicative normalising flows, with the paper's joint belief over weights and multipliers (Appendix C).

Shapes: w [out, in] with z [1, in] in dense layers, w [N, C, *S] with z [N, C, 1...] in convolutions; D elements of z.
"""

from collections.abc import Mapping
from typing import ClassVar, Self, final

import torch
from torch import Tensor, nn

from postprior.families.family import Draw, Family, Role, as_parameter
from postprior.maths import coupling, gaussian

NUM_COUPLINGS = 2
HIDDEN_UNITS = 50
WIDEST_LATENT_PRIOR = 1.0
WIDEST_LATENT_START = 0.1
MOMENT_PAIRS = 256


@final
class Multiplicative(Family):
    """q(w, z) = q(z) Π N(w | z μ, σ²), with z = NF(z₀) and z₀ ~ N(m, s²).

    The multipliers z are parameters like any other, not auxiliary variables: the prior of the next part is the joint
    q(w, z), so log q̃(z) of the old flow is needed at the new z, and is exact because couplings invert in closed form.

    The paper leaves the first prior open. Ours is ``first_prior``: w | z ~ N(z μ̃, σ̃²) around the prior mean μ̃ (zero,
    or pretrained weights) and z ~ N(1, s²). Each s is the ratio of σ̃ to |μ̃| over the weights that share the
    multiplier, so that it moves them no further than σ̃ does, and 1 at most. With μ̃ = 0 the weights do not depend on
    z, and the prior over w alone is N(0, σ̃²), the same as that of the other families.
    """

    roles: ClassVar[frozenset[Role]] = frozenset({"kernel", "dense"})
    spread: ClassVar[frozenset[str]] = frozenset({"log_sd", "latent_log_sd"})

    def __init__(
        self, mu: Tensor, log_sd: Tensor, latent_mean: Tensor, latent_log_sd: Tensor, couplings: list["Coupling"]
    ) -> None:
        super().__init__()
        self.mu = as_parameter(mu)
        self.log_sd = as_parameter(log_sd)
        self.latent_mean = as_parameter(latent_mean)
        self.latent_log_sd = as_parameter(latent_log_sd)
        self.couplings = nn.ModuleList(couplings)

    @classmethod
    def from_gaussian(cls, mean: Tensor, sd: Tensor, generator: torch.Generator) -> Self:
        """The start of a posterior: multipliers close to one, a flow that is still the identity."""
        latent_mean = _ones_for(mean)
        size = latent_mean.numel()
        # A single multiplier leaves nothing to couple; its Gaussian says all there is.
        count = NUM_COUPLINGS if size > 1 else 0
        couplings = [Coupling.identity(size, i % 2 == 0, latent_mean, generator) for i in range(count)]
        return cls(mean, sd.log(), latent_mean, _latent_sd(mean, sd, WIDEST_LATENT_START).log(), couplings)

    @classmethod
    def first_prior(cls, mean: Tensor, sd: Tensor, generator: torch.Generator) -> Self:
        """Independent N(mean, sd²) at z = 1, and z ~ N(1, s²) without a flow."""
        del generator
        latent_mean = _ones_for(mean)
        return cls(mean, sd.log(), latent_mean, _latent_sd(mean, sd, WIDEST_LATENT_PRIOR).log(), [])

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        names = coupling.Conditioner._fields
        count = sum(key.endswith(names[0]) for key in tensors)
        couplings = [
            Coupling(coupling.Conditioner(*(tensors[f"couplings.{i}.{name}"] for name in names)), i % 2 == 0)
            for i in range(count)
        ]
        gaussians = (tensors["mu"], tensors["log_sd"], tensors["latent_mean"], tensors["latent_log_sd"])
        return cls(*gaussians, couplings)

    @property
    def location(self) -> nn.Parameter:
        return self.mu

    def draw(self, generator: torch.Generator) -> Draw:
        white = gaussian.noise(self.latent_mean, generator)
        base = torch.addcmul(self.latent_mean, self.latent_log_sd.exp(), white)
        latent, log_det = self._flow_and_log_det(base)
        # Of the base only its width depends on what is learned: where it is wide, every point is less likely.
        known = gaussian.log_density_of_white(white) - self.latent_log_sd.sum() - log_det
        return Draw(gaussian.sample(latent * self.mu, self.log_sd, generator), latent, known)

    def mirrored(self, draw: Draw) -> Draw:
        """Mirrored given z, where the belief is symmetric."""
        assert draw.latent is not None, "a draw of this family carries its multipliers"
        return draw._replace(weight=2 * draw.latent * self.mu - draw.weight)

    def log_density(self, draw: Draw) -> Tensor:
        """log q(w, z) = log q(w | z) + log q(z)."""
        assert draw.latent is not None, "a draw of this family carries its multipliers"
        given_latent = gaussian.log_density(draw.weight, draw.latent * self.mu, self.log_sd)
        return given_latent + self.latent_log_density(draw.latent)

    def latent_log_density(self, latent: Tensor) -> Tensor:
        """log q(z) at any z, by running the flow backwards."""
        vector, log_det = latent.flatten(), latent.new_zeros(())
        for step in reversed(self._couplings()):
            vector, step_log_det = coupling.inverse(vector, step.net(), decides_even=step.decides_even)
            log_det = log_det + step_log_det
        base = vector.view_as(self.latent_mean)
        return gaussian.log_density(base, self.latent_mean, self.latent_log_sd) + log_det

    def local_moments(self, draw: Draw) -> tuple[Tensor, Tensor] | None:
        assert draw.latent is not None, "a draw of this family carries its multipliers"
        return draw.latent * self.mu, gaussian.variance(self.log_sd)

    def mean(self) -> Tensor:
        """μ E[z]; exact while the flow is the identity, else averaged over fixed antithetic draws."""
        return self._latents().mean(0) * self.mu

    def sd(self) -> Tensor:
        """√(σ² + μ² Var[z]), with the variance of z over the same draws as the mean."""
        return ((2 * self.log_sd).exp() + self.mu.square() * self._latents().var(0)).sqrt()

    def _latents(self) -> Tensor:
        # The seed is a constant: a mean is a property of the belief, and must not change from call to call.
        pairs = self.latent_mean.new_empty(MOMENT_PAIRS, *self.latent_mean.shape)
        white = gaussian.noise(pairs, torch.Generator().manual_seed(0))
        return self._flow(self.latent_mean + self.latent_log_sd.exp() * torch.cat([white, -white]))

    def _flow(self, base: Tensor) -> Tensor:
        return self._flow_and_log_det(base)[0]

    def _flow_and_log_det(self, base: Tensor) -> tuple[Tensor, Tensor]:
        vector = base.flatten(-self.latent_mean.dim())  # [..., D]
        log_det = vector.new_zeros(vector.shape[:-1])
        for step in self._couplings():
            vector, step_log_det = coupling.forward(vector, step.net(), decides_even=step.decides_even)
            log_det = log_det + step_log_det
        return vector.view_as(base), log_det

    def _couplings(self) -> list["Coupling"]:
        return [step for step in self.couplings if isinstance(step, Coupling)]


@final
class Coupling(nn.Module):
    """The weights of one coupling of the flow."""

    def __init__(self, net: coupling.Conditioner, decides_even: bool) -> None:
        super().__init__()
        self.weight_in = as_parameter(net.weight_in)
        self.bias_in = as_parameter(net.bias_in)
        self.weight_out = as_parameter(net.weight_out)
        self.bias_out = as_parameter(net.bias_out)
        self.decides_even = decides_even

    @classmethod
    def identity(cls, size: int, decides_even: bool, like: Tensor, generator: torch.Generator) -> Self:
        """A coupling that changes nothing yet, and from which every gradient but the first layer's is alive."""
        deciding = (size + 1) // 2 if decides_even else size // 2
        rest = size - deciding
        weight_in = gaussian.noise(like.new_empty(HIDDEN_UNITS, deciding), generator) / deciding**0.5
        outputs = like.new_zeros(2 * rest, HIDDEN_UNITS)
        net = coupling.Conditioner(weight_in, like.new_zeros(HIDDEN_UNITS), outputs, like.new_zeros(2 * rest))
        return cls(net, decides_even)

    def net(self) -> coupling.Conditioner:
        return coupling.Conditioner(self.weight_in, self.bias_in, self.weight_out, self.bias_out)


def _ones_for(weight: Tensor) -> Tensor:
    """Multipliers of one for a weight tensor: one per filter-channel of a kernel, one per input of a matrix."""
    shape = (1, weight.shape[1]) if weight.dim() == 2 else (*weight.shape[:2], *(1,) * (weight.dim() - 2))
    return weight.new_ones(shape)


def _latent_sd(mean: Tensor, sd: Tensor, widest: float) -> Tensor:
    """How wide multipliers may be to move their weights, in root mean square, no further than ``sd`` does."""
    shared = (0,) if mean.dim() == 2 else tuple(range(2, mean.dim()))
    ratio = sd.square().sum(shared, keepdim=True) / mean.square().sum(shared, keepdim=True)
    return ratio.sqrt().clamp(max=widest)
