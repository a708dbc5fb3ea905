"""How a belief meets data with targets, as plain numbers by name."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from postprior.batch import Batch, IndexedPart, Part
from postprior.learning import metrics
from postprior.learning.likelihoods import Categorical, Likelihood
from postprior.learning.predict import Prediction, Score, predict, score
from postprior.maths import seeds
from postprior.networks.belief import Belief

Measures = Mapping[str, float]

BEFORE_SAMPLES = 10
"""Weight samples of the old belief that a new part is scored under."""

MOST_EXAMPLES = 2_000
"""A new part's score under the old belief is taken from so many examples at most: it is an estimate anyway."""

NAMES = ("num_examples", "nll", "accuracy", "ece", "brier", "entropy", "mutual_information", "epistemic_share", "rmse")
"""Every measure there is; which of them a belief has depends on its likelihood."""

BINS = 15


def measure(
    network: nn.Module, belief: Belief, part: Part, likelihood: Likelihood, *, num_samples: int, seed: int
) -> dict[str, float]:
    """Every measure that the likelihood has; those that are not finite are left out, as JSON knows none."""
    return examine(network, belief, part, likelihood, num_samples=num_samples, seed=seed)[0]


def examine(
    network: nn.Module, belief: Belief, part: Part, likelihood: Likelihood, *, num_samples: int, seed: int
) -> tuple[dict[str, float], Prediction, Tensor]:
    """The measures, and the predictions and targets behind them, in one order and on the CPU."""
    asked: dict[str, Any] = {"num_samples": num_samples, "seed": seed}
    recalling = _Recalling(part)
    prediction = predict(network, belief, recalling, likelihood, **asked)
    found = _score(prediction, recalling.targets, likelihood) or score(network, belief, part, likelihood, **asked)
    targets = torch.cat(recalling.targets)
    numbers = {"num_examples": float(found.num_examples), "nll": found.nll}
    if found.accuracy is not None:
        numbers["accuracy"] = found.accuracy
    numbers |= (
        _of_classes(prediction, targets) if isinstance(likelihood, Categorical) else _of_numbers(prediction, targets)
    )
    return {name: value for name, value in numbers.items() if math.isfinite(value)}, prediction, targets


def _score(prediction: Prediction, targets: list[Tensor], likelihood: Likelihood) -> Score | None:
    """What ``score`` would find, where the averaged probabilities tell it: that spares asking the network again."""
    if not isinstance(likelihood, Categorical) or prediction.mean.dim() != 2 or not targets:
        return None
    labels = likelihood.check(prediction.mean, torch.cat(targets), 0)
    chosen = prediction.mean.double().gather(1, labels[:, None])
    # A probability too small for its type is only known to ``score``, which adds logarithms.
    if not bool((chosen > 0).all()):
        return None
    correct = likelihood.correct(prediction.mean, labels)
    assert correct is not None, "a class is right or wrong"
    return Score(float(-chosen.log().mean()), float(correct.double().mean()), len(labels))


def some(part: Part, seed: int) -> Part:
    """The part, or a random choice of its examples where it is large and they can be chosen."""
    count = len(part) if hasattr(part, "__len__") else 0  # pyright: ignore[reportArgumentType]
    if count <= MOST_EXAMPLES or not isinstance(part, IndexedPart):
        return part
    return part.split(MOST_EXAMPLES, seeds.stream("cpu", seed, "some"))[1]


class _Recalling:
    """A part whose targets of the last pass are kept: a loader may shuffle anew on the next."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.targets: list[Tensor] = []

    def batches(self, batch_size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        self.targets = []
        for batch in self._part.batches(batch_size, generator):
            self.targets += [] if batch.targets is None else [batch.targets.detach().cpu()]
            yield batch

    def num_batches(self, batch_size: int) -> int | None:
        return self._part.num_batches(batch_size)

    def split(self, num_held: int, generator: torch.Generator) -> tuple["_Recalling", "_Recalling"]:
        learned, held = self._part.split(num_held, generator)
        return _Recalling(learned), _Recalling(held)


def reliability(probabilities: Tensor, labels: Tensor) -> list[tuple[float, float, int]]:
    """Mean confidence, accuracy and number of the predictions in each bin of confidence that has any."""
    confidence, guess = probabilities.max(1)
    right = (guess == labels).double()
    places = (confidence.double() * BINS).long().clamp(max=BINS - 1)
    groups = [places == place for place in range(BINS)]
    return [(float(confidence[g].mean()), float(right[g].mean()), int(g.sum())) for g in groups if g.any()]


def _of_classes(prediction: Prediction, targets: Tensor) -> dict[str, float]:
    if prediction.mean.dim() != 2:
        return {}
    labels = targets.long().reshape(len(prediction.mean))
    numbers = {"ece": metrics.ece(prediction.mean, labels), "brier": metrics.brier(prediction.mean, labels)}
    assert prediction.entropy is not None, "a categorical prediction has an entropy"
    assert prediction.mutual_information is not None, "and knows how much of it is doubt about the weights"
    entropy, information = float(prediction.entropy.mean()), float(prediction.mutual_information.mean())
    share = {"epistemic_share": information / entropy} if entropy > 0 else {}
    return {**numbers, "entropy": entropy, "mutual_information": information, **share}


def _of_numbers(prediction: Prediction, targets: Tensor) -> dict[str, float]:
    targets = targets.reshape(prediction.mean.shape)
    variance, epistemic = float(prediction.variance.mean()), float(prediction.epistemic_variance.mean())
    share = {"epistemic_share": epistemic / variance} if variance > 0 else {}
    return {"rmse": float((prediction.mean - targets).double().square().mean().sqrt()), **share}
