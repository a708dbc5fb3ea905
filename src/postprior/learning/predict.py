"""Asking a belief: predictions with their uncertainty, and how well they met the truth.

Shapes: B examples, S weight samples, * the axes of one prediction.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from postprior.batch import Batch, Part
from postprior.errors import PartError, SettingError
from postprior.families import Draw
from postprior.learning.checks import check_finite, check_unknowns, targets_of
from postprior.learning.forward import Forward, ForwardPrecision
from postprior.learning.likelihoods import Likelihood, Predictive
from postprior.maths import seeds
from postprior.networks.bayesian import BayesianNetwork, compiled_calls, from_belief, learnable, likelihood_values
from postprior.networks.belief import Belief

BATCHES_HELD = 16
"""Batches whose inputs and running averages are held at once, so that memory does not grow with the data."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted for B examples, averaged over weight samples. On the CPU."""

    mean: Tensor
    """The mean of the target: class probabilities [B, C], a rate, a number."""
    variance: Tensor
    """The target's predictive variance, noise and doubt about the weights together."""
    epistemic_variance: Tensor
    """The part of the variance that comes from doubt about the weights, and that more data would take away."""
    entropy: Tensor | None
    """In nats, [B]; None where the likelihood knows none."""
    mutual_information: Tensor | None
    """Between target and weights, in nats, [B]: the part of the entropy that comes from doubt about the weights."""
    samples: Tensor | None = None
    """Every sample's own mean [S, B, *], where they were asked for."""


@dataclass(frozen=True)
class Score:
    """How a belief met a part."""

    nll: float
    """Negative log of the averaged predictive density, per example, in nats."""
    accuracy: float | None
    """Share of targets predicted rightly; None for regression."""
    num_examples: int


def predict(
    network: nn.Module,
    belief: Belief,
    part: Part,
    likelihood: Likelihood,
    *,
    num_samples: int = 100,
    seed: int = 0,
    batch_size: int = 500,
    at_mean: bool = False,
    keep_samples: bool = False,
    precision: ForwardPrecision = "float32",
    compiled: bool = False,
) -> Prediction:
    """Predictions averaged over weight samples, or of the mean weights, in bounded memory; same seed, same samples.

    ``precision="bfloat16"`` computes linear maps in half the digits; ``compiled`` has torch compile the network first,
    which takes from seconds to a minute, and goes on without where that fails.
    """
    if num_samples < 1:
        raise SettingError(f"num_samples={num_samples}: expected a whole number from 1")
    check_unknowns(belief, likelihood)
    bayesian = frozen_network(network, belief)
    forward = Forward(bayesian, precision=precision, compiled=compiled_calls(network) if compiled else None)
    pieces: list[Prediction] = []
    batches = _placed(part, network, batch_size)
    first = 0
    while block := list(islice(batches, BATCHES_HELD)):
        pieces.append(
            _predict_block(bayesian, forward, block, likelihood, first, num_samples, seed, at_mean, keep_samples)
        )
        first += sum(map(len, block))
    if not pieces:
        raise PartError("there is nothing to predict: the inputs hold no example")
    return _join(pieces)


def score(
    network: nn.Module,
    belief: Belief,
    part: Part,
    likelihood: Likelihood,
    *,
    num_samples: int = 100,
    seed: int = 0,
    batch_size: int = 500,
) -> Score:
    """NLL and accuracy of the belief on a part, every example of which is checked on the way."""
    check_unknowns(belief, likelihood)
    bayesian = frozen_network(network, belief)
    return score_of(bayesian, part, likelihood, num_samples=num_samples, seed=seed, batch_size=batch_size)


@torch.no_grad()
def score_of(
    bayesian: BayesianNetwork, part: Part, likelihood: Likelihood, *, num_samples: int, seed: int, batch_size: int
) -> Score:
    """The same for a network that is Bayesian already, in the mode it is in."""
    nll, correct, graded, first = 0.0, 0.0, True, 0
    forward = Forward(bayesian)
    for batch in _placed(part, bayesian.network, batch_size):
        check_finite(batch, first)
        targets = targets_of(batch, first)
        log_probs: list[Tensor] = []
        means: list[Tensor] = []
        for draws in _draws(bayesian, num_samples, seed):
            outputs = forward(draws, batch, first)
            targets = likelihood.check(outputs, targets, first)
            values = likelihood_values(draws)
            log_probs.append(likelihood.log_prob(outputs, targets, values))
            means.append(likelihood.predictive(outputs, values).mean)
        nll -= float((torch.stack(log_probs).logsumexp(0) - torch.tensor(float(num_samples)).log()).double().sum())
        right = likelihood.correct(torch.stack(means).mean(0), targets)
        graded = right is not None
        correct += 0.0 if right is None else float(right.double().sum())
        first += len(targets)
    if first == 0:
        raise PartError("the part is empty: expected at least one example")
    return Score(nll / first, correct / first if graded else None, first)


def frozen_network(network: nn.Module, belief: Belief) -> BayesianNetwork:
    """The belief in its network, for asking only."""
    generator = torch.Generator(device_of(network)).manual_seed(0)
    return from_belief(network, belief, generator=generator).requires_grad_(False).eval()


def device_of(network: nn.Module) -> torch.device:
    """Where the network's parameters are."""
    return next(parameter for _, parameter in learnable(network)).device


def dtype_of(network: nn.Module) -> torch.dtype:
    """The type of the network's floating parameters."""
    return next(p.real.dtype for _, p in learnable(network))


def _placed(part: Part, network: nn.Module, batch_size: int) -> Iterator[Batch]:
    device, dtype = device_of(network), dtype_of(network)
    return (batch.to(device, dtype) for batch in part.batches(batch_size))


@torch.no_grad()
def _draws(bayesian: BayesianNetwork, num_samples: int, seed: int) -> Iterator[Mapping[str, Draw]]:
    # Seeded anew for every block, so that all examples meet the same weight samples.
    generator = seeds.stream(bayesian.generator.device, seed, "predict")
    for _ in range(num_samples):
        yield bayesian.draw(generator)


@torch.no_grad()
def _predict_block(
    bayesian: BayesianNetwork,
    forward: Forward,
    block: list[Batch],
    likelihood: Likelihood,
    first: int,
    num_samples: int,
    seed: int,
    at_mean: bool,
    keep_samples: bool,
) -> Prediction:
    for i, batch in enumerate(block):
        check_finite(batch, first + sum(map(len, block[:i])))
    averages, kept = _Averages(), []
    for draws in [bayesian.means()] if at_mean else _draws(bayesian, num_samples, seed):
        values, ready = likelihood_values(draws), forward.prepared(draws)
        each = [likelihood.predictive(forward(ready, batch, first), values) for batch in block]
        averages.add(_concatenate(each))
        kept += [torch.cat([p.mean for p in each]).cpu()] if keep_samples else []
    return averages.prediction(likelihood, torch.stack(kept) if keep_samples else None)


class _Averages:
    """Running averages over weight samples; Welford's update keeps the digits of a small variance."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, new: Predictive) -> None:
        self.count += 1
        if self.count == 1:
            self.mean, self.squares = new.mean, torch.zeros_like(new.mean)
            self.variance, self.entropy = new.variance, new.entropy
            return
        gap = new.mean - self.mean
        self.mean = self.mean + gap / self.count
        self.squares = self.squares + gap * (new.mean - self.mean)
        self.variance = self.variance + (new.variance - self.variance) / self.count
        if self.entropy is not None and new.entropy is not None:
            self.entropy = self.entropy + (new.entropy - self.entropy) / self.count

    def prediction(self, likelihood: Likelihood, samples: Tensor | None) -> Prediction:
        epistemic = self.squares / self.count
        variance = self.variance + epistemic
        entropy = likelihood.entropy(self.mean, variance)
        information = None
        if entropy is not None and self.entropy is not None:
            information = (entropy - self.entropy).clamp_min(0).cpu()  # below zero by rounding only
        return Prediction(
            self.mean.cpu(),
            variance.cpu(),
            epistemic.cpu(),
            None if entropy is None else entropy.cpu(),
            information,
            samples,
        )


def _concatenate(each: list[Predictive]) -> Predictive:
    entropies = [p.entropy for p in each if p.entropy is not None]
    entropy = torch.cat(entropies) if entropies else None
    return Predictive(torch.cat([p.mean for p in each]), torch.cat([p.variance for p in each]), entropy)


def _join(pieces: list[Prediction]) -> Prediction:
    def joined(name: str, axis: int = 0) -> Tensor | None:
        values: list[Tensor | None] = [getattr(piece, name) for piece in pieces]
        present = [value for value in values if value is not None]
        return torch.cat(present, axis) if present else None

    mean, variance, epistemic = (joined(name) for name in ("mean", "variance", "epistemic_variance"))
    assert mean is not None
    assert variance is not None
    assert epistemic is not None
    return Prediction(
        mean, variance, epistemic, joined("entropy"), joined("mutual_information"), joined("samples", axis=1)
    )
