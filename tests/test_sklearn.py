"""The estimators keep scikit-learn's contract, and the library's promise: parts learned in turn are not forgotten."""

import builtins
import copy
import doctest
import importlib.util
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import postprior.sklearn
from postprior.errors import MissingExtraError, PartError, SettingError
from postprior.sklearn import BayesianClassifier, BayesianRegressor

QUICK: dict[str, Any] = {"hidden_layer_sizes": (16,), "epochs": 20, "learning_rate": 0.02, "num_samples": 8}
TINY: dict[str, Any] = {"hidden_layer_sizes": (4,), "epochs": 2, "num_samples": 4, "random_state": 0}

Arrays = tuple[NDArray[Any], NDArray[Any]]


@parametrize_with_checks([BayesianClassifier(**QUICK), BayesianRegressor(**QUICK)])
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def blobs(num_examples: int = 60, seed: int = 0) -> Arrays:
    """Three classes in the plane, far apart."""
    noise = np.random.default_rng(seed)
    y = np.arange(num_examples) % 3
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    return centres[y] + noise.normal(size=(num_examples, 2)), y


def wave(num_examples: int, noise_sd: float = 20.0, seed: int = 0) -> Arrays:
    """A sine around 1000, a hundred high, with noise."""
    noise = np.random.default_rng(seed)
    X = noise.uniform(-3, 3, size=(num_examples, 1))
    return X, 1000 + 100 * np.sin(X[:, 0]) + noise_sd * noise.normal(size=num_examples)


def test_digits_in_five_parts_end_close_to_digits_at_once() -> None:
    X, y = load_digits(return_X_y=True)
    model = BayesianClassifier(hidden_layer_sizes=(32,), epochs=40, num_samples=20, random_state=0)
    at_once = clone(model).fit(X[:1000], y[:1000]).score(X[1000:], y[1000:])
    for part in np.array_split(np.arange(1000), 5):
        model.partial_fit(X[part], y[part], classes=np.arange(10))
    assert at_once > 0.9
    assert model.score(X[1000:], y[1000:]) > at_once - 0.03
    assert model.learner_.belief.num_parts == 5
    assert model.learner_.belief.num_examples == 1000


def test_a_class_that_later_parts_lack_is_remembered_where_fine_tuning_forgets_it() -> None:
    X, y = blobs(150)
    X_new, y_new = blobs(300, seed=1)
    recall: dict[str, float] = {}
    for family in ("factorized", "point"):
        model = BayesianClassifier(**{**QUICK, "epochs": 40}, family=family, random_state=0)
        model.partial_fit(X[:120], y[:120], classes=[0, 1, 2])
        for part in np.array_split(np.flatnonzero(y != 2), 3):
            model.partial_fit(X[part], y[part])
        recall[family] = np.mean(model.predict(X_new[y_new == 2]) == 2)
    assert recall["factorized"] > 0.6
    assert recall["point"] < 0.3


def test_fit_forgets() -> None:
    X, y = blobs()
    fresh = BayesianClassifier(**TINY).fit(X, y)
    used = BayesianClassifier(**TINY).fit(X[:, :1], y == 1).fit(X, y)
    assert used.learner_.belief.num_parts == 1
    assert np.array_equal(used.predict_proba(X), fresh.predict_proba(X))


def test_fit_then_partial_fit_goes_on_from_there() -> None:
    X, y = blobs()
    model = BayesianClassifier(**TINY).fit(X, y).partial_fit(X, y)
    assert model.learner_.belief.num_parts == 2
    assert model.update_.before is not None


@pytest.mark.parametrize(("kind", "part"), [(BayesianClassifier, blobs()), (BayesianRegressor, wave(40))])
def test_same_random_state_same_predictions_whatever_torchs_generator(kind: type[Any], part: Arrays) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = kind(**TINY).fit(*part).predict(part[0])
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert np.array_equal(kind(**TINY).fit(*part).predict(part[0]), first)


def test_another_random_state_is_another_network() -> None:
    X, y = blobs()
    one, other = (BayesianClassifier(**{**TINY, "random_state": seed}).fit(X, y) for seed in (0, 1))
    assert not np.allclose(one.predict_proba(X), other.predict_proba(X))


def test_a_regressor_in_parts_finds_targets_far_from_zero_and_says_how_sure_it_is() -> None:
    X, y = wave(600)
    model = BayesianRegressor(hidden_layer_sizes=(32,), epochs=60, num_samples=50, random_state=0)
    for part in np.array_split(np.arange(600), 5):
        model.partial_fit(X[part], y[part])
    X_new, y_new = wave(1000, seed=1)
    mean, sd = model.predict(X_new, return_std=True)
    assert model.score(X_new, y_new) > 0.9
    assert sd.mean() == pytest.approx(20, rel=0.25)
    assert np.mean(abs(y_new - mean) < 1.96 * sd) == pytest.approx(0.95, abs=0.03)


def test_doubt_grows_away_from_the_data() -> None:
    model = BayesianRegressor(**{**QUICK, "epochs": 60}, random_state=0).fit(*wave(200))
    _, sd = model.predict(np.array([[0.0], [20.0]]), return_std=True)
    assert sd[1] > 2 * sd[0]


def test_moments_are_those_of_the_first_part() -> None:
    X, y = wave(40)
    model = BayesianRegressor(**TINY).partial_fit(X, y).partial_fit(X + 5, y + 500)
    assert model.target_mean_ == pytest.approx(y.mean())
    assert model.target_sd_ == pytest.approx(y.std())
    assert model.learner_.belief.buffers["inputs.mean"].numpy() == pytest.approx(X.mean(0))


def test_units_of_the_inputs_do_not_matter_unless_one_scales_them_oneself() -> None:
    X, y = blobs()
    model = BayesianClassifier(**TINY)
    far = X * [1e-3, 1e5] + [3.0, 1e6]
    assert clone(model).fit(far, y).predict_proba(far) == pytest.approx(clone(model).fit(X, y).predict_proba(X))
    as_it_is = clone(model).set_params(standardize=False).fit(X, y)
    assert "inputs.mean" not in as_it_is.learner_.belief.buffers


def test_labels_may_be_words() -> None:
    X, y = blobs()
    words = np.array(["oak", "ash", "elm"])[y]
    model = BayesianClassifier(**QUICK, random_state=0).partial_fit(X, words, classes=["yew", "oak", "ash", "elm"])
    assert model.classes_.tolist() == ["ash", "elm", "oak", "yew"]
    assert model.score(X, words) > 0.9


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_learns_on_apart_from_the_original(duplicate: Any) -> None:
    X, y = blobs()
    model = BayesianClassifier(**TINY).fit(X, y)
    before = model.predict_proba(X)
    twin = duplicate(model)
    assert np.array_equal(twin.predict_proba(X), before)
    twin.partial_fit(X, y)
    assert np.array_equal(model.predict_proba(X), before)
    assert np.array_equal(model.partial_fit(X, y).predict_proba(X), twin.predict_proba(X))


def test_a_network_of_ones_own() -> None:
    def network(num_features: int, num_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(num_features, 5), nn.Tanh(), nn.Linear(5, num_outputs))

    X, y = blobs()
    model = BayesianClassifier(**TINY, network=network).fit(X, y)
    assert model.learner_.belief.mean()["network.0.weight"].shape == (5, 2)
    assert model.predict_proba(X).sum(1) == pytest.approx(1)


@pytest.mark.parametrize(
    ("sizes", "shapes"), [((), [(3, 2)]), (7, [(7, 2), (3, 7)]), ([6, 5], [(6, 2), (5, 6), (3, 5)])]
)
def test_hidden_layers(sizes: Any, shapes: list[tuple[int, int]]) -> None:
    model = BayesianClassifier(**{**TINY, "hidden_layer_sizes": sizes}).fit(*blobs())
    assert [tuple(mean.shape) for mean in model.learner_.belief.mean().values() if mean.dim() == 2] == shapes


def test_the_network_computes_in_the_type_of_the_first_part() -> None:
    X, y = blobs()
    single = BayesianClassifier(**TINY).fit(X.astype(np.float32), y)
    assert single.predict_proba(X).dtype == np.float32
    assert BayesianClassifier(**TINY).fit(X, y).predict_proba(X).dtype == np.float64


def test_a_part_with_a_label_not_among_the_classes_changes_nothing() -> None:
    X, y = blobs()
    model = BayesianClassifier(**TINY)
    with pytest.raises(PartError, match=r"y holds \[2\], expected labels among \[0 1\]"):
        model.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.partial_fit(X, y, classes=[0, 1, 2])
    belief = model.learner_.belief
    with pytest.raises(PartError, match=r"y holds \[7\]"):
        model.partial_fit(X, y + 5 * (y == 2))
    assert model.learner_.belief is belief


def test_other_classes_than_at_first_are_refused() -> None:
    X, y = blobs()
    model = BayesianClassifier(**TINY)
    with pytest.raises(SettingError, match="classes must be passed on the first call"):
        model.partial_fit(X, y)
    model.partial_fit(X, y, classes=[0, 1, 2]).partial_fit(X, y, classes=[2, 1, 0])
    with pytest.raises(SettingError, match="differ from"):
        model.partial_fit(X, y, classes=[0, 1, 2, 3])


@pytest.mark.parametrize(("kind", "part"), [(BayesianClassifier, blobs()), (BayesianRegressor, wave(40))])
def test_another_number_of_features_is_refused(kind: type[Any], part: Arrays) -> None:
    X, y = part
    model = kind(**TINY).fit(X, y)
    wider = np.hstack([X, X])
    with pytest.raises(ValueError, match=rf"X has {wider.shape[1]} features, but {kind.__name__} is expecting"):
        model.partial_fit(wider, y)
    with pytest.raises(ValueError, match="features"):
        model.predict(wider)


def test_a_wrong_setting_is_named_when_it_is_used() -> None:
    with pytest.raises(SettingError, match="temperature=-1"):
        BayesianClassifier(temperature=-1).fit(*blobs())


def test_in_a_pipeline() -> None:
    pipeline = make_pipeline(StandardScaler(), BayesianRegressor(**QUICK, random_state=0)).fit(*wave(200))
    mean, sd = pipeline.predict(wave(20)[0], return_std=True)
    assert mean.shape == sd.shape == (20,)
    assert pipeline.score(*wave(200, seed=1)) > 0.7


def test_in_a_grid_search() -> None:
    grid = {"temperature": [0.1, 1000.0], "hidden_layer_sizes": [(8,)]}
    search = GridSearchCV(BayesianClassifier(**QUICK, random_state=0), grid, cv=2).fit(*blobs())
    assert search.best_params_["temperature"] == 0.1
    assert search.score(*blobs(seed=1)) > 0.8


@pytest.mark.parametrize("estimator", [BayesianClassifier(), BayesianRegressor()])
def test_the_constructor_says_what_it_was_given(estimator: BaseEstimator) -> None:
    assert repr(clone(estimator).set_params(epochs=3)) == f"{type(estimator).__name__}(epochs=3)"


def test_examples_run() -> None:
    assert doctest.testmod(postprior.sklearn).failed == 0


def test_without_scikit_learn_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("sklearn"):
            raise ModuleNotFoundError("No module named 'sklearn'")
        return real(name, *rest)

    spec = importlib.util.find_spec("postprior.sklearn")
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'postprior\[sklearn\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
