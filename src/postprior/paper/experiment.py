"""What one run of the paper's experiments is: everything but the seed, complete and frozen, known by its hash."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from postprior.errors import SettingError
from postprior.learning.settings import Settings
from postprior.networks.zoo import LeNet5, SmallConvNet, ThreeConvThreeFC

Variant = Literal["paper", "tuned", "quick", "search"]
Pretraining = Literal["none", "fixed", "laplace", "finetune"]
Method = Literal["bayes", "finetune", "early", "ewc"]

NETWORKS = {"LeNet5": LeNet5, "ThreeConvThreeFC": ThreeConvThreeFC, "SmallConvNet": SmallConvNet}
SOURCES = {"mnist": "mnist", "cifar10": "cifar10", "cifar5+5": "cifar10"}
"""The fetched dataset that each task is made from."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A complete configuration: run it with a seed and the same numbers come out (on the CPU)."""

    name: str
    dataset: str
    """A task: a key of ``SOURCES``."""
    approach: str
    """What tables and figures have a row or a bar for, such as "ffg"; at several T it is one row."""
    network: str
    family: str
    method: Method
    """"early" is fine-tuning that stops by a held-out share of each part; "ewc" is online EWC."""
    num_parts: int
    """T."""
    variant: Variant
    settings: Settings
    """How each part is learned; ``steps`` must be given, and ``augment``, being a function, must not."""
    prior_sd: float | str = 1.0
    pretraining: Pretraining = "none"
    """What is known of the convolutions from the first five classes: "finetune" carries the values alone, "fixed" a
    width found by grid search too, "laplace" Laplace's width of each weight."""
    pretraining_settings: Settings | None = None
    pretraining_sds: tuple[float, ...] = ()
    """The grid of widths for "fixed"."""
    ewc_strength: float = 1.0
    """λ; 1 weighs old examples like new ones, as Laplace's approximation does."""
    num_train: int | None = None
    """Training images of each stage, all of them if None."""
    num_test: int | None = None
    num_validation: int = 0
    """Training images set aside before the parts are cut. If any, they are scored and the test set is left alone."""
    samples_by_part: int = 5
    """Weight samples averaged over in the scores after each part; points need only one, and get it."""
    samples_at_end: int = 100

    def __post_init__(self) -> None:
        self._require("dataset", self.dataset in SOURCES, " or ".join(SOURCES))
        self._require("network", self.network in NETWORKS, " or ".join(NETWORKS))
        self._require("num_parts", self.num_parts >= 1, "a whole number from 1")
        self._require("family", (self.family == "point") != (self.method == "bayes"), "'point' unless method='bayes'")
        self._require("method", (self.settings.holdout > 0) == (self.method == "early"), "'early' with a holdout only")
        for settings in (self.settings, self.pretraining_settings):
            if settings and (settings.steps is None or settings.augment is not None):
                raise SettingError(f"{self.name}: settings with steps and without augment are expected, as JSON has it")
        pretrained = self.pretraining != "none"
        self._require("pretraining", pretrained <= (self.dataset == "cifar5+5"), "'none' for all but cifar5+5")
        self._require("pretraining", pretrained == (self.pretraining_settings is not None), "settings of its own")
        self._require("pretraining", (self.pretraining == "fixed") == bool(self.pretraining_sds), "sds where 'fixed'")
        carries_points = self.pretraining == "none" or (self.pretraining == "finetune") == (self.family == "point")
        self._require("pretraining", carries_points, "'finetune' for points, widths for beliefs")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise SettingError(f"{self.name}: {name}={getattr(self, name)!r}: expected {expected}")

    @property
    def num_steps(self) -> int:
        """Steps of the optimizer in all, pretraining and grid search too."""
        own = (self.settings.steps or 0) * (self.num_parts + len(self.pretraining_sds))
        return own + (self.pretraining_settings.steps or 0 if self.pretraining_settings else 0)

    @property
    def hash(self) -> str:
        """Of all fields; whatever changes, the run is another one."""
        return hashlib.sha256(json.dumps(self.to_plain(), sort_keys=True).encode()).hexdigest()

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        plain = asdict(self)
        for name in ("settings", "pretraining_settings"):
            if plain[name]:
                del plain[name]["augment"]
        return {**plain, "pretraining_sds": list(self.pretraining_sds)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Experiment":
        """The inverse of ``to_plain``; a field that is missing or too many makes a ValueError."""
        expected = {field.name for field in fields(cls)}
        if plain.keys() != expected:
            raise ValueError(f"the fields {sorted(plain.keys() ^ expected)} are in one of them only")
        before = plain["pretraining_settings"]
        own: dict[str, Any] = {
            "settings": Settings(**plain["settings"]),
            "pretraining_settings": Settings(**before) if before else None,
            "pretraining_sds": tuple(plain["pretraining_sds"]),
        }
        return cls(**{**plain, **own})
