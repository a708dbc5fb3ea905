import pytest
import torch
from torch import Tensor, nn

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
    monkeypatch.setattr("postprior.networks.gathered.NEAR", 7)  # so that a few weights are more than stay in a cache
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


def test_what_is_frozen_or_sampled_locally_is_left_apart() -> None:
    some, prior = made(frozen=("3.*",)), first_belief(network(), frozen=("3.*",))
    some.gather(prior.weights)
    assert some.gathered is not None
    assert sorted(some.ungathered()) == ["3.bias", "3.weight"]
    local = bayesianize(network(), local_reparameterization=True)
    local.gather(prior.weights)
    assert local.gathered is None
