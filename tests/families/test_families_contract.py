"""Each family keeps the contract; oracles are loops over torch.distributions and plain numbers."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.distributions import MultivariateNormal, Normal

from contracts.family_contract import FamilyContract, generator, normal, positive
from postprior.families import FAMILIES, Channelwise, Draw, Factorized, Family, Multiplicative, Point
from postprior.families.multiplicative import WIDEST_LATENT_PRIOR, WIDEST_LATENT_START


class TestPoint(FamilyContract):
    family = Point
    spreads = False

    def make(self, seed: int) -> Point:
        return Point(normal(self.shape, seed))

    def oracle_log_density(self, member: Family, draw: Draw) -> float:
        assert isinstance(member, Point)
        same = all(a == b for a, b in zip(draw.weight.flatten().tolist(), member.value.flatten().tolist(), strict=True))
        return 0.0 if same else -math.inf

    def asked_sd(self, mean: Tensor, sd: Tensor) -> Tensor:
        return torch.zeros_like(sd)


class TestFactorized(FamilyContract):
    family = Factorized
    gives_local_moments = True

    def make(self, seed: int) -> Factorized:
        return Factorized(normal(self.shape, seed), positive(self.shape, seed + 10).log())

    def oracle_log_density(self, member: Family, draw: Draw) -> float:
        assert isinstance(member, Factorized)
        values = zip(*(t.flatten().tolist() for t in (draw.weight, member.mu, member.log_sd)), strict=True)
        return sum(-0.5 * math.log(2 * math.pi) - s - (w - m) ** 2 / (2 * math.exp(s) ** 2) for w, m, s in values)


class TestFactorizedScalar(TestFactorized):
    shape = ()


class TestChannelwise(FamilyContract):
    family = Channelwise

    def make(self, seed: int) -> Channelwise:
        size = math.prod(self.shape[2:])
        lower = normal((*self.shape[:2], size * (size - 1) // 2), seed + 20)
        return Channelwise(normal(self.shape, seed), lower, positive((*self.shape[:2], size), seed + 10).log())

    def oracle_log_density(self, member: Family, draw: Draw) -> float:
        assert isinstance(member, Channelwise)
        total = 0.0
        for n in range(self.shape[0]):
            for c in range(self.shape[1]):
                block = MultivariateNormal(member.mu[n, c].flatten(), covariance(member, n, c))
                total += float(block.log_prob(draw.weight[n, c].flatten()).detach())
        return total

    def test_the_covariance_of_draws_is_that_of_each_filter_channel(self) -> None:
        member, source = self.make(1), generator(0)
        with torch.no_grad():
            samples = torch.stack([member.draw(source).weight.flatten() for _ in range(4000)])
        size = math.prod(self.shape[2:])
        expected = torch.zeros(samples.shape[1], samples.shape[1], dtype=torch.float64)
        for n in range(self.shape[0]):
            for c in range(self.shape[1]):
                start = (n * self.shape[1] + c) * size
                expected[start : start + size, start : start + size] = covariance(member, n, c).detach()
        gaps = samples - member.mu.detach().flatten()
        products = gaps.unsqueeze(2) * gaps.unsqueeze(1)
        error = products.std(0) / 4000**0.5
        assert ((products.mean(0) - expected).abs() <= 5 * error).all()


class TestChannelwiseSingle(TestChannelwise):
    shape = (3, 2, 1, 1)  # a 1 x 1 kernel has nothing below its diagonal

    def test_a_draw_has_the_gradient_of_its_finite_differences(self) -> None:
        member = self.make(1)
        (member.draw(generator(3)).weight.square()).sum().backward()
        assert member.mu.grad is not None
        assert member.log_diagonal.grad is not None
        assert member.mu.grad.all()
        assert member.log_diagonal.grad.all()


class TestMultiplicative(FamilyContract):
    family = Multiplicative
    gives_local_moments = True
    num_moment_draws = 256
    sd_rtol = 0.2  # mean() and sd() come from 256 antithetic pairs

    def make(self, seed: int) -> Multiplicative:
        member = Multiplicative.from_gaussian(normal(self.shape, seed), positive(self.shape, seed + 10), generator(0))
        return scrambled(member, seed)

    def asked_sd(self, mean: Tensor, sd: Tensor) -> Tensor:
        """√(σ² + μ² Var[z]): the multipliers widen the Gaussian that holds at z = 1."""
        return (sd.square() + (WIDEST_LATENT_START * mean).square()).sqrt()

    def oracle_log_density(self, member: Family, draw: Draw) -> float:
        assert isinstance(member, Multiplicative)
        assert draw.latent is not None
        given_latent = Normal(draw.latent * member.mu, member.log_sd.exp()).log_prob(draw.weight).sum()
        return float(given_latent.detach()) + plain_latent_log_density(member, draw.latent)

    def test_from_gaussian_at_multipliers_of_one_is_exactly_what_was_asked(self) -> None:
        mean, sd = normal(self.shape, 1), positive(self.shape, 2)
        member = Multiplicative.from_gaussian(mean, sd, generator(0))
        found = member.local_moments(Draw(mean, torch.ones_like(member.latent_mean)))
        assert found is not None
        torch.testing.assert_close(found[0].detach(), mean, rtol=0, atol=0)
        torch.testing.assert_close(found[1].detach(), sd.square(), rtol=1e-12, atol=0)
        assert float(member.latent_log_sd.exp().detach().min()) == pytest.approx(WIDEST_LATENT_START)

    def test_the_flow_of_a_start_is_the_identity_and_its_first_prior_has_none(self) -> None:
        mean, sd = normal(self.shape, 1), positive(self.shape, 2)
        started = Multiplicative.from_gaussian(mean, sd, generator(0))
        base = normal(tuple(started.latent_mean.shape), 3)
        torch.testing.assert_close(started._flow(base).detach(), base, rtol=0, atol=0)
        prior = Multiplicative.first_prior(mean, sd, generator(0))
        assert len(prior.couplings) == 0
        z = normal(tuple(prior.latent_mean.shape), 4)
        expected = Normal(torch.ones_like(z), latent_widths(mean, sd, WIDEST_LATENT_PRIOR)).log_prob(z).sum()
        torch.testing.assert_close(prior.latent_log_density(z).detach(), expected, rtol=1e-12, atol=0)

    def test_multipliers_move_pretrained_weights_no_further_than_their_sd(self) -> None:
        mean, sd = 3 + normal(self.shape, 1), torch.full(self.shape, 1e-3, dtype=torch.float64)
        prior = Multiplicative.first_prior(mean, sd, generator(0))
        torch.testing.assert_close(
            prior.latent_log_sd.detach().exp(), latent_widths(mean, sd, WIDEST_LATENT_PRIOR), rtol=1e-12, atol=0
        )
        assert float(prior.latent_log_sd.detach().exp().max()) < 1e-3


def latent_widths(mean: Tensor, sd: Tensor, widest: float) -> Tensor:
    """The ratio of sd to mean, in root mean square, over the weights of each multiplier, one by one."""
    conv = mean.dim() > 2
    latent_shape = (*mean.shape[:2], *(1,) * (mean.dim() - 2)) if conv else (1, mean.shape[1])
    widths = torch.empty(latent_shape, dtype=mean.dtype)
    for i in range(latent_shape[0]):
        for j in range(latent_shape[1]):
            m, s = (mean[i, j], sd[i, j]) if conv else (mean[:, j], sd[:, j])
            widths[i, j] = min(widest, float(s.norm() / m.norm()))
    return widths


class TestMultiplicativeDense(TestMultiplicative):
    shape = (4, 5)  # an odd number of multipliers, one per input

    def test_one_multiplier_serves_a_whole_input(self) -> None:
        assert self.make(1).latent_mean.shape == (1, 5)


class TestMultiplicativeSingle(TestMultiplicative):
    shape = (4, 1)  # one multiplier leaves nothing to couple

    def test_there_is_no_flow(self) -> None:
        assert len(self.make(1).couplings) == 0


def test_every_family_keeps_the_contract() -> None:
    assert {kept.family for kept in FamilyContract.__subclasses__()} == set(FAMILIES.values())


def scrambled(member: Multiplicative, seed: int) -> Multiplicative:
    """The member with every number of its flow moved away from its start."""
    with torch.no_grad():
        member.latent_mean.add_(normal(tuple(member.latent_mean.shape), seed + 30, 0.3))
        member.latent_log_sd.add_(0.5 + normal(tuple(member.latent_log_sd.shape), seed + 40, 0.3))
        for i, step in enumerate(member._couplings()):
            for j, parameter in enumerate(step.parameters()):
                scale = 0.15 if parameter.dim() == 2 else 0.3
                parameter.add_(normal(tuple(parameter.shape), seed + 50 + 10 * i + j, scale))
    return member


def covariance(member: Channelwise, n: int, c: int) -> Tensor:
    """L Lᵀ of one filter-channel, with L filled in element by element."""
    size = member.log_diagonal.shape[-1]
    factor = torch.zeros(size, size, dtype=torch.float64)
    lower = iter(member.lower[n, c].tolist())
    for row, log_scale in enumerate(member.log_diagonal[n, c].tolist()):
        for column in range(row):
            factor[row, column] = math.exp(log_scale) * next(lower)
        factor[row, row] = math.exp(log_scale)
    return factor @ factor.T


def plain_latent_log_density(member: Multiplicative, latent: Tensor) -> float:
    """log q(z): the flow undone number by number, its log-determinant from the Jacobian that autograd sees."""
    values = latent.flatten().tolist()
    for step in reversed(member._couplings()):
        first = 0 if step.decides_even else 1
        deciding, rest = values[first::2], values[1 - first :: 2]
        rows = zip(step.weight_in.tolist(), step.bias_in.tolist(), strict=True)
        hidden = [math.tanh(sum(w * (d - 1) for w, d in zip(row, deciding, strict=True)) + b) for row, b in rows]
        rows = zip(step.weight_out.tolist(), step.bias_out.tolist(), strict=True)
        out = [sum(w * h for w, h in zip(row, hidden, strict=True)) + b for row, b in rows]
        shifts, scales = out[: len(rest)], [2 * math.tanh(raw / 2) for raw in out[len(rest) :]]
        values[1 - first :: 2] = [(m - t) / math.exp(s) for m, t, s in zip(rest, shifts, scales, strict=True)]
    base = torch.tensor(values, dtype=torch.float64)
    shape = member.latent_mean.shape
    mapped = member._flow(base.view(shape)).detach()
    torch.testing.assert_close(mapped, latent.view(shape), rtol=1e-9, atol=1e-9)
    steps = jacobian(lambda vector: member._flow(vector.view(shape)).flatten(), base)
    assert isinstance(steps, Tensor)
    density = Normal(member.latent_mean.flatten(), member.latent_log_sd.exp().flatten()).log_prob(base).sum()
    return float((density - torch.linalg.slogdet(steps).logabsdet).detach())
