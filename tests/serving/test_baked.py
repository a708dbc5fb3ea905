"""A baked belief answers as ``predict`` does, from raw inputs, and keeps once what its samples share."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import postprior
from postprior.errors import BeliefError, SettingError
from postprior.serving.baked import Baked, baked

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(5))


def network(num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, num_outputs))


def ingredients(name: str, family: str = "factorized", **options: Any) -> tuple[nn.Module, postprior.Belief, Any]:
    likelihood = postprior.Gaussian() if name == "gaussian" else getattr(postprior, name.title())()
    plain = network(4 if name == "categorical" else 2)
    belief = postprior.first_belief(plain, family, prior_sd=0.5, unknowns=likelihood.unknowns(), **options)
    return plain, belief, likelihood


def answer(module: Baked, *inputs: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return module(*inputs)


@pytest.mark.parametrize("family", ["point", "factorized", "channelwise", "multiplicative"])
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian", "poisson"])
def test_it_answers_as_predict_does(family: str, likelihood: str) -> None:
    plain, belief, kind = ingredients(likelihood, family)
    expected = postprior.predict(plain, belief, postprior.as_inputs(X), kind, num_samples=6, seed=3)
    found = answer(baked(plain, belief, kind, num_samples=6, seed=3), X)
    classes = likelihood in ("categorical", "bernoulli")
    third = {"entropy", "mutual_information"} if classes else {"variance", "epistemic_variance"}
    assert set(found) == {"mean"} | third
    for name, value in found.items():
        torch.testing.assert_close(value, getattr(expected, name), atol=1e-6, rtol=1e-5)


def test_another_seed_gives_other_samples() -> None:
    plain, belief, kind = ingredients("categorical")
    first, second = (answer(baked(plain, belief, kind, num_samples=4, seed=seed), X)["mean"] for seed in (1, 2))
    assert not torch.allclose(first, second)


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_the_mean_weights_take_one_forward_and_know_no_doubt_about_the_weights(likelihood: str) -> None:
    plain, belief, kind = ingredients(likelihood)
    module = baked(plain, belief, kind, at_mean=True)
    expected = postprior.predict(plain, belief, postprior.as_inputs(X), kind, at_mean=True)
    found = answer(module, X)
    assert len(module.samples) == 1
    assert list(found) == ["mean", "entropy" if likelihood == "categorical" else "variance"]
    for name, value in found.items():
        torch.testing.assert_close(value, getattr(expected, name))


def test_raw_inputs_are_normalised_inside() -> None:
    plain, belief, kind = ingredients("categorical")
    raw = torch.randint(256, (12, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, sd = torch.tensor([120.0, 130.0, 90.0]), torch.tensor([60.0, 50.0, 70.0])
    plainly = postprior.predict(
        plain, belief, postprior.as_inputs((raw.float() - mean) / sd), kind, num_samples=5, seed=1
    )
    found = answer(baked(plain, belief, kind, num_samples=5, seed=1, mean=mean, sd=sd), raw)
    torch.testing.assert_close(found["mean"], plainly.mean)


def test_points_and_buffers_are_kept_once() -> None:
    plain, belief, kind = ingredients("categorical", point=["3.*"])
    first, second = (dict(sample.state_dict(keep_vars=True)) for sample in baked(plain, belief, kind).samples[:2])
    same = {name for name in first if first[name] is second[name]}
    assert same == {
        *("network.3.weight", "network.3.bias"),
        *("network.1.running_mean", "network.1.running_var", "network.1.num_batches_tracked"),
    }
    assert not torch.equal(first["network.0.weight"], second["network.0.weight"])


def test_inputs_by_name_and_the_network_itself_is_left_alone() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 2), nn.Linear(2, 2)

        def forward(self, *, left: Tensor, right: Tensor) -> Tensor:
            return self.left(left) - self.right(right)

    plain = Named()
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    belief, kind, right = postprior.first_belief(plain), postprior.Categorical(), X[:, :2]
    found = answer(baked(plain, belief, kind, num_samples=3, by_name=("right", "left")), right, X)
    asked = postprior.as_inputs({"left": X, "right": right})
    torch.testing.assert_close(found["mean"], postprior.predict(plain, belief, asked, kind, num_samples=3).mean)
    assert all(torch.equal(before[name], value) for name, value in plain.state_dict().items())


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3)
            self.outer.weight = self.inner.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(self.inner(x).tanh())

    plain = Tied()
    belief, kind = postprior.first_belief(plain), postprior.Categorical()
    module = baked(plain, belief, kind, num_samples=3)
    expected = postprior.predict(plain, belief, postprior.as_inputs(X), kind, num_samples=3)
    torch.testing.assert_close(answer(module, X)["mean"], expected.mean)
    sample: Any = module.samples[0]
    assert sample.network.outer.weight is sample.network.inner.weight


def test_errors() -> None:
    plain, belief, kind = ingredients("categorical")
    with pytest.raises(SettingError, match="num_samples=0: expected a whole number from 1"):
        baked(plain, belief, kind, num_samples=0)
    with pytest.raises(SettingError, match="both a mean and an sd"):
        baked(plain, belief, kind, mean=torch.zeros(3))
    with pytest.raises(SettingError, match=r"sd \[1.0, 0.0, 1.0\]: expected finite numbers, and an sd above 0"):
        baked(plain, belief, kind, mean=torch.zeros(3), sd=torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(BeliefError, match="another network"):
        baked(nn.Linear(2, 2), belief, kind)
    with pytest.raises(BeliefError, match="log_sd is to be learned"):
        baked(plain, belief, postprior.Gaussian())
