"""Products of beliefs: against Bayes' rule where it has a closed form, and refused where there is none."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import postprior
from postprior.errors import BeliefError
from postprior.families import Channelwise, Factorized, kl
from postprior.learning.combine import divergence_by_layer, product, set_back, weights_per_layer
from postprior.maths import seeds
from postprior.networks.belief import Belief

NOISE_SD = 0.7


def orthogonal_part(seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = 5 * torch.linalg.qr(torch.randn(25, 3, generator=g, dtype=torch.float64))[0]
    return x, x @ torch.tensor([[0.8], [-1.5], [0.3]]).double() + NOISE_SD * torch.randn(25, 1, generator=g).double()


def bayes(prior: Belief, part: tuple[Tensor, Tensor]) -> Belief:
    """The exact posterior of linear regression on an orthogonal design."""
    x, y = part
    family = prior.weights["weight"]
    precision = family.sd()[0] ** -2 + (x.T @ x).diag() / NOISE_SD**2
    mean = (family.mean()[0] * family.sd()[0] ** -2 + (x.T @ y)[:, 0] / NOISE_SD**2) / precision
    found = Factorized(mean[None], -0.5 * precision.log()[None])
    counts = {"num_parts": prior.num_parts + 1, "num_examples": prior.num_examples + len(x)}
    return replace(prior, weights={"weight": found}, **counts)


def line() -> tuple[nn.Module, Belief]:
    network = nn.Linear(3, 1, bias=False).double()
    return network, postprior.first_belief(network, prior_sd=2.0)


def assert_equal(one: Belief, other: Belief, tolerance: float) -> None:
    for name, family in one.weights.items():
        for key, value in family.state_dict().items():
            torch.testing.assert_close(other.weights[name].state_dict()[key], value, rtol=tolerance, atol=tolerance)
    for name, value in one.buffers.items():
        torch.testing.assert_close(other.buffers[name], value, rtol=tolerance, atol=tolerance)
    assert (one.num_parts, one.num_examples, one.counts) == (other.num_parts, other.num_examples, other.counts)


def test_parts_learned_apart_and_multiplied_are_parts_learned_in_turn() -> None:
    network, base = line()
    base = bayes(base, orthogonal_part(99))
    parts = [orthogonal_part(seed) for seed in range(4)]
    in_turn = base
    for part in parts:
        in_turn = bayes(in_turn, part)
    apart = [bayes(base, part) for part in parts]
    assert_equal(in_turn, product(network, [*((each, 1.0) for each in apart), (base, -3.0)]), 1e-12)


def test_a_part_divided_out_was_never_seen() -> None:
    network, base = line()
    first, second, third = (orthogonal_part(seed) for seed in range(3))
    before = bayes(base, first)
    after = bayes(before, second)
    found = product(network, [(bayes(after, third), 1.0), (before, 1.0), (after, -1.0)])
    assert_equal(bayes(before, third), found, 1e-12)


def test_powers_need_not_be_whole() -> None:
    network, base = line()
    learned = bayes(base, orthogonal_part(0))
    half = product(network, [(base, 0.5), (learned, 0.5)])
    again = product(network, [(half, 2.0), (base, -1.0)])
    torch.testing.assert_close(again.mean(), learned.mean(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(again.sd(), learned.sd(), rtol=1e-12, atol=1e-12)


def test_evidence_that_is_not_there_cannot_be_taken_out() -> None:
    network, base = line()
    learned = bayes(base, orthogonal_part(0))
    with pytest.raises(BeliefError, match="weight: 3 of 3 weights would have no positive precision"):
        product(network, [(base, 2.0), (learned, -1.0)])


def kernels(family: str) -> tuple[nn.Module, Callable[[int], Belief]]:
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2)).double()

    def learned(seed: int, base: Belief | None = None) -> Belief:
        g = torch.Generator().manual_seed(seed)
        x = 3 * torch.randn(40, 1, 4, 4, generator=g).double() + seed
        part = postprior.as_part((x, torch.arange(40) % 2))
        settings = postprior.Settings(epochs=2, batch_size=20, score_samples=0)
        prior = base or postprior.first_belief(network, family, prior_sd=0.3, point=["1.*"], frozen=["1.*"])
        likelihood = postprior.Categorical()
        return postprior.absorb(network, prior=prior, part=part, likelihood=likelihood, settings=settings)[0]

    return network, learned


@pytest.mark.parametrize("family", ["factorized", "channelwise"])
def test_natural_parameters_add_up_in_every_layer(family: str) -> None:
    network, learned = kernels(family)
    base = learned(0)
    one, two = learned(1, base), learned(2, base)
    merged = product(network, [(one, 1.0), (two, 1.0), (base, -1.0)])
    for name in base.weights.keys() - base.points:
        flat = (merged, one, two, base)
        precisions = [torch.linalg.inv(_covariance(belief, name)) for belief in flat]
        means = [belief.weights[name].mean().flatten() for belief in flat]
        shifts = [precision @ mean[: len(precision)] for precision, mean in zip(precisions, means, strict=True)]
        for all_, first, second, shared in (precisions, shifts):
            torch.testing.assert_close(all_, first + second - shared, rtol=1e-8, atol=1e-8)


def _covariance(belief: Belief, name: str) -> Tensor:
    """Of the first kernel, or of the first nine weights."""
    family = belief.weights[name]
    if isinstance(family, Channelwise):
        factor = family.factor()[0, 0]
        return factor @ factor.T
    return torch.diag(family.sd().flatten()[:9] ** 2)


def test_running_statistics_are_those_of_all_that_was_seen() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    likelihood, settings = postprior.Gaussian(sd=1.0), postprior.Settings(epochs=1, score_samples=0)

    def learn(prior: Belief, seed: int) -> Belief:
        g = torch.Generator().manual_seed(seed)
        part = postprior.as_part((seed + (1 + seed) * torch.randn(30, 3, generator=g).double(), torch.zeros(30, 1)))
        return postprior.absorb(network, prior=prior, part=part, likelihood=likelihood, settings=settings)[0]

    base = learn(postprior.first_belief(network), 0)
    apart, in_turn = [learn(base, seed) for seed in (1, 2)], learn(learn(base, 1), 2)
    merged = product(network, [*((each, 1.0) for each in apart), (base, -1.0)])
    assert merged.counts == in_turn.counts == {"0": 90}
    for name in ("0.running_mean", "0.running_var"):
        torch.testing.assert_close(merged.buffers[name], in_turn.buffers[name], rtol=1e-10, atol=1e-10)
    forgotten = product(network, [(in_turn, 1.0), (base, 1.0), (learn(base, 1), -1.0)])
    assert forgotten.counts == {"0": 60}
    for name in ("0.running_mean", "0.running_var"):
        torch.testing.assert_close(forgotten.buffers[name], learn(base, 2).buffers[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", ["factorized", "channelwise"])
def test_where_a_posterior_is_less_sure_than_its_prior_it_is_set_back(family: str) -> None:
    shape = (3, 2, 2, 2)
    kind, generator = postprior.FAMILIES[family], torch.Generator().manual_seed(0)
    mean = torch.randn(shape, generator=generator).double()
    sd = torch.full(shape, 0.5).double()
    wider = sd.clone()
    wider[1, 0] = 0.6  # a whole kernel
    narrower = wider * torch.where(wider > 0.5, 1.0, 0.9)
    _, base = line()
    prior = replace(base, weights={"w": kind.from_gaussian(0 * mean, sd, generator)})
    posterior = replace(base, weights={"w": kind.from_gaussian(mean, narrower, generator)})
    found, count = set_back(posterior, prior)
    assert count == (4 if family == "factorized" else 1)
    kept = wider <= 0.5
    torch.testing.assert_close(found.mean()["w"], torch.where(kept, mean, 0.0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.sd()["w"], torch.where(kept, 0.45, 0.5).double(), rtol=1e-12, atol=1e-12)
    assert set_back(found, prior)[1] == 0


def test_what_has_no_product_is_refused_by_name() -> None:
    network, base = line()
    flow = postprior.first_belief(network, "multiplicative")
    with pytest.raises(BeliefError, match="weight: Multiplicative beliefs have no product in closed form"):
        product(network, [(flow, 2.0), (flow, -1.0)])
    with pytest.raises(BeliefError, match="weight is Factorized in one belief and Multiplicative in another"):
        product(network, [(base, 1.0), (flow, 1.0)])
    other = nn.Linear(3, 2, bias=False).double()
    with pytest.raises(BeliefError, match="different networks: weight differs in shape"):
        product(network, [(base, 1.0), (postprior.first_belief(other), 1.0)])
    with pytest.raises(BeliefError, match="only one of them has bias"):
        product(network, [(base, 1.0), (postprior.first_belief(nn.Linear(3, 1).double()), 1.0)])
    point = postprior.first_belief(network, "point")
    moved = replace(point, weights={"weight": postprior.FAMILIES["point"].from_tensors({"value": torch.ones(1, 3)})})
    with pytest.raises(BeliefError, match="weight: is known by a single value that changed"):
        product(network, [(point, 1.0), (moved, 1.0)])


def test_divergence_by_layer_is_the_kl_of_its_tensors() -> None:
    _, learned = kernels("channelwise")
    one, two = learned(0), learned(1)
    found = divergence_by_layer(one, two)
    assert found.keys() == weights_per_layer(one).keys() == {"0", "3"}
    assert weights_per_layer(one) == {"0": 30, "3": 26}
    draw = one.weights["0.weight"].draw(seeds.stream("cpu", 0))
    expected = sum(float(kl(one.weights[f"0.{n}"], two.weights[f"0.{n}"], draw)) for n in ("weight", "bias"))
    assert found["0"] == pytest.approx(expected, rel=1e-12)
    assert divergence_by_layer(one, one) == {"0": 0.0, "3": 0.0}


def test_divergence_of_flows_is_an_average_over_draws_and_the_same_every_time() -> None:
    network = nn.Linear(4, 3)
    prior = postprior.first_belief(network, "multiplicative", prior_sd=1.0)
    part = postprior.as_part((torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3))
    posterior, update = postprior.absorb(network, prior=prior, part=part, likelihood=postprior.Categorical())
    found = divergence_by_layer(posterior, prior)
    assert found == divergence_by_layer(posterior, prior)
    assert found["network"] == pytest.approx(update.kl, rel=0.5)
    assert found["network"] > 0
