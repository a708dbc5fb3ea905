"""Bayes' rule itself: where the posterior is known, learning part by part arrives at it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import postprior

NOISE_SD, PRIOR_SD, PARTS, PER_PART = 0.7, 1.0, 20, 400


def linear_problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Data whose twentieths are all orthogonal, so that each posterior factorises, and the exact posterior."""
    g = torch.Generator().manual_seed(0)
    blocks = [torch.linalg.qr(torch.randn(PER_PART, 3, generator=g, dtype=torch.float64))[0] for _ in range(PARTS)]
    x = torch.cat(blocks) * PER_PART**0.5
    y = x @ torch.tensor([0.8, -1.5, 0.3], dtype=torch.float64)
    y = y + NOISE_SD * torch.randn(len(x), generator=g, dtype=torch.float64)
    precision = (x.T @ x) / NOISE_SD**2 + torch.eye(3, dtype=torch.float64) / PRIOR_SD**2
    return x, y, torch.linalg.solve(precision, x.T @ y / NOISE_SD**2), precision.diag() ** -0.5


def single_layer(num_inputs: int) -> nn.Linear:
    network = nn.Linear(num_inputs, 1, bias=False).double()
    nn.init.zeros_(network.weight)
    return network


ORDERS: dict[str, Callable[[list[int]], list[int]]] = {
    "as they come": lambda numbers: numbers,
    "backwards": lambda numbers: numbers[::-1],
    "odd ones first": lambda numbers: numbers[1::2] + numbers[::2],
}


@pytest.mark.parametrize(
    ("num_parts", "order"),
    [(1, "as they come"), (5, "as they come"), (20, "as they come"), (5, "backwards"), (20, "odd ones first")],
)
def test_linear_gaussian_parts_end_at_the_exact_posterior(num_parts: int, order: str) -> None:
    x, y, mean, sd = linear_problem()
    learner = postprior.Learner(
        single_layer(3),
        likelihood=postprior.Gaussian(sd=NOISE_SD),
        prior_sd=PRIOR_SD,
        steps=500,
        learning_rate=0.02,
        schedule="linear",
        batch_size=len(x),
        start_sd=0.003,
        local_reparameterization=True,
        num_samples=2,
        score_samples=0,
    )
    parts = list(zip(x.chunk(num_parts), y.chunk(num_parts), strict=True))
    for number in ORDERS[order](list(range(num_parts))):
        learner.absorb(parts[number])
    found_mean, found_sd = learner.belief.mean()["weight"][0], learner.belief.sd()["weight"][0]
    assert ((found_mean - mean) / sd).abs().max() < 0.01
    assert (found_sd / sd - 1).abs().max() < 0.01


def logistic_problem() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(160, 2, generator=g, dtype=torch.float64)
    chance = (x @ torch.tensor([1.0, -0.7], dtype=torch.float64)).sigmoid()
    return x, torch.bernoulli(chance, generator=g)


Moments = tuple[np.ndarray, np.ndarray]
"""Means and standard deviations of both weights."""


class Grid:
    """The logistic posterior on a fine grid of both weights."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        axis = np.linspace(-3, 4, 701)
        self.a, self.b = np.meshgrid(axis, axis, indexing="ij")
        logits = x.numpy() @ np.stack([self.a.ravel(), self.b.ravel()])
        log_likelihood = (y.numpy()[:, None] * logits - np.logaddexp(0, logits)).sum(0).reshape(self.a.shape)
        self.log_joint = log_likelihood - (self.a**2 + self.b**2) / (2 * PRIOR_SD**2)
        mass = np.exp(self.log_joint - self.log_joint.max())
        self.mass = mass / mass.sum()

    def moments(self) -> Moments:
        mean = np.array([(self.mass * w).sum() for w in (self.a, self.b)])
        sd = np.sqrt([(self.mass * (w - m) ** 2).sum() for w, m in zip((self.a, self.b), mean, strict=True)])
        return mean, sd

    def best_factorized(self) -> Moments:
        """The factorised Gaussian closest in KL(q ‖ p), found without any of our code."""

        def kl(parameters: np.ndarray) -> float:
            mean, sd = parameters[:2], np.exp(parameters[2:])
            log_q = sum(
                -0.5 * ((w - m) / s) ** 2 - np.log(s) for w, m, s in zip((self.a, self.b), mean, sd, strict=True)
            )
            q = np.exp(log_q)
            q /= q.sum()
            return float((q * (log_q - self.log_joint)).sum())

        mean, sd = self.moments()
        best = minimize(kl, np.concatenate([mean, np.log(sd)]), method="BFGS", options={"gtol": 1e-6})
        return best.x[:2], np.exp(best.x[2:])


@pytest.fixture(scope="module")
def grid() -> Grid:
    return Grid(*logistic_problem())


@pytest.fixture(scope="module")
def exact(grid: Grid) -> Moments:
    return grid.moments()


@pytest.fixture(scope="module")
def best(grid: Grid) -> Moments:
    return grid.best_factorized()


@pytest.mark.parametrize("num_parts", [1, 4])
def test_logistic_weights_agree_with_a_grid(num_parts: int, exact: Moments, best: Moments) -> None:
    x, y = logistic_problem()
    exact_mean, exact_sd = exact
    best_mean, best_sd = best
    # What the family itself misses here: its correlation.
    assert np.abs((best_mean - exact_mean) / exact_sd).max() < 0.05
    assert np.abs(best_sd / exact_sd - 1).max() < 0.08
    learner = postprior.Learner(
        single_layer(2),
        likelihood="bernoulli",
        prior_sd=PRIOR_SD,
        steps=700,
        learning_rate=0.04,
        schedule="linear",
        batch_size=len(x),
        start_sd=0.1,
        local_reparameterization=True,
        num_samples=2,
        score_samples=0,
    )
    for part in zip(x.chunk(num_parts), y.chunk(num_parts), strict=True):
        learner.absorb(part)
    mean, sd = learner.belief.mean()["weight"][0].numpy(), learner.belief.sd()["weight"][0].numpy()
    # In one part only the optimiser's noise remains; each further part projects onto the family once more.
    tolerance = 0.03 if num_parts == 1 else 0.1
    assert np.abs((mean - best_mean) / exact_sd).max() < tolerance
    assert np.abs(sd / best_sd - 1).max() < tolerance


def test_temperature_raises_each_part_to_a_power() -> None:
    """temperature τ is Bayes with every example counted 1/τ times: the precision is the prior's plus n / (τ sd²)."""
    x, y, _, _ = linear_problem()
    x, y, temperature = x[: 2 * PER_PART], y[: 2 * PER_PART], 0.25
    learner = postprior.Learner(
        single_layer(3),
        likelihood=postprior.Gaussian(sd=NOISE_SD),
        prior_sd=PRIOR_SD,
        temperature=temperature,
        steps=500,
        learning_rate=0.04,
        schedule="linear",
        batch_size=len(x),
        start_sd=0.005,
        local_reparameterization=True,
        num_samples=2,
        score_samples=0,
    )
    for part in zip(x.chunk(2), y.chunk(2), strict=True):
        learner.absorb(part)
    precision = (x.T @ x) / (temperature * NOISE_SD**2) + torch.eye(3, dtype=torch.float64) / PRIOR_SD**2
    mean = torch.linalg.solve(precision, x.T @ y / (temperature * NOISE_SD**2))
    sd = precision.diag() ** -0.5
    # The optimiser's noise: over six seeds up to 0.037 of the mean, in units of sd, and 0.014 of the sd.
    assert ((learner.belief.mean()["weight"][0] - mean) / sd).abs().max() < 0.05
    assert (learner.belief.sd()["weight"][0] / sd - 1).abs().max() < 0.02
