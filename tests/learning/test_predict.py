"""Predictions: averages over weight samples, their uncertainty, their memory and their seed."""

import math
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import postprior
from postprior.errors import BeliefError, PartError, SettingError
from postprior.learning import forward
from postprior.networks.zoo import LeNet5


def learned(likelihood: str = "categorical") -> postprior.Learner:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=g)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    targets = {"categorical": y, "bernoulli": (y > 0).float(), "gaussian": x[:, 0] ** 2, "poisson": y.float()}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3 if likelihood == "categorical" else 1))
    learner = postprior.Learner(network, likelihood=likelihood, epochs=20, temperature=0.3, start_sd=0.2)
    learner.absorb((x, targets[likelihood]))
    return learner


X = torch.randn(30, 3, generator=torch.Generator().manual_seed(5))


def sampled_outputs(learner: postprior.Learner, num_samples: int) -> Tensor:
    """The same by a plain loop with a seed of its own."""
    mean, sd = learner.belief.mean(), learner.belief.sd()
    g = torch.Generator().manual_seed(77)
    outputs: list[Tensor] = []
    for _ in range(num_samples):
        weights = {k: mean[k] + sd[k] * torch.randn(mean[k].shape, generator=g) for k in mean if "likelihood" not in k}
        outputs.append(torch.func.functional_call(learner.network, weights, (X,)).detach())
    return torch.stack(outputs)


def test_class_probabilities_entropy_and_information() -> None:
    learner = learned()
    found = learner.predict(X, num_samples=2000)
    probabilities = sampled_outputs(learner, 2000).softmax(-1)
    mean = probabilities.mean(0)
    torch.testing.assert_close(found.mean, mean, atol=0.02, rtol=0)
    assert found.entropy is not None
    assert found.mutual_information is not None
    entropy = -(mean * mean.log()).sum(1)
    expected = entropy + (probabilities * probabilities.log()).sum(-1).mean(0)
    torch.testing.assert_close(found.entropy, entropy, atol=0.02, rtol=0)
    torch.testing.assert_close(found.mutual_information, expected, atol=0.02, rtol=0)
    assert (found.mutual_information <= found.entropy).all()
    torch.testing.assert_close(found.epistemic_variance, probabilities.var(0, correction=0), atol=0.01, rtol=0)
    torch.testing.assert_close(found.variance, mean * (1 - mean), atol=0.02, rtol=0)


def test_regression_variance_is_noise_and_doubt() -> None:
    learner = learned("gaussian")
    found = learner.predict(X, num_samples=2000)
    outputs = sampled_outputs(learner, 2000)
    torch.testing.assert_close(found.epistemic_variance, outputs.var(0, correction=0), rtol=0.2, atol=0.01)
    log_sd, width = learner.belief.mean()["likelihood.log_sd"], learner.belief.sd()["likelihood.log_sd"]
    noise = torch.exp(2 * log_sd + 2 * width**2)  # the mean of a log-normal
    torch.testing.assert_close(found.variance - found.epistemic_variance, noise.expand(30, 1), rtol=0.05, atol=0)


def test_the_mean_mode_is_the_network_at_its_mean() -> None:
    learner = learned()
    found = learner.predict(X, at_mean=True)
    torch.testing.assert_close(found.mean, learner.mean_network()(X).softmax(1).detach())
    assert found.mutual_information is not None
    assert found.mutual_information.max() == 0


def test_samples_come_on_request_and_average_to_the_mean() -> None:
    learner = learned()
    assert learner.predict(X).samples is None
    found = learner.predict(X, num_samples=7, keep_samples=True)
    assert found.samples is not None
    assert found.samples.shape == (7, 30, 3)
    torch.testing.assert_close(found.samples.mean(0), found.mean)


@pytest.mark.parametrize("batch_size", [1, 7, 500])
def test_what_is_asked_together_does_not_matter(batch_size: int) -> None:
    """All examples meet the same weight samples, however they are cut, so memory can be bounded."""
    learner = learned()
    whole = learner.predict(X, num_samples=20)
    cut = learner.predict(X, num_samples=20, batch_size=batch_size)
    torch.testing.assert_close(cut.mean, whole.mean)
    torch.testing.assert_close(cut.epistemic_variance, whole.epistemic_variance)


def test_no_tensor_grows_with_the_number_of_samples() -> None:
    learner = learned()
    largest = {}
    for num_samples in (5, 50):
        made: list[int] = []

        class Watch(torch.overrides.TorchFunctionMode):
            def __torch_function__(
                self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
            ) -> Any:
                out = func(*args, **(kwargs or {}))
                if isinstance(out, Tensor):
                    made.append(out.numel())  # noqa: B023
                return out

        with Watch():
            learner.predict(X, num_samples=num_samples)
        largest[num_samples] = max(made)
    assert largest[5] == largest[50]


def test_the_seed_decides() -> None:
    learner = learned()
    first = learner.predict(X, num_samples=5, seed=1).mean
    torch.rand(3)
    assert torch.equal(first, learner.predict(X, num_samples=5, seed=1).mean)
    assert not torch.equal(first, learner.predict(X, num_samples=5, seed=2).mean)


def test_the_score_is_that_of_the_averaged_density() -> None:
    learner = learned()
    y = torch.randint(3, (30,), generator=torch.Generator().manual_seed(1))
    found = learner.score((X, y), num_samples=50)
    mean = learner.predict(X, num_samples=50).mean
    assert found.nll == pytest.approx(-float(mean[torch.arange(30), y].log().mean()), rel=1e-5)
    assert found.accuracy == pytest.approx(float((mean.argmax(1) == y).float().mean()))
    regression = learned("gaussian").score((X, X[:, 0]))
    assert regression.accuracy is None
    assert math.isfinite(regression.nll)


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson"])
def test_other_likelihoods_predict(likelihood: str) -> None:
    found = learned(likelihood).predict(X)
    assert found.mean.shape == (30, 1)
    assert (found.variance >= found.epistemic_variance).all()
    assert (found.entropy is None) == (likelihood == "poisson")


ASKED: dict[str, Any] = {
    "tensor": X,
    "array": X.numpy(),
    "dataset with targets": TensorDataset(X, torch.zeros(30)),
    "dataset without": TensorDataset(X),
    "loader with targets": DataLoader(TensorDataset(X, torch.zeros(30)), batch_size=7),
    "loader without": DataLoader(TensorDataset(X), batch_size=7),
    "loader of bare tensors": DataLoader(X, batch_size=7),  # type: ignore[arg-type]
    "dictionary": {"x": X},
}


@pytest.mark.parametrize("kind", ASKED)
def test_all_kinds_of_inputs_are_predicted_alike(kind: str) -> None:
    learner = learned()
    torch.testing.assert_close(learner.predict(ASKED[kind], num_samples=5).mean, learner.predict(X, num_samples=5).mean)


def test_what_the_likelihood_learns_must_be_in_the_belief() -> None:
    belief = postprior.first_belief(nn.Linear(3, 1))
    with pytest.raises(BeliefError, match=r"Gaussian's log_sd is to be learned.*unknowns=likelihood.unknowns\(\)"):
        postprior.predict(nn.Linear(3, 1), belief, postprior.as_inputs(X), postprior.Gaussian())


def test_errors() -> None:
    learner = learned()
    with pytest.raises(PartError, match="example 3: input holds nan"):
        learner.predict(X.clone().index_fill(0, torch.tensor(3), torch.nan))
    with pytest.raises(PartError, match="nothing to predict"):
        learner.predict(X[:0])
    with pytest.raises(PartError, match="refused the batch that starts at example 0"):
        learner.predict(X[:, :2])
    with pytest.raises(PartError, match="the first axis of the inputs must count examples"):
        learner.predict(X[0])
    with pytest.raises(SettingError, match="num_samples=0"):
        learner.predict(X, num_samples=0)


# The fast ways of asking.


class Mixing(nn.Module):
    """Every output depends on the other examples of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


def images_and_learner(network: nn.Module) -> tuple[Tensor, postprior.Learner]:
    images = torch.randn(70, 1, 28, 28, generator=torch.Generator().manual_seed(6))
    return images, postprior.Learner(network, seed=3, prior_sd="fan_in")


def test_pieces_that_stay_in_the_cache_predict_what_the_whole_does(monkeypatch: pytest.MonkeyPatch) -> None:
    images, learner = images_and_learner(LeNet5())
    whole = learner.predict(images, num_samples=5, keep_samples=True)  # 70 images are one piece
    sizes: list[int] = []
    network = learner.network.forward

    def counted(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return network(x)

    monkeypatch.setattr(forward, "NEAR", 16 * 28 * 28)
    pieces = learner.predict(images, num_samples=5, keep_samples=True)
    assert whole.samples is not None
    assert pieces.samples is not None
    torch.testing.assert_close(pieces.samples, whole.samples, rtol=0, atol=1e-5)
    torch.testing.assert_close(pieces.mean, whole.mean, rtol=0, atol=1e-5)
    monkeypatch.setattr(learner.network, "forward", counted)
    learner.predict(images, num_samples=2)
    assert sizes == [70, 16, 16, 16, 16, 6, 16, 16, 16, 16, 6]


def test_a_network_that_mixes_examples_gets_them_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = postprior.Learner(Mixing(), prior_sd=1.0)
    whole = learner.predict(X, num_samples=4)
    monkeypatch.setattr(forward, "NEAR", 12)
    torch.testing.assert_close(learner.predict(X, num_samples=4).mean, whole.mean, rtol=0, atol=0)


def test_bfloat16_predicts_nearly_the_same() -> None:
    images, learner = images_and_learner(LeNet5())
    full = learner.predict(images, num_samples=5)
    half = learner.predict(images, num_samples=5, precision="bfloat16")
    assert half.mean.dtype == torch.float32
    gap = (half.mean - full.mean).abs().max()
    assert 0 < gap < 0.01
    with pytest.raises(SettingError, match="precision='float16': expected 'float32' or 'bfloat16'"):
        learner.predict(images, precision="float16")  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is none here")
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_compiled_predicts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned()
    monkeypatch.setattr(forward, "NEAR", 3 * 8)  # pieces of eight examples, and a rest that is not compiled
    plain = learner.predict(X, num_samples=3)
    for _ in range(2):  # the second time with what the first one compiled
        found = learner.predict(X, num_samples=3, compiled=True)
        torch.testing.assert_close(found.mean, plain.mean, rtol=0, atol=1e-5)


def test_where_nothing_compiles_the_prediction_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no compiler found\nand more")

    learner = learned()
    plain = learner.predict(X, num_samples=3)
    monkeypatch.setattr(torch, "compile", lambda call, **_: fails)
    with pytest.warns(UserWarning, match=r"could not be compiled here \(RuntimeError: no compiler found\)"):
        found = learner.predict(X, num_samples=3, compiled=True)
    assert torch.equal(found.mean, plain.mean)
