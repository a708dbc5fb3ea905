"""For scikit-learn's users: a classifier and a regressor that learn from one part after another, with uncertainty."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, Self, cast, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from postprior.errors import MissingExtraError, PartError, SettingError
from postprior.learner import Learner
from postprior.learning.predict import Prediction
from postprior.maths import seeds

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, unique_labels
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError(
        f"postprior.sklearn needs scikit-learn 1.6 or newer ({error}): pip install 'postprior[sklearn]'"
    ) from error

# The network computes in the type of the first part. In float64, scikit-learn's default, what is predicted for a row
# does not depend on the rows that are asked for with it, to all the digits that anyone looks at.
_FLOATS = (np.float64, np.float32)

_SETTINGS = ("temperature", "epochs", "batch_size", "learning_rate", "spread_rate", "schedule", "start_sd")


class _Incremental(BaseEstimator, ABC):
    """What both estimators share: the settings, the network, learning one part, asking."""

    def __init__(
        self,
        *,
        hidden_layer_sizes: int | Sequence[int] = (64,),
        network: Callable[[int, int], nn.Module] | None = None,
        family: str = "factorized",
        prior_sd: float | str = 1.0,
        temperature: float = 0.2,
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
        """Only take note of the settings; they are looked at when they are used.

        Arguments:
            hidden_layer_sizes: Units of each hidden layer of a perceptron with rectifiers; none makes a linear model.
            network: Makes another network instead, called with the number of features and of outputs.
            family: How a belief about one weight tensor is written down, a name in ``postprior.FAMILIES``.
            prior_sd: Width of the first prior, a number, or ``"fan_in"`` for 1/sqrt(inputs of the layer).
            temperature: Multiplies the KL. 1 is Bayes' rule, at which small parts hardly move the prior; the less, the
                more the data are trusted. Give parts of dozens of examples: of a single one little is learned.
            epochs: Passes over each part. A part is learned to the end, since it is not seen again.
            batch_size: Examples in a step.
            learning_rate: Adam's.
            spread_rate: How many times the learning rate the widths of the belief learn at.
            schedule: ``"linear"`` lets the rate fall to zero within each part, ``"constant"`` lets it stay.
            start_sd: How wide the posterior of the first part starts.
            num_samples: Weight samples that predictions are averaged over.
            standardize: Measure inputs from the first part's mean, in its standard deviations, then and ever after.
                The prior expects inputs of about that size. Turn it off where the first part is not typical of what
                follows and you have scaled the inputs yourself.
            device: Where to compute, such as ``"cuda"``; None is the CPU.
            random_state: An int makes all that follows reproducible. torch's global generator is never touched.
        """
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

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Forget what came before, then learn."""

    def _first_learner(self, X: NDArray[Any], num_outputs: int, likelihood: str) -> Learner:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        device = torch.device(self.device or "cpu")
        dtype = torch.float32 if X.dtype == np.float32 else torch.float64
        with seeds.quarantined(device, seed, "network"):
            network = (self.network or self._perceptron)(X.shape[1], num_outputs)
        # Inside the network the moments are buffers, which travel with the belief: learner_ takes inputs as they come.
        first: dict[str, nn.Module] = {"inputs": _Standardized(X)} if self.standardize else {}
        whole = nn.Sequential(OrderedDict(first, network=network)).to(device, dtype)
        return Learner(whole, family=self.family, likelihood=likelihood, prior_sd=self.prior_sd, seed=seed)

    def _perceptron(self, num_features: int, num_outputs: int) -> nn.Module:
        sizes: list[int] = [num_features, *np.atleast_1d(self.hidden_layer_sizes).tolist()]
        hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(sizes[-1], num_outputs))

    def _absorb(self, learner: Learner, X: NDArray[Any], targets: NDArray[Any]) -> None:
        self.update_ = learner.absorb((X, targets), **{name: getattr(self, name) for name in _SETTINGS})
        self.learner_ = learner

    def _validated(self, *data: ArrayLike, reset: bool, **checks: Any) -> Any:
        # scikit-learn has no types, and its default "no_validation" makes checkers take the data for strings.
        validate = cast(Callable[..., Any], validate_data)
        return validate(self, *data, dtype=_FLOATS, order="C", reset=reset, **checks)

    def _prediction(self, X: ArrayLike) -> Prediction:
        check_is_fitted(self, "learner_")
        inputs = self._validated(X, reset=False)
        return self.learner_.predict(inputs, num_samples=self.num_samples)


@final
class BayesianClassifier(ClassifierMixin, _Incremental):
    """A Bayesian neural network that tells classes apart and learns from parts as they arrive.

    After each ``partial_fit`` the posterior becomes the prior of the next, so parts may be thrown away once learned.

        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = BayesianClassifier(epochs=20, random_state=0)
        >>> for i in range(3):
        ...     model = model.partial_fit(X[i::3], y[i::3], classes=[0, 1, 2])
        >>> model.predict_proba(X[:5]).shape
        (5, 3)
        >>> doubt = model.learner_.predict(X[:5]).mutual_information  # in nats, what more data would take away

    Attributes:
        classes_: The labels, in the order of the columns of ``predict_proba``.
        n_features_in_: How many features an example has.
        learner_: The ``postprior.Learner`` behind it; ``learner_.belief`` is what is carried from part to part.
        update_: What the last part reported: data term, KL, steps, and its score under the belief before it.
    """

    classes_: NDArray[Any]

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Forget what came before, then learn ``X`` [examples, features] and their labels ``y``."""
        inputs, labels = self._checked(X, y, reset=True)
        return self._begin(inputs, labels, unique_labels(labels))

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Learn one more part. The first call names all ``classes`` there will ever be."""
        first = not hasattr(self, "learner_")
        inputs, labels = self._checked(X, y, reset=first)
        if first and classes is None:
            raise SettingError("classes must be passed on the first call to partial_fit: all labels there will ever be")
        known = self.classes_ if classes is None else unique_labels(classes)
        if first:
            return self._begin(inputs, labels, known)
        if not np.array_equal(known, self.classes_):
            raise SettingError(f"classes={known} differ from {self.classes_}, those of the first call: fit anew")
        self._absorb(self.learner_, inputs, _positions(labels, known))
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Probabilities [examples, classes], averaged over weight samples."""
        return self._prediction(X).mean.numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each example."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def _begin(self, X: NDArray[Any], y: NDArray[Any], classes: NDArray[Any]) -> Self:
        self._absorb(self._first_learner(X, len(classes), "categorical"), X, _positions(y, classes))
        self.classes_ = classes
        return self

    def _checked(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        inputs, labels = self._validated(X, y, reset=reset)
        check_classification_targets(labels)
        return inputs, labels


@final
class BayesianRegressor(RegressorMixin, _Incremental):
    """A Bayesian neural network that predicts a number, with an error bar, and learns from parts as they arrive.

    After each ``partial_fit`` the posterior becomes the prior of the next, so parts may be thrown away once learned.
    The noise is learned too. Targets are measured from the first part's mean, in its standard deviations, then and ever
    after, so let the first part be typical.

        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = BayesianRegressor(epochs=20, random_state=0)
        >>> for i in range(4):
        ...     model = model.partial_fit(X[i::4], y[i::4])
        >>> mean, sd = model.predict(X[:5], return_std=True)
        >>> mean.shape, sd.shape
        ((5,), (5,))

    Attributes:
        target_mean_, target_sd_: The unit targets are measured in, from the first part.
        n_features_in_: How many features an example has.
        learner_: The ``postprior.Learner`` behind it, whose targets are in that unit; ``learner_.belief`` is what is
            carried from part to part.
        update_: What the last part reported: data term, KL, steps, and its score under the belief before it.
    """

    target_mean_: float
    target_sd_: float

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Forget what came before, then learn ``X`` [examples, features] and their targets ``y`` [examples]."""
        return self._begin(*self._checked(X, y, reset=True))

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn one more part."""
        first = not hasattr(self, "learner_")
        inputs, targets = self._checked(X, y, reset=first)
        if first:
            return self._begin(inputs, targets)
        self._absorb(self.learner_, inputs, (targets - self.target_mean_) / self.target_sd_)
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]:
        """The expected target of each example; with ``return_std`` its sd too, noise and doubt together."""
        prediction = self._prediction(X)
        mean = self.target_mean_ + self.target_sd_ * prediction.mean.numpy()[:, 0]
        if not return_std:
            return mean
        return mean, self.target_sd_ * prediction.variance.sqrt().numpy()[:, 0]

    def _begin(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        mean, sd = (float(moment[0]) for moment in _moments(y[:, None]))
        self._absorb(self._first_learner(X, 1, "gaussian"), X, (y - mean) / sd)
        self.target_mean_, self.target_sd_ = mean, sd
        return self

    def _checked(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._validated(X, y, reset=reset, y_numeric=True)


@final
class _Standardized(nn.Module):
    """Inputs measured from the mean of those it was made with, in their standard deviations."""

    mean: Tensor
    sd: Tensor

    def __init__(self, inputs: NDArray[Any]) -> None:
        super().__init__()
        mean, sd = _moments(inputs)
        self.register_buffer("mean", torch.from_numpy(mean))
        self.register_buffer("sd", torch.from_numpy(sd))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.sd


def _moments(columns: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean and standard deviation of every column; the latter is 1 for constants, also for those with rounding."""
    scaler = StandardScaler().fit(columns)
    return cast(NDArray[Any], scaler.mean_), cast(NDArray[Any], scaler.scale_)


def _positions(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.intp]:
    """Where each label stands among the sorted classes."""
    strange = np.setdiff1d(labels, classes)
    if len(strange):
        raise PartError(f"y holds {strange}, expected labels among {classes}, the classes of the first call")
    return np.searchsorted(classes, labels)
