from typing import Any

import pytest
import torch
from torch import Tensor, nn

from postprior.errors import NetworkError
from postprior.families import Factorized
from postprior.learning.objective import total_kl
from postprior.maths import gaussian
from postprior.networks.bayesian import BayesianNetwork
from postprior.networks.convert import bayesianize, first_belief
from postprior.networks.gathered import gather


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4), nn.BatchNorm1d(4)).double()


def made(family: str = "factorized", frozen: tuple[str, ...] = ()) -> BayesianNetwork:
    return bayesianize(network(), family, frozen=frozen, start_sd=0.3)


def gradients(bayesian: BayesianNetwork) -> dict[str, Tensor]:
    """Of each tensor of each family, wherever it is kept while training."""
    found: dict[str, Tensor] = {}
    if bayesian.gathered:
        for kind, vector in (("mu", bayesian.gathered.mu), ("log_sd", bayesian.gathered.log_sd)):
            assert vector.grad is not None
            sizes = [shape.numel() for shape in bayesian.gathered.shapes.values()]
            pieces = zip(bayesian.gathered.shapes.items(), vector.grad.split(sizes), strict=True)
            found |= {f"{name}.{kind}": piece.view(shape) for (name, shape), piece in pieces}
    for name, family in bayesian.ungathered().items():
        found |= {f"{name}.{k}": p.grad for k, p in family.named_parameters() if p.grad is not None}
    return found


@pytest.mark.parametrize("family", ["factorized", "channelwise", "multiplicative"])
@pytest.mark.parametrize("mirrored", [False, True])
def test_objective_and_gradient_equal_the_plain_ones(family: str, mirrored: bool) -> None:
    plain, joined = made(family), made(family)
    prior = first_belief(network(), family, prior_sd=0.7)
    joined.gather(prior.weights)
    assert joined.gathered is not None
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64)
    weights = {name: draw.weight for name, draw in plain.draw(torch.Generator().manual_seed(3)).items()}
    for bayesian in (plain, joined):
        draws = bayesian.draw(torch.Generator().manual_seed(4))
        # The two draw their noise in another order, so both are held to the same weights, each with its own gradient.
        draws = {
            n: d._replace(weight=d.weight + (weights[n] - d.weight).detach()) if d.latent is None else d
            for n, d in draws.items()
        }
        draws = bayesian.mirrored(draws) if mirrored else draws
        apart = bayesian.ungathered()
        kl = total_kl(apart, prior.weights, draws) + (bayesian.gathered.kl() if bayesian.gathered else 0)
        if family != "multiplicative":  # whose draws differ
            (kl + bayesian.run(draws, x).square().sum()).backward()
        else:
            kl.backward()
        bayesian.settle()
        found.append((kl.detach(), gradients(bayesian)))
    (one, of_plain), (other, of_joined) = found
    assert of_plain.keys() == of_joined.keys()
    if family == "multiplicative":
        pairs = [n for n in of_plain if n.partition(".")[2] in ("bias.mu", "bias.log_sd")]
        assert pairs
    else:
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-10)
        pairs = [n for n in of_plain if not n.endswith(("log_sd", "lower", "log_diagonal"))]
    for name in pairs:
        torch.testing.assert_close(of_plain[name], of_joined[name], rtol=1e-9, atol=1e-9)


def test_the_widths_learn_from_the_noise() -> None:
    """w = μ + σ ε: the slope in log σ is (w - μ) times the slope in w, and the KL's own beside it."""
    joined, prior = made(), first_belief(network(), prior_sd=0.7)
    joined.gather(prior.weights)
    assert joined.gathered is not None
    draws = joined.draw(torch.Generator().manual_seed(5))
    slopes = {name: torch.randn_like(draw.weight) for name, draw in draws.items()}
    torch.stack([(draws[name].weight * slope).sum() for name, slope in slopes.items()]).sum().backward()
    joined.settle()
    families = joined.families()
    for name, slope in slopes.items():
        distance = draws[name].weight.detach() - families[name].mean().detach()
        torch.testing.assert_close(gradients(joined)[f"{name}.log_sd"], slope * distance)
        torch.testing.assert_close(gradients(joined)[f"{name}.mu"], slope)


def test_the_kl_and_its_slopes_are_those_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postprior.maths.gaussian.NEAR", 7)  # so that a few weights are more than stay in a cache
    joined, prior = made(), first_belief(network(), prior_sd=0.7)
    gathered = gather(joined.families(), prior.weights)
    assert gathered is not None
    before = torch.cat([family.mean().flatten() for family in prior.weights.values()])
    for _ in range(2):  # the second time in places that the first one has left
        gathered.draw(torch.Generator().manual_seed(6))
        (3 * gathered.kl()).backward()
        value = gathered.kl().detach()
        gathered.settle()
        mu, log_sd = (vector.detach().clone().requires_grad_() for vector in (gathered.mu, gathered.log_sd))
        expected = gaussian.kl(mu, log_sd, before, torch.full_like(before, 0.7).log())
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=0)
        slopes = torch.autograd.grad(3 * expected, (mu, log_sd))
        torch.testing.assert_close((gathered.mu.grad, gathered.log_sd.grad), slopes, rtol=1e-11, atol=1e-12)
        with torch.no_grad():
            gathered.mu += 0.1


def test_several_draws_share_one_step() -> None:
    """Two independent draws and the mirror of each: each slope reaches the belief with the noise it was taken at."""
    joined, prior = made(), first_belief(network(), prior_sd=0.7)
    joined.gather(prior.weights)
    assert joined.gathered is not None
    g = torch.Generator().manual_seed(7)
    expected_mu = torch.zeros_like(joined.gathered.mu)
    expected_log_sd = torch.zeros_like(joined.gathered.mu)
    total: list[Tensor] = []
    means = torch.cat([family.mean().detach().flatten() for family in joined.families().values()])
    for _ in range(2):
        draws = joined.draw(g)
        for each in (draws, joined.mirrored(draws)):
            slope = torch.randn_like(means)
            weights = torch.cat([draw.weight.flatten() for draw in each.values()])
            total.append((weights * slope).sum())
            expected_mu += slope
            expected_log_sd += slope * (weights.detach() - means)
    torch.stack(total).sum().backward()
    joined.settle()
    torch.testing.assert_close(joined.gathered.mu.grad, expected_mu)
    torch.testing.assert_close(joined.gathered.log_sd.grad, expected_log_sd)


def test_families_see_what_the_vectors_learn() -> None:
    joined, prior = made(), first_belief(network())
    joined.gather(prior.weights)
    assert joined.gathered is not None
    with torch.no_grad():
        joined.gathered.mu.fill_(0.25)
        joined.gathered.log_sd.fill_(-2.0)
    for family in joined.families().values():
        assert isinstance(family, Factorized)
        assert (family.mu == 0.25).all()
        assert (family.log_sd == -2.0).all()
    belief = joined.belief()
    assert all(family.mu.untyped_storage().nbytes() == 8 * family.mu.numel() for family in belief.weights.values())


def test_what_is_frozen_is_left_apart() -> None:
    some, prior = made(frozen=("3.*",)), first_belief(network(), frozen=("3.*",))
    some.gather(prior.weights)
    assert some.gathered is not None
    assert sorted(some.ungathered()) == ["3.bias", "3.weight"]


# Where outputs are sampled.


def local(made_of: nn.Module, *, draws_are_seen: bool = False) -> BayesianNetwork:
    found = bayesianize(made_of, start_sd=0.3, local_reparameterization=True).train()
    found.gather(first_belief(made_of, prior_sd=0.7).weights, draws_are_seen=draws_are_seen)
    return found


def test_weights_of_linear_maps_are_not_drawn_unless_they_are_seen() -> None:
    means = {name: family.mean() for name, family in local(network()).families().items()}
    drawn = {name: not torch.equal(draw.weight, means[name]) for name, draw in local(network()).draw().items()}
    assert {name for name, one in drawn.items() if not one} == {"0.weight", "3.weight"}
    seen = local(network(), draws_are_seen=True)
    assert all(not torch.equal(draw.weight, means[name]) for name, draw in seen.draw().items())
    seen.eval()
    assert all(not torch.equal(draw.weight, means[name]) for name, draw in seen.draw().items())


class UsedInTwoWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.layer(inputs), inputs @ self.layer.weight.T, torch.stack([self.layer.weight]).sum(0)


def test_a_weight_that_was_not_drawn_is_drawn_once_where_it_is_used_in_another_way() -> None:
    bayesian = local(UsedInTwoWays().double())
    inputs, mean = torch.randn(4, 3, dtype=torch.float64), bayesian.families()["layer.weight"].mean().detach()
    draws = bayesian.draw()
    assert torch.equal(draws["layer.weight"].weight, mean)
    _, product, weight = bayesian.run(draws, inputs)
    torch.testing.assert_close(product, inputs @ weight.T)
    noises = torch.stack([(bayesian.run(draws, inputs)[2].detach() - mean) / 0.3 for _ in range(2000)])
    assert noises.mean(0).abs().max() < 0.1
    assert (noises.std(0) - 1).abs().max() < 0.08
    before = bayesian.run(draws, inputs)
    with bayesian.mirroring():
        after = bayesian.run(bayesian.mirrored(draws), inputs)
    expected = (inputs @ mean.T, inputs @ mean.T, mean)
    for one, other, middle in zip(before, after, expected, strict=True):
        torch.testing.assert_close((one + other) / 2, middle)


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.detach().clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient


class UsedOutOfSight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ Hidden.apply(self.layer.weight).T  # pyright: ignore[reportAttributeAccessIssue]


def test_a_weight_that_was_not_drawn_and_is_used_out_of_sight_is_refused() -> None:
    bayesian = local(UsedOutOfSight())
    bayesian.run(bayesian.draw(), torch.randn(4, 3)).sum().backward()
    with pytest.raises(NetworkError, match=r"layer\.weight.*out of|layer\.weight.*local_reparameterization=False"):
        bayesian.settle()
