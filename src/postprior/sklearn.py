"""For scikit-learn's users: a classifier and a regressor that learn in parts and know how sure they are."""

from abc import ABC
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from postprior.errors import MissingExtraError
from postprior.learner import Learner
from postprior.learning.predict import Prediction
from postprior.maths import seeds

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError(
        f"postprior.sklearn needs scikit-learn 1.6 or newer ({error}): pip install 'postprior[sklearn]'"
    ) from error

NetworkFactory = Callable[[int, int], nn.Module]
"""Makes a network for so many features and so many outputs."""


class _Incremental(BaseEstimator, ABC):  # pyright: ignore[reportUntypedBaseClass]
    """What both estimators share: settings, a network of the data's size, parts, predictions."""

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (64,),
        *,
        network: NetworkFactory | None = None,
        family: str = "factorized",
        prior_sd: float | str = 1.0,
        temperature: float = 0.1,
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 1e-2,
        spread_rate: float = 1.0,
        schedule: Literal["constant", "linear"] = "linear",
        start_sd: float = 0.02,
        num_samples: int = 100,
        standardize: bool = True,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.network = network
        self.family = family
        self.prior_sd = prior_sd
        self.temperature = temperature
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.spread_rate = spread_rate
        self.schedule = schedule
        self.start_sd = start_sd
        self.num_samples = num_samples
        self.standardize = standardize
        self.device = device
        self.random_state = random_state

    def _first_learner(self, X: NDArray[Any], num_outputs: int, likelihood: str) -> Learner:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        inputs = torch.as_tensor(X)
        device = torch.device(self.device or "cpu")
        with seeds.quarantined(device, seed, "network"):
            make = self.network or self._perceptron
            network = make(X.shape[1], num_outputs)
        layers = OrderedDict(inputs=_Standardized(inputs), network=network) if self.standardize else OrderedDict(network=network)
        whole = nn.Sequential(layers).to(device, inputs.dtype)
        return Learner(whole, family=self.family, likelihood=likelihood, prior_sd=self.prior_sd, seed=seed)

    def _perceptron(self, num_features: int, num_outputs: int) -> nn.Module:
        sizes = [num_features, *self.hidden_layer_sizes]
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(sizes[-1], num_outputs))

    def _absorb(self, learner: Learner, X: NDArray[Any], targets: NDArray[Any]) -> Self:
        names = ("temperature", "epochs", "batch_size", "learning_rate", "spread_rate", "schedule", "start_sd")
        extra = getattr(self, "_extra", {})
        self.update_ = learner.absorb((X, targets), **{name: getattr(self, name) for name in names}, **extra)
        self.learner_ = learner
        return self

    def _predicted(self, X: ArrayLike) -> Prediction:
        check_is_fitted(self, "learner_")
        X = validate_data(self, X, dtype=DTYPES, order="C", reset=False)
        return self.learner_.predict(X, num_samples=self.num_samples)


DTYPES = (np.float64, np.float32)


@final
class BayesianClassifier(ClassifierMixin, _Incremental):  # pyright: ignore[reportUntypedBaseClass]
    """."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """."""
        X, y = self._checked(X, y, reset=True)
        self.classes_ = np.unique(y)
        return self._learn(self._first_learner(X, len(self.classes_), "categorical"), X, y)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """."""
        first = not hasattr(self, "learner_")
        X, y = self._checked(X, y, reset=first)
        if first:
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            self.classes_ = np.unique(classes)
        learner = self._first_learner(X, len(self.classes_), "categorical") if first else self.learner_
        return self._learn(learner, X, y)

    def _learn(self, learner, X, y):
        return self._absorb(learner, X, np.searchsorted(self.classes_, y))

    def _checked(self, X, y, reset):
        X, y = validate_data(self, X, y, dtype=DTYPES, order="C", reset=reset)
        check_classification_targets(y)
        return X, y

    def predict_proba(self, X):
        return self._predicted(X).mean.numpy()

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(1)]


@final
class BayesianRegressor(RegressorMixin, _Incremental):  # pyright: ignore[reportUntypedBaseClass]
    """."""

    def fit(self, X, y):
        X, y = self._checked(X, y, reset=True)
        return self._begin(X, y)

    def _begin(self, X, y):
        self.target_mean_, self.target_scale_ = float(y.mean()), float(y.std()) or 1.0
        return self._learn(self._first_learner(X, 1, "gaussian"), X, y)

    def partial_fit(self, X, y):
        first = not hasattr(self, "learner_")
        X, y = self._checked(X, y, reset=first)
        return self._begin(X, y) if first else self._learn(self.learner_, X, y)

    def _learn(self, learner, X, y):
        return self._absorb(learner, X, (y - self.target_mean_) / self.target_scale_)

    def _checked(self, X, y, reset):
        return validate_data(self, X, y, dtype=DTYPES, order="C", y_numeric=True, reset=reset)

    def predict(self, X, return_std=False):
        p = self._predicted(X)
        mean = p.mean.numpy()[:, 0] * self.target_scale_ + self.target_mean_
        if not return_std:
            return mean
        return mean, p.variance.sqrt().numpy()[:, 0] * self.target_scale_


CLIP = None


@final
class _Standardized(nn.Module):
    def __init__(self, X: Tensor) -> None:
        super().__init__()
        scale = X.std(0, correction=0)
        self.register_buffer("mean", X.mean(0))
        self.register_buffer("scale", torch.where(scale > 0, scale, 1.0))

    def forward(self, x):
        z = (x - self.mean) / self.scale
        return z if CLIP is None else z.clamp(-CLIP, CLIP)
