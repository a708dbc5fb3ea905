"""Likelihoods against torch.distributions, in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, distributions

import postprior
from postprior.errors import PartError, SettingError
from postprior.learning.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, as_likelihood

G = torch.Generator().manual_seed(0)
LOGITS = torch.randn(7, 4, generator=G, dtype=torch.float64)
OTHER = torch.randn(7, 4, generator=G, dtype=torch.float64)
LABELS = torch.randint(4, (7,), generator=G)
BITS = torch.randint(2, (7, 4), generator=G).double()
REALS = torch.randn(7, 4, generator=G, dtype=torch.float64)
COUNTS = torch.randint(6, (7, 4), generator=G).double()

CASES: dict[str, tuple[Likelihood, Tensor, Any]] = {
    "categorical": (Categorical(), LABELS, lambda out: distributions.Categorical(logits=out)),
    "bernoulli": (Bernoulli(), BITS, lambda out: distributions.Independent(distributions.Bernoulli(logits=out), 1)),
    "gaussian": (Gaussian(sd=0.7), REALS, lambda out: distributions.Independent(distributions.Normal(out, 0.7), 1)),
    "poisson": (Poisson(), COUNTS, lambda out: distributions.Independent(distributions.Poisson(out.exp()), 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_log_prob_and_moments(name: str) -> None:
    likelihood, targets, oracle = CASES[name]
    expected = oracle(LOGITS)
    checked = likelihood.check(LOGITS, targets, 0)
    torch.testing.assert_close(likelihood.log_prob(LOGITS, checked, {}), expected.log_prob(targets), rtol=1e-10, atol=0)
    predictive = likelihood.predictive(LOGITS, {})
    if name != "categorical":
        torch.testing.assert_close(predictive.mean, expected.mean, rtol=1e-10, atol=0)
        torch.testing.assert_close(predictive.variance, expected.variance, rtol=1e-10, atol=0)
    else:
        torch.testing.assert_close(predictive.mean, expected.probs, rtol=1e-10, atol=0)
    if predictive.entropy is not None:
        torch.testing.assert_close(predictive.entropy, expected.entropy(), rtol=1e-10, atol=0)
        torch.testing.assert_close(likelihood.entropy(predictive.mean, predictive.variance), expected.entropy())


@pytest.mark.parametrize("name", CASES)
def test_cross_entropy_is_the_expected_nll_under_the_old_outputs(name: str) -> None:
    likelihood, _, oracle = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = oracle(OTHER).sample((200_000,))
    nll = -torch.stack([oracle(LOGITS).log_prob(draws)]).mean(1)[0]
    if name == "poisson":  # ours leaves out E[log y!]
        nll = nll - (draws + 1).lgamma().sum(-1).mean(0)
    error = oracle(LOGITS).log_prob(draws).std(0) / 200_000**0.5
    assert ((likelihood.cross_entropy(OTHER, LOGITS, {}) - nll).abs() < 5 * error + 1e-9).all()


def test_learned_noise_takes_its_value_from_the_belief() -> None:
    values = {"log_sd": torch.tensor(math.log(0.3), dtype=torch.float64)}
    expected = distributions.Independent(distributions.Normal(LOGITS, 0.3), 1).log_prob(REALS)
    torch.testing.assert_close(Gaussian().log_prob(LOGITS, REALS, values), expected)
    assert Gaussian().unknowns() == {"log_sd": (0.0, 1.0)}
    assert Gaussian(sd=2.0).unknowns() == {}


def test_labels_of_every_pixel_are_summed() -> None:
    logits = torch.randn(3, 4, 5, 6, generator=G, dtype=torch.float64)
    labels = torch.randint(4, (3, 5, 6), generator=G)
    expected = distributions.Categorical(logits=logits.movedim(1, -1)).log_prob(labels).sum((1, 2))
    torch.testing.assert_close(Categorical().log_prob(logits, Categorical().check(logits, labels, 0), {}), expected)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets", "message"),
    [
        (Bernoulli(), torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2], [0, 0]]), "example 11 has target 2.0, expected"),
        (
            Poisson(),
            torch.zeros(3),
            torch.tensor([1.0, 2.5, 0.0]),
            "example 11 has target 2.5, expected a whole number",
        ),
        (Gaussian(1.0), torch.zeros(3, 1), torch.zeros(3, 2), r"targets have shape \(3, 2\), expected \(3, 1\)"),
        (Gaussian(1.0), torch.zeros(3), torch.tensor([0.0, 0.0, math.inf]), "example 12 has target inf"),
    ],
)
def test_bad_targets_are_named(likelihood: Likelihood, outputs: Tensor, targets: Tensor, message: str) -> None:
    with pytest.raises(PartError, match=message):
        likelihood.check(outputs, targets, 10)


def test_a_column_of_targets_never_broadcasts() -> None:
    """[B] beside [B, 1] would silently become [B, B]."""
    likelihood = Gaussian(sd=1.0)
    for outputs, targets in ((torch.zeros(5, 1), torch.ones(5)), (torch.zeros(5), torch.ones(5, 1))):
        found = likelihood.log_prob(outputs, likelihood.check(outputs, targets, 0), {})
        assert found.shape == (5,)


def test_names_objects_and_functions() -> None:
    assert as_likelihood("poisson") == Poisson()
    assert as_likelihood(Gaussian(sd=3.0)) == Gaussian(sd=3.0)
    custom = as_likelihood(lambda outputs, targets: -(outputs[:, 0] - targets).abs())
    assert custom.log_prob(torch.zeros(4, 1), torch.ones(4), {}).tolist() == [-1, -1, -1, -1]
    with pytest.raises(
        SettingError, match="'softmax' is not known: expected categorical, bernoulli, gaussian, poisson"
    ):
        as_likelihood("softmax")
    wrong = as_likelihood(lambda outputs, targets: (outputs - targets[:, None]).square())
    with pytest.raises(SettingError, match=r"returned shape \(4, 2\), expected \(4,\)"):
        wrong.log_prob(torch.zeros(4, 2), torch.ones(4), {})
    with pytest.raises(SettingError, match=r"Gaussian\(sd=-1\)"):
        postprior.Gaussian(sd=-1)
