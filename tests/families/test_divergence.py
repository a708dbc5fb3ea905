"""Every row of the table of divergences against torch.distributions, sums over a grid, and finite differences."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from test_families_contract import covariance, scrambled
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from contracts.family_contract import generator, normal, positive, slope_along
from postprior.errors import BeliefError
from postprior.families import FAMILIES, KL, Channelwise, Draw, Factorized, Family, Multiplicative, Point, frozen, kl
from postprior.maths import coupling, gaussian

Make = Callable[[tuple[int, ...], int], Family]
SHAPES = [(3, 2, 2, 2), (2, 3, 1), (1, 1, 3, 3)]


def point(shape: tuple[int, ...], seed: int) -> Point:
    return Point(normal(shape, seed))


def factorized(shape: tuple[int, ...], seed: int) -> Factorized:
    return Factorized(normal(shape, seed), positive(shape, seed + 10).log())


def channelwise(shape: tuple[int, ...], seed: int) -> Channelwise:
    size = math.prod(shape[2:])
    lower = normal((*shape[:2], size * (size - 1) // 2), seed + 20)
    return Channelwise(normal(shape, seed), lower, positive((*shape[:2], size), seed + 10).log())


def multiplicative(shape: tuple[int, ...], seed: int) -> Multiplicative:
    return scrambled(Multiplicative.from_gaussian(normal(shape, seed), positive(shape, seed), generator(0)), seed)


MAKES: dict[type[Family], Make] = {
    Point: point,
    Factorized: factorized,
    Channelwise: channelwise,
    Multiplicative: multiplicative,
}
GAUSSIANS = [pair for pair in KL if set(pair) <= {Factorized, Channelwise}]
PENALTIES = [(Point, Factorized), (Point, Channelwise)]
ROWS = [*GAUSSIANS, *PENALTIES, (Multiplicative, Multiplicative)]


def name_of_pair(value: object) -> str | None:
    return "-".join(kind.__name__ for kind in value) if isinstance(value, tuple) and value in KL else None


def blocks(family: Family) -> list[MultivariateNormal | Normal]:
    """The distribution of each filter-channel."""
    found: list[MultivariateNormal | Normal] = []
    for n, c in product(range(family.location.shape[0]), range(family.location.shape[1])):
        mean = family.location[n, c].flatten().detach()
        if isinstance(family, Channelwise):
            found.append(MultivariateNormal(mean, covariance(family, n, c)))
        else:
            assert isinstance(family, Factorized)
            found.append(MultivariateNormal(mean, family.log_sd[n, c].detach().flatten().exp().square().diag()))
    return found


def test_the_rows_tested_here_are_the_rows_of_the_table() -> None:
    assert set(ROWS) | {(Point, Point)} == set(KL)
    assert len(GAUSSIANS) == 4
    assert set(MAKES) == set(FAMILIES.values())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pair", GAUSSIANS, ids=name_of_pair)
def test_gaussian_rows_are_those_of_torch_distributions(
    pair: tuple[type[Family], type[Family]], shape: tuple[int, ...]
) -> None:
    posterior, prior = MAKES[pair[0]](shape, 1), frozen(MAKES[pair[1]](shape, 2))
    expected = sum(float(kl_divergence(q, p)) for q, p in zip(blocks(posterior), blocks(prior), strict=True))
    found = kl(posterior, prior, posterior.draw(generator(0)))
    assert found.shape == ()
    assert float(found.detach()) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("shape", [(), (7,), (0,), (4, 3), (2, 3, 1, 2, 2)])
def test_factorized_row_takes_any_shape(shape: tuple[int, ...]) -> None:
    q, p = factorized(shape, 1), factorized(shape, 2)
    expected = kl_divergence(Normal(q.mu, q.log_sd.exp()), Normal(p.mu, p.log_sd.exp())).sum()
    torch.testing.assert_close(kl(q, p, q.draw(generator(0))), expected, rtol=1e-8, atol=1e-12)


def test_a_wide_posterior_and_a_narrow_one_do_not_diverge_alike() -> None:
    # The other direction is another number: a row that confused its arguments would be caught here by hand.
    wide, narrow = (Factorized(torch.zeros(1).double(), torch.tensor([sd]).double().log()) for sd in (2.0, 1.0))
    draw = wide.draw(generator(0))
    assert float(kl(wide, narrow, draw).detach()) == pytest.approx(-math.log(2) + (4 - 1) / 2)
    assert float(kl(narrow, wide, draw).detach()) == pytest.approx(math.log(2) + (1 / 4 - 1) / 2)


def test_a_small_divergence_keeps_its_digits_in_float32() -> None:
    mean, log_sd = normal((1000,), 1).float(), positive((1000,), 2).log().float()
    moved = log_sd + normal((1000,), 3, 1e-4).float()
    exact = gaussian.kl(mean.double(), moved.double(), mean.double(), log_sd.double())
    assert float(exact) == pytest.approx(float((moved - log_sd).double().square().sum()), rel=1e-3)  # Σ (Δ log σ)²
    assert float(gaussian.kl(mean, moved, mean, log_sd)) == pytest.approx(float(exact), rel=2e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pair", PENALTIES, ids=name_of_pair)
def test_penalty_rows_are_minus_log_density(pair: tuple[type[Family], type[Family]], shape: tuple[int, ...]) -> None:
    posterior, prior = point(shape, 1), MAKES[pair[1]](shape, 2)
    values = posterior.value.detach().flatten(2).flatten(0, 1)
    expected = -sum(float(block.log_prob(value)) for block, value in zip(blocks(prior), values, strict=True))
    assert float(kl(posterior, prior, posterior.draw(generator(0))).detach()) == pytest.approx(expected, rel=1e-8)


def test_from_a_point_to_a_point_nothing_is_asked() -> None:
    posterior, prior = point((3, 2), 1), point((3, 2), 2)
    assert float(kl(posterior, prior, posterior.draw(generator(0)))) == 0


@pytest.mark.parametrize("pair", ROWS, ids=name_of_pair)
def test_gradient_is_that_of_finite_differences(pair: tuple[type[Family], type[Family]]) -> None:
    shape = (3, 2, 2, 2)
    posterior, prior = MAKES[pair[0]](shape, 1), frozen(MAKES[pair[1]](shape, 2))

    def divergence() -> Tensor:
        return kl(posterior, prior, posterior.draw(generator(5)))

    divergence().backward()
    for name, parameter in posterior.named_parameters():
        assert parameter.grad is not None, name
        along = normal(tuple(parameter.shape), 6)
        slope = slope_along(divergence, parameter, along)
        assert float((parameter.grad * along).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-7), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pair", ROWS, ids=name_of_pair)
def test_a_tight_prior_pulls_back_from_50_sd_away(pair: tuple[type[Family], type[Family]], dtype: torch.dtype) -> None:
    sd, away, shape = 1e-4, 50, (2, 3, 2, 2)
    old = normal(shape, 1)
    prior = frozen(pair[1].first_prior(old, torch.full_like(old, sd), generator(0)))
    posterior = pair[0].from_gaussian(old + away * sd, torch.full_like(old, sd), generator(0))
    prior, posterior = prior.to(dtype), posterior.to(dtype)
    draw = posterior.draw(generator(0))
    if draw.latent is not None:  # multipliers of one, so that the distance is what it is elsewhere
        draw = Draw(draw.weight, torch.ones_like(draw.latent))
    found = kl(posterior, prior, draw)
    (slope,) = torch.autograd.grad(found, posterior.location)
    exact = (posterior.location - prior.location).detach().double() / sd**2
    torch.testing.assert_close(slope.double(), exact, rtol=1e-5, atol=0)
    assert float(slope.mean()) == pytest.approx(away / sd, rel=1e-2)
    constant = 0.5 * math.log(2 * math.pi * sd**2) * old.numel() if pair[0] is Point else 0.0
    if isinstance(posterior, Multiplicative) and isinstance(prior, Multiplicative):
        constant = float((posterior.latent_log_density(draw.latent) - prior.latent_log_density(draw.latent)).detach())
    assert float(found.detach()) - constant == pytest.approx(away**2 / 2 * old.numel(), rel=1e-2)


@pytest.mark.parametrize("pair", sorted(set(product(FAMILIES.values(), repeat=2)) - set(KL), key=str))
def test_a_pair_that_is_not_in_the_table_names_those_that_are(pair: tuple[type[Family], type[Family]]) -> None:
    posterior, prior = (MAKES[kind]((2, 2, 2), seed) for seed, kind in enumerate(pair))
    with pytest.raises(BeliefError) as caught:
        kl(posterior, prior, posterior.draw(generator(0)))
    message = str(caught.value)
    assert f"from a {pair[0].__name__} posterior to a {pair[1].__name__} prior" in message
    assert all(f"({q.__name__}, {p.__name__})" in message for q, p in KL)


# The flow.


@pytest.mark.parametrize("shape", [(3, 2), (2, 5), (4, 1), (3, 4, 2, 2), (2, 3, 3)])
def test_the_density_of_multipliers_is_the_base_density_over_the_jacobian(shape: tuple[int, ...]) -> None:
    q = multiplicative(shape, 1)
    latent_shape = q.latent_mean.shape
    base = (q.latent_mean + q.latent_log_sd.exp() * normal(tuple(latent_shape), 3)).detach()
    steps = jacobian(lambda vector: q._flow(vector.view(latent_shape)).flatten(), base.flatten())
    assert isinstance(steps, Tensor)
    log_det = torch.linalg.slogdet(steps).logabsdet
    assert log_det.abs() > 1e-3 or q.latent_mean.numel() == 1
    expected = Normal(q.latent_mean, q.latent_log_sd.exp()).log_prob(base).sum() - log_det
    torch.testing.assert_close(q.latent_log_density(q._flow(base)), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("decides_even", [True, False])
@pytest.mark.parametrize("size", [2, 5, 6])
def test_a_coupling_is_inverted_and_both_ways_know_their_jacobian(size: int, decides_even: bool) -> None:
    deciding = (size + 1) // 2 if decides_even else size // 2
    shapes = [(4, deciding), (4,), (2 * (size - deciding), 4), (2 * (size - deciding),)]
    net = coupling.Conditioner(*(normal(shape, i + 1) for i, shape in enumerate(shapes)))
    vector = normal((size,), 9)
    for way, back in ((coupling.forward, coupling.inverse), (coupling.inverse, coupling.forward)):
        mapped, log_det = way(vector, net, decides_even=decides_even)
        steps = jacobian(lambda v, way=way: way(v, net, decides_even=decides_even)[0], vector)
        assert isinstance(steps, Tensor)
        torch.testing.assert_close(log_det, torch.linalg.slogdet(steps).logabsdet, rtol=1e-10, atol=1e-10)
        returned, log_det_back = back(mapped, net, decides_even=decides_even)
        torch.testing.assert_close(returned, vector, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(log_det_back, -log_det, rtol=1e-10, atol=1e-10)
        assert log_det.abs() > 1e-2


def nearby() -> tuple[Multiplicative, Multiplicative]:
    """Beliefs about a layer with two inputs, near enough to one another to keep the tails of an estimate short."""
    q, p = multiplicative((3, 2), 1), multiplicative((3, 2), 2)
    with torch.no_grad():
        p.latent_log_sd.add_(0.7)
        p.mu.lerp_(q.mu, 0.6)
    return q, p


class Grid:
    """Points that cover where the two multipliers may be: out to where eight sd of the flow's base lead."""

    def __init__(self, q: Multiplicative, num: int = 400) -> None:
        base = (q.latent_mean + q.latent_log_sd.exp() * square(8, 120).view(-1, 1, 2)).detach()
        reached = q._flow(base).detach().view(-1, 2)
        ends = zip(reached.amin(0).tolist(), reached.amax(0).tolist(), strict=True)
        axes = [torch.linspace(low, high, num, dtype=torch.float64) for low, high in ends]
        self.points = torch.cartesian_prod(*axes)
        self.cell = float((axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0]))

    @torch.no_grad()
    def log_density(self, member: Multiplicative) -> Tensor:
        """``latent_log_density`` of all points at once, which some of them are asked for one by one to confirm."""
        vectors, log_det = self.points, torch.zeros(len(self.points), dtype=torch.float64)
        for step in reversed(member._couplings()):
            vectors, step_log_det = coupling.inverse(vectors, step.net(), decides_even=step.decides_even)
            log_det = log_det + step_log_det
        found = Normal(member.latent_mean.flatten(), member.latent_log_sd.exp().flatten()).log_prob(vectors).sum(1)
        for i in range(0, len(vectors), len(vectors) // 50):
            one = member.latent_log_density(self.points[i].view(1, 2))
            torch.testing.assert_close(found[i] + log_det[i], one, rtol=1e-10, atol=1e-10)
        return found + log_det

    def integral(self, values: Tensor) -> float:
        return float(values.sum()) * self.cell


def square(width: float, num: int) -> Tensor:
    """Points of a square around zero, [num * num, 2]."""
    axis = torch.linspace(-width, width, num, dtype=torch.float64)
    return torch.cartesian_prod(axis, axis)


def test_the_flow_is_not_trivial() -> None:
    # Or else the tests below would say nothing of it: its Jacobian differs from place to place.
    q = multiplicative((3, 2), 1)
    places = [torch.full((2,), at, dtype=torch.float64) for at in (0.5, 1.5)]
    dets = [torch.linalg.det(jacobian(lambda v: q._flow(v.view(1, 2)).flatten(), at)) for at in places]
    assert float((dets[0] / dets[1]).log().abs()) > 0.05


def divergence_on_a_grid(q: Multiplicative, p: Multiplicative) -> tuple[float, float]:
    """KL(q ‖ p) of weights and multipliers together, summed where the multipliers are; and its share in them alone."""
    grid = Grid(q)
    log_q, log_p = grid.log_density(q), grid.log_density(p)
    with torch.no_grad():
        z = grid.points.unsqueeze(1)  # [G, 1, in]
        given = kl_divergence(Normal(z * q.mu, q.log_sd.exp()), Normal(z * p.mu, p.log_sd.exp())).sum((1, 2))
    both = grid.integral(log_q.exp() * (log_q - log_p + given))
    return both, grid.integral(log_q.exp() * (log_q - log_p))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_density_of_multipliers_integrates_to_one(seed: int) -> None:
    q = multiplicative((3, 2), seed)
    grid = Grid(q)
    assert grid.integral(grid.log_density(q).exp()) == pytest.approx(1, abs=1e-8)


@torch.no_grad()
def test_the_row_of_the_flow_averages_to_the_divergence_on_a_grid() -> None:
    # Our row is asked at multipliers that lie evenly in the flow's base, each with the base's own weight.
    q, p = nearby()
    white = square(7.5, 60)
    shares = (-0.5 * white.square().sum(1)).exp()
    latents = q._flow(q.latent_mean + q.latent_log_sd.exp() * white.view(-1, 1, 2))
    rows = torch.stack([kl(q, p, Draw(q.mu, latent)) for latent in latents])
    expected, _ = divergence_on_a_grid(q, p)
    assert float((shares * rows).sum() / shares.sum()) == pytest.approx(expected, rel=1e-8)


def test_the_estimate_is_unbiased_for_the_divergence_on_a_grid() -> None:
    q, p = nearby()
    expected, latent = divergence_on_a_grid(q, p)
    with torch.no_grad():
        source = generator(3)
        estimates = torch.stack([kl(q, p, q.draw(source)) for _ in range(4000)])
    error = float(estimates.std()) / len(estimates) ** 0.5
    assert float(estimates.mean()) == pytest.approx(expected, abs=4 * error)
    # The parts that a wrong estimate could leave out are each far larger than the error allowed for.
    assert min(latent, expected - latent) > 10 * error


def test_the_estimate_is_the_formulas_of_appendix_c() -> None:
    q, p = multiplicative((3, 4, 2, 2), 1), multiplicative((3, 4, 2, 2), 2)
    for seed in range(5):
        draw = q.draw(generator(seed))
        z = draw.latent
        assert z is not None
        variance, old_variance = (2 * q.log_sd).exp(), (2 * p.log_sd).exp()
        spread = variance + z.square() * (q.mu - p.mu).square()
        cross_entropy = (0.5 * (2 * math.pi * old_variance).log() + spread / (2 * old_variance)).sum()
        entropy = (0.5 * (2 * math.pi * math.e * variance).log()).sum()
        expected = cross_entropy - entropy + q.latent_log_density(z) - p.latent_log_density(z)
        torch.testing.assert_close(kl(q, p, draw), expected, rtol=1e-10, atol=1e-10)


def test_against_its_first_prior_around_zero_the_multipliers_widen_the_penalty() -> None:
    # Σ ½ (σ² + z² μ²)/σ̃² - ½ - log σ/σ̃, and the multipliers against N(1, 1), by hand.
    q = multiplicative((2, 3), 1)
    p = frozen(Multiplicative.first_prior(torch.zeros_like(q.mu), torch.full_like(q.mu, 0.7), generator(0)))
    draw = q.draw(generator(0))
    z = draw.latent
    assert z is not None
    ratio = ((2 * q.log_sd).exp() + (z * q.mu).square()) / 0.7**2
    expected = (0.5 * ratio - 0.5 - q.log_sd + math.log(0.7)).sum()
    expected = expected + q.latent_log_density(z) - Normal(torch.ones_like(z), 1.0).log_prob(z).sum()
    torch.testing.assert_close(kl(q, p, draw), expected, rtol=1e-10, atol=1e-10)
