"""How one part is learned."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import Tensor

from postprior.errors import SettingError
from postprior.networks.convert import START_SD

Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about the absorption of one part but the data, the network and the prior.

    The defaults are the paper's where it names one: Adam as it comes, reset at each part, a constant rate.
    """

    temperature: float = 1.0
    """Multiplies the KL. 1 is Bayes' rule; below 1 each part's likelihood is raised to the power 1 / temperature, so
    that all parts keep equal weight, each counting for more examples than it has. The paper uses 0.05."""
    epochs: int = 20
    """Passes over the part."""
    steps: int | None = None
    """Steps of the optimizer, instead of ``epochs``."""
    batch_size: int = 128
    learning_rate: float = 1e-3
    schedule: Literal["constant", "linear"] = "constant"
    """Whether the rate stays, or falls linearly to zero within each part."""
    spread_rate: float = 1.0
    """How many times the learning rate the widths (log sd, Cholesky factors) learn at."""
    start: Literal["prior", "fresh"] = "prior"
    """Where the posterior of a later part starts: at its prior, or anew at the network's weights and ``start_sd``."""
    start_sd: float = START_SD
    """How wide a fresh posterior starts (it is never wider than its prior)."""
    num_samples: int = 1
    """Weight samples in each step; every second one mirrors the one before, which takes most of the noise out."""
    local_reparameterization: bool = False
    """Sample the outputs of linear maps rather than their weights while training: less noise, about twice the work."""
    function_space: float = 0.0
    """Weight of a term that holds predictions on the new part's inputs to the old belief's; needs no old data."""
    clip_norm: float | None = None
    """Largest norm of the gradient of the objective per example."""
    holdout: float = 0.0
    """Share of the part that is kept from training to tell when to stop; it is not learned from."""
    patience: int = 5
    """Epochs without a better held-out NLL after which training stops and the best weights are taken."""
    augment: Callable[[Tensor], Tensor] | None = None
    """Applied to the first input of every training batch."""
    precision: Precision = "float32"
    """The type that the network's layers compute in (autocast); weights, their beliefs and the KL stay as they are."""
    cuda_graph: bool = False
    """On a GPU, record a step once and replay it, which small networks gain most from. The network, the likelihood and
    your own terms must do the same work at every step; on the CPU, and with several processes, it changes nothing."""
    score_samples: int = 10
    """Weight samples of the old belief that score the part before it is learned; 0 leaves that out."""

    def __post_init__(self) -> None:
        for name in ("temperature", "learning_rate", "spread_rate", "start_sd"):
            self._require(name, 0 < getattr(self, name) < math.inf, "a finite number above 0")
        for name in ("epochs", "batch_size", "num_samples", "patience"):
            self._require(name, _is_count(getattr(self, name)) and getattr(self, name) >= 1, "a whole number from 1")
        self._require(
            "score_samples", _is_count(self.score_samples) and self.score_samples >= 0, "a whole number from 0"
        )
        self._require(
            "steps", self.steps is None or (_is_count(self.steps) and self.steps >= 1), "a whole number from 1"
        )
        self._require("function_space", 0 <= self.function_space < math.inf, "a finite number from 0")
        self._require("holdout", 0 <= self.holdout < 1, "a share from 0 to below 1")
        self._require("clip_norm", self.clip_norm is None or self.clip_norm > 0, "a number above 0, or None")
        for name, known in _CHOICES.items():
            self._require(name, getattr(self, name) in known, " or ".join(map(repr, known)))

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise SettingError(f"{name}={getattr(self, name)!r}: expected {expected}")


_CHOICES = {
    "schedule": ("constant", "linear"),
    "start": ("prior", "fresh"),
    "precision": ("float32", "bfloat16", "float16"),
}


def checked_names(given: dict[str, Any]) -> dict[str, Any]:
    """The same keywords, or a SettingError that names the one that is not a setting."""
    known = [field.name for field in fields(Settings)]
    for name in given:
        if name not in known:
            raise SettingError(f"{name} is not a setting: expected one of {', '.join(known)}")
    return given


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
