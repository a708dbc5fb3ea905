"""How likely the targets are, given the network's outputs.

Shapes: B examples, C classes, D outputs, ... any further axes of one example (pixels, time steps), which are summed;
K vectors whose outer products add up to a matrix.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor
from torch.nn import functional as F

from postprior.errors import PartError, SettingError
from postprior.maths import gaussian

Values = Mapping[str, Tensor]
"""Values of the likelihood's own unknowns."""


@dataclass(frozen=True)
class Predictive:
    """What one weight sample predicts: moments of the target, and the entropy in nats where it is known."""

    mean: Tensor
    variance: Tensor
    entropy: Tensor | None


class Likelihood(ABC):
    """p(y | outputs)."""

    name: ClassVar[str]

    def unknowns(self) -> dict[str, tuple[float, float]]:
        """Numbers to be learned beside the weights, each with the mean and sd of its first prior."""
        return {}

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor, first: int) -> Tensor:
        """The targets in the form ``log_prob`` wants, or a PartError; ``first`` numbers the first example."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, targets: Tensor, values: Values) -> Tensor:
        """log p(y | outputs) of every example, [B], in nats."""

    @abstractmethod
    def predictive(self, outputs: Tensor, values: Values) -> Predictive:
        """What these outputs say of targets not seen."""

    def entropy(self, mean: Tensor, variance: Tensor) -> Tensor | None:
        """Entropy of the prediction averaged over weight samples, [B], in nats, where it is known."""
        del mean, variance
        return None

    def cross_entropy(self, old_outputs: Tensor, outputs: Tensor, values: Values) -> Tensor:
        """E[-log p(y | outputs)] for y as ``old_outputs`` predict it, [B]."""
        raise SettingError(
            f"the function-space term needs the cross-entropy of two predictions, which {type(self).__name__} does not "
            "have: set function_space=0, or give your likelihood a cross_entropy"
        )

    def correct(self, mean: Tensor, targets: Tensor) -> Tensor | None:
        """The share that is right in every example, [B]; None where right and wrong mean nothing."""
        del mean, targets
        return None

    def sample(self, outputs: Tensor, values: Values, generator: torch.Generator) -> Tensor:
        """Targets drawn from p(y | outputs), in the form ``log_prob`` wants."""
        raise SettingError(
            f"kind='monte_carlo' draws targets from the likelihood, which {type(self).__name__} cannot: "
            "choose kind='empirical', or give your likelihood a sample method"
        )

    def curvature_root(self, outputs: Tensor, values: Values) -> Tensor:
        """Vectors a_k, [B, K, *outputs of one example], with Σ_k a_k a_kᵀ the Hessian of -log p in the outputs."""
        raise SettingError(
            f"kind='ggn' needs the Hessian of -log p in the outputs, which {type(self).__name__} does not give: "
            "choose kind='empirical', or give your likelihood a curvature_root method"
        )


@final
@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of C classes; outputs are logits [B, C, ...], targets whole numbers [B, ...]."""

    name: ClassVar[str] = "categorical"

    def check(self, outputs: Tensor, targets: Tensor, first: int) -> Tensor:
        _require_classes(outputs)
        expected = (outputs.shape[0], *outputs.shape[2:])
        if targets.dim() == len(expected) + 1 and targets.shape[1] == 1:
            targets = targets.squeeze(1)
        if tuple(targets.shape) != expected:
            raise PartError(
                f"labels have shape {_shape(targets)}, expected {expected} for outputs of shape {_shape(outputs)}: "
                "one whole number an example; turn one-hot rows into numbers with argmax(1)"
            )
        if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
            raise PartError(f"labels are {targets.dtype}, expected whole numbers; convert them with .long()")
        _refuse(
            (targets < 0) | (targets >= outputs.shape[1]), targets, first, f"a label from 0 to {outputs.shape[1] - 1}"
        )
        return targets.long()

    def log_prob(self, outputs: Tensor, targets: Tensor, values: Values) -> Tensor:
        return -_sum(F.cross_entropy(outputs, targets, reduction="none"))

    def predictive(self, outputs: Tensor, values: Values) -> Predictive:
        _require_classes(outputs)
        probabilities = outputs.softmax(1)
        return Predictive(probabilities, probabilities * (1 - probabilities), _entropy(probabilities))

    def entropy(self, mean: Tensor, variance: Tensor) -> Tensor | None:
        return _entropy(mean)

    def cross_entropy(self, old_outputs: Tensor, outputs: Tensor, values: Values) -> Tensor:
        return -_sum((old_outputs.softmax(1) * outputs.log_softmax(1)).sum(1))

    def correct(self, mean: Tensor, targets: Tensor) -> Tensor | None:
        return _mean(mean.argmax(1) == targets)

    def sample(self, outputs: Tensor, values: Values, generator: torch.Generator) -> Tensor:
        probabilities = outputs.softmax(1).movedim(1, -1)  # [B, ..., C]
        flat = probabilities.reshape(-1, outputs.shape[1]).multinomial(1, generator=generator)
        return flat.reshape(probabilities.shape[:-1])

    def curvature_root(self, outputs: Tensor, values: Values) -> Tensor:
        """diag(p) - p pᵀ = Σ_c p_c (e_c - p)(e_c - p)ᵀ at each of the S positions of one example; K = C S."""
        p = outputs.softmax(1).reshape(*outputs.shape[:2], -1)  # [B, C, S]
        units, positions = (torch.eye(size, dtype=p.dtype, device=p.device) for size in p.shape[1:])
        roots = p.sqrt().unsqueeze(2) * (units.unsqueeze(-1) - p.unsqueeze(1))  # [B, C, C, S]
        apart = roots.unsqueeze(2) * positions.unsqueeze(1)  # [B, C, S, C, S]: positions do not mix
        return apart.reshape(len(p), p[0].numel(), *outputs.shape[1:])


@final
@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Yes or no, once or once for each of several labels; outputs are logits, targets 0 or 1 (or shares between)."""

    name: ClassVar[str] = "bernoulli"

    def check(self, outputs: Tensor, targets: Tensor, first: int) -> Tensor:
        targets = _like_outputs(outputs, targets)
        _refuse(~((targets >= 0) & (targets <= 1)), targets, first, "a number from 0 to 1")
        return targets

    def log_prob(self, outputs: Tensor, targets: Tensor, values: Values) -> Tensor:
        return -_sum(F.binary_cross_entropy_with_logits(outputs, targets, reduction="none"))

    def predictive(self, outputs: Tensor, values: Values) -> Predictive:
        probabilities = outputs.sigmoid()
        return Predictive(probabilities, probabilities * (1 - probabilities), _binary_entropy(probabilities))

    def entropy(self, mean: Tensor, variance: Tensor) -> Tensor | None:
        return _binary_entropy(mean)

    def cross_entropy(self, old_outputs: Tensor, outputs: Tensor, values: Values) -> Tensor:
        return -self.log_prob(outputs, old_outputs.sigmoid(), values)

    def correct(self, mean: Tensor, targets: Tensor) -> Tensor | None:
        return _mean((mean > 0.5) == (targets > 0.5))

    def sample(self, outputs: Tensor, values: Values, generator: torch.Generator) -> Tensor:
        return outputs.sigmoid().bernoulli(generator=generator)

    def curvature_root(self, outputs: Tensor, values: Values) -> Tensor:
        return _diagonal_root(outputs.sigmoid() * (-outputs).sigmoid())


@final
@dataclass(frozen=True)
class Gaussian(Likelihood):
    """A number with Gaussian noise; outputs are means.

    ``sd`` is the noise's standard deviation where it is known. Without it the noise is learned like a weight: log sd
    has a belief of its own, with first prior N(0, 1), that is carried from part to part. Entropies are those of the
    Gaussian with the predictive mean and variance.
    """

    sd: float | None = None
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        if self.sd is not None and not 0 < self.sd < math.inf:
            raise SettingError(f"Gaussian(sd={self.sd}): expected a finite number above 0, or None to learn the noise")

    def unknowns(self) -> dict[str, tuple[float, float]]:
        return {"log_sd": (0.0, 1.0)} if self.sd is None else {}

    def check(self, outputs: Tensor, targets: Tensor, first: int) -> Tensor:
        targets = _like_outputs(outputs, targets)
        _refuse(~targets.isfinite(), targets, first, "a finite number")
        return targets

    def log_prob(self, outputs: Tensor, targets: Tensor, values: Values) -> Tensor:
        log_sd = self._log_sd(outputs, values)
        return _sum(-0.5 * ((targets - outputs) * (-log_sd).exp()).square() - log_sd - 0.5 * math.log(2 * math.pi))

    def predictive(self, outputs: Tensor, values: Values) -> Predictive:
        variance = (2 * self._log_sd(outputs, values)).exp().expand_as(outputs)
        return Predictive(outputs, variance, self.entropy(outputs, variance))

    def entropy(self, mean: Tensor, variance: Tensor) -> Tensor | None:
        return _sum(0.5 * (2 * math.pi * math.e * variance).log())

    def cross_entropy(self, old_outputs: Tensor, outputs: Tensor, values: Values) -> Tensor:
        # The old noise is taken to be as wide as the new one: their squares differ by a constant in the outputs.
        return 0.5 * outputs[0].numel() - self.log_prob(outputs, old_outputs, values)

    def sample(self, outputs: Tensor, values: Values, generator: torch.Generator) -> Tensor:
        return gaussian.sample(outputs, self._log_sd(outputs, values), generator)

    def curvature_root(self, outputs: Tensor, values: Values) -> Tensor:
        return _diagonal_root((-2 * self._log_sd(outputs, values)).exp().expand_as(outputs))

    def _log_sd(self, outputs: Tensor, values: Values) -> Tensor:
        return outputs.new_full((), math.log(self.sd)) if self.sd is not None else values["log_sd"]


@final
@dataclass(frozen=True)
class Poisson(Likelihood):
    """A count; outputs are the logarithm of the rate."""

    name: ClassVar[str] = "poisson"

    def check(self, outputs: Tensor, targets: Tensor, first: int) -> Tensor:
        targets = _like_outputs(outputs, targets)
        _refuse(~((targets >= 0) & (targets == targets.round())), targets, first, "a whole number of 0 or more")
        return targets

    def log_prob(self, outputs: Tensor, targets: Tensor, values: Values) -> Tensor:
        return _sum(targets * outputs - outputs.exp() - (targets + 1).lgamma())

    def predictive(self, outputs: Tensor, values: Values) -> Predictive:
        rate = outputs.exp()
        return Predictive(rate, rate, None)

    def cross_entropy(self, old_outputs: Tensor, outputs: Tensor, values: Values) -> Tensor:
        """Up to E[log y!], which does not depend on the new outputs."""
        return _sum(outputs.exp() - old_outputs.exp() * outputs)

    def sample(self, outputs: Tensor, values: Values, generator: torch.Generator) -> Tensor:
        return torch.poisson(outputs.exp(), generator=generator)

    def curvature_root(self, outputs: Tensor, values: Values) -> Tensor:
        return _diagonal_root(outputs.exp())


@final
@dataclass(frozen=True)
class Custom(Likelihood):
    """Your own: a function of outputs and targets that returns log p(y | outputs) of every example."""

    function: Callable[[Tensor, Tensor], Tensor]
    name: ClassVar[str] = "custom"

    def check(self, outputs: Tensor, targets: Tensor, first: int) -> Tensor:
        return targets

    def log_prob(self, outputs: Tensor, targets: Tensor, values: Values) -> Tensor:
        found = self.function(outputs, targets)
        if tuple(found.shape) != (len(targets),):
            raise SettingError(
                f"your likelihood returned shape {_shape(found)}, expected ({len(targets)},): "
                "one log-probability an example; sum over all further axes"
            )
        return found

    def predictive(self, outputs: Tensor, values: Values) -> Predictive:
        """The outputs themselves: what they mean is known to your function only."""
        return Predictive(outputs, torch.zeros_like(outputs), None)


LIKELIHOODS: dict[str, type[Likelihood]] = {kind.name: kind for kind in (Categorical, Bernoulli, Gaussian, Poisson)}


def as_likelihood(given: str | Likelihood | Callable[[Tensor, Tensor], Tensor]) -> Likelihood:
    """A likelihood from its name, from itself, or from a function of your own."""
    if isinstance(given, Likelihood):
        return given
    if isinstance(given, str):
        if given not in LIKELIHOODS:
            raise SettingError(f"likelihood={given!r} is not known: expected {', '.join(LIKELIHOODS)}, or a function")
        return LIKELIHOODS[given]()
    return Custom(given)


def to_json(likelihood: Likelihood) -> dict[str, Any] | None:
    """Name and settings, or None for one of the user's own, whose code no file can hold."""
    known = type(likelihood) in LIKELIHOODS.values()
    return {"name": likelihood.name, **asdict(cast(Any, likelihood))} if known else None


def from_json(given: Mapping[str, Any]) -> Likelihood:
    """The inverse of ``to_json``."""
    settings = {key: value for key, value in given.items() if key != "name"}
    return LIKELIHOODS[given["name"]](**settings)


def _like_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets in the outputs' shape and type; [B] and [B, 1] are the same, nothing else is broadcast."""
    if targets.dim() == 1 and outputs.dim() == 2 and outputs.shape[1] == 1:
        targets = targets.unsqueeze(1)
    if targets.dim() == 2 and targets.shape[1] == 1 and outputs.dim() == 1:
        targets = targets.squeeze(1)
    if targets.shape != outputs.shape:
        raise PartError(f"targets have shape {_shape(targets)}, expected {_shape(outputs)}, the shape of the outputs")
    return targets.to(outputs.dtype)


def _require_classes(outputs: Tensor) -> None:
    if outputs.dim() < 2:
        raise PartError(
            f"expected logits of shape [examples, classes], found outputs of shape {_shape(outputs)}: "
            "the first axis of the inputs must count examples, even if there is one"
        )


def _refuse(bad: Tensor, targets: Tensor, first: int, expected: str) -> None:
    # While a step is recorded no value can be read; the whole part was checked before it was learned from.
    recording = bad.is_cuda and torch.cuda.is_current_stream_capturing()
    if not recording and bad.any():
        where = int(bad.flatten(1).any(1).nonzero()[0] if bad.dim() > 1 else bad.nonzero()[0])
        value = targets[where][bad[where]].flatten()[0].item() if bad.dim() > 1 else targets[where].item()
        raise PartError(f"example {first + where} has target {value}, expected {expected}")


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _sum(values: Tensor) -> Tensor:
    """Over all axes but the first."""
    return values.reshape(len(values), -1).sum(1)


def _diagonal_root(curvature: Tensor) -> Tensor:
    """The root of a Hessian in which no two outputs meet, from its diagonal [B, *]; K = D."""
    flat = curvature.reshape(len(curvature), -1)
    return flat.sqrt().diag_embed().reshape(*flat.shape, *curvature.shape[1:])


def _mean(values: Tensor) -> Tensor:
    return values.float().reshape(len(values), -1).mean(1)


def _entropy(probabilities: Tensor) -> Tensor:
    return _sum(torch.special.entr(probabilities).sum(1))


def _binary_entropy(probabilities: Tensor) -> Tensor:
    return _sum(torch.special.entr(probabilities) + torch.special.entr(1 - probabilities))
