"""The curvature at pretrained weights, against closed forms, exact Hessians and slow plain loops."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pretrained_cases import Recurrent, Tied, assert_same, float64_alone, small_net
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from postprior.data.parts import as_inputs, as_part
from postprior.errors import NetworkError, PartError, SettingError
from postprior.learning import pretrained
from postprior.learning.likelihoods import Bernoulli, Categorical, Custom, Gaussian, Likelihood, Poisson
from postprior.learning.pretrained import (
    Kind,
    fisher_diagonal,
)

F64 = torch.float64


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with float64_alone():
        yield


def slow_empirical(network: nn.Module, x: Any, y: Tensor, likelihood: Likelihood) -> dict[str, Tensor]:
    """One example, one backward pass, one square."""
    network = copy.deepcopy(network).eval().requires_grad_(True)
    sums = {name: torch.zeros_like(value) for name, value in network.named_parameters()}
    for i in range(len(y)):
        network.zero_grad()
        outputs = network(x[i : i + 1])
        targets = likelihood.check(outputs, y[i : i + 1], 0)
        (-likelihood.log_prob(outputs, targets, {})).sum().backward()
        for name, value in network.named_parameters():
            sums[name] += 0 if value.grad is None else value.grad.square()
    return sums


def hessian_diagonal(network: nn.Module, x: Tensor, y: Tensor, likelihood: Likelihood) -> dict[str, Tensor]:
    """The diagonal of the exact Hessian of -log p(D | w)."""
    names, values = zip(*((n, p.detach()) for n, p in network.named_parameters()), strict=True)

    def loss(*weights: Tensor) -> Tensor:
        outputs = torch.func.functional_call(network, dict(zip(names, weights, strict=True)), (x,))
        return -likelihood.log_prob(outputs, likelihood.check(outputs, y, 0), {}).sum()

    blocks: Any = torch.autograd.functional.hessian(loss, values)
    each = [blocks[i][i].reshape(v.numel(), v.numel()).diagonal().view_as(v) for i, v in enumerate(values)]
    return dict(zip(names, each, strict=True))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([(self.up if row.sum() > 0 else self.down)(row)[None] for row in x])


def conv_net() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2))
    network = nn.Sequential(body, nn.Flatten(), nn.Linear(3 * 2 * 2, 3))
    with torch.no_grad():
        network(torch.randn(20, 1, 6, 6))  # running statistics worth the name
    return network.train()


def test_a_linear_gaussian_model_has_a_known_curvature() -> None:
    x, y = torch.randn(50, 4), torch.randn(50, 1)
    found = fisher_diagonal(nn.Linear(4, 1), as_part((x, y)), Gaussian(sd=0.5), kind="ggn")
    exact = {"weight": (x.T @ x).diagonal()[None] / 0.5**2, "bias": torch.tensor([50 / 0.5**2])}
    assert_same(found, exact, rtol=1e-12)


def test_the_empirical_curvature_of_a_linear_gaussian_model() -> None:
    x, y = torch.randn(50, 4), torch.randn(50, 1)
    network = nn.Linear(4, 1)
    residual = (y - network(x)).detach() / 0.5**2
    exact = {"weight": (residual * x).square().sum(0)[None], "bias": residual.square().sum(0)}
    assert_same(fisher_diagonal(network, as_part((x, y)), Gaussian(sd=0.5)), exact)


def test_noise_to_be_learned_is_taken_at_its_prior_mean() -> None:
    part = as_part((torch.randn(20, 3), torch.randn(20, 1)))
    network = small_net(1)
    learned = fisher_diagonal(network, part, Gaussian(), kind="ggn")
    assert_same(learned, fisher_diagonal(network, part, Gaussian(sd=1.0), kind="ggn"))


CASES: list[tuple[Likelihood, tuple[int, ...], Tensor]] = [
    (Categorical(), (4,), torch.arange(30) % 4),
    (Bernoulli(), (2,), (torch.arange(60) % 3 == 0).double().view(30, 2)),
    (Poisson(), (2,), (torch.arange(60) % 4).double().view(30, 2)),
    (Gaussian(sd=0.3), (2,), torch.linspace(-1, 1, 60, dtype=F64).view(30, 2)),
    (Categorical(), (3, 2, 2), torch.arange(120).view(30, 2, 2) % 3),
    (Bernoulli(), (), (torch.arange(30) % 2).double()),
]


@pytest.mark.parametrize(("likelihood", "shape", "y"), CASES, ids=lambda value: getattr(value, "name", None))
def test_ggn_is_the_exact_hessian_where_outputs_are_linear(
    likelihood: Likelihood, shape: tuple[int, ...], y: Tensor
) -> None:
    network = nn.Sequential(nn.Linear(3, math.prod(shape)), nn.Unflatten(1, shape) if shape else nn.Flatten(0))
    x = torch.randn(30, 3)
    found = fisher_diagonal(network, as_part((x, y)), likelihood, kind="ggn")
    assert_same(found, hessian_diagonal(network, x, y, likelihood))


@pytest.mark.parametrize(("likelihood", "shape", "y"), CASES, ids=lambda value: getattr(value, "name", None))
def test_monte_carlo_is_unbiased_for_ggn(likelihood: Likelihood, shape: tuple[int, ...], y: Tensor) -> None:
    network = nn.Sequential(small_net(math.prod(shape)), nn.Unflatten(1, shape) if shape else nn.Flatten(0))
    part = as_part((torch.randn(30, 3), y))
    exact = fisher_diagonal(network, part, likelihood, kind="ggn")
    runs = [
        fisher_diagonal(network, part, likelihood, kind="monte_carlo", num_samples=10, seed=seed) for seed in range(60)
    ]
    for name, value in exact.items():
        each = torch.stack([run[name] for run in runs])
        error = each.std(0) / len(runs) ** 0.5
        assert ((each.mean(0) - value).abs() <= 4 * error + 1e-12).all(), name


def test_monte_carlo_follows_its_seed_and_leaves_the_global_generator() -> None:
    network, part = small_net(), as_part((torch.randn(9, 3), torch.arange(9) % 3))
    before = torch.get_rng_state()
    one, again, other = (
        fisher_diagonal(network, part, Categorical(), kind="monte_carlo", seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert_same(one, again, rtol=0, atol=0)
    assert not torch.equal(one["0.weight"], other["0.weight"])


IMAGES, SERIES = (40, 1, 6, 6), (40, 5, 3)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (small_net, (40, 3)),
        (conv_net, IMAGES),
        (Recurrent, SERIES),
        (lambda: Recurrent(nn.GRU), SERIES),
        (Branching, (40, 3)),
        (Tied, (40, 3)),
    ],
    ids=["dense", "conv and BatchNorm", "LSTM", "GRU", "branching", "tied"],
)
def test_empirical_is_a_slow_loop_of_gradients(make: Any, shape: tuple[int, ...]) -> None:
    network, x, y = make(), torch.randn(shape), torch.arange(40) % 3
    state = copy.deepcopy(network.state_dict())
    found = fisher_diagonal(network, as_part((x, y)), Categorical(), batch_size=16)
    assert_same(found, slow_empirical(network, x, y, Categorical()))
    assert_same(network.state_dict(), state, rtol=0, atol=0)
    assert network.training
    assert all(p.grad is None for p in network.parameters())


def test_the_loop_serves_only_what_vmap_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise AssertionError

    part = as_part((torch.randn(IMAGES), torch.arange(40) % 3))
    monkeypatch.setattr(pretrained, "_one_by_one", refuse)
    fisher_diagonal(conv_net(), part, Categorical(), kind="ggn")
    with pytest.raises(AssertionError):
        fisher_diagonal(Branching(), as_part((torch.randn(4, 3), torch.arange(4) % 3)), Categorical())


@pytest.mark.parametrize("kind", ["empirical", "monte_carlo", "ggn"])
def test_loop_and_vmap_agree(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    network, part = conv_net(), as_part((torch.randn(IMAGES), torch.arange(40) % 3))
    fast = fisher_diagonal(network, part, Categorical(), kind=kind, num_samples=3)
    monkeypatch.setattr(pretrained, "_all_at_once", pretrained._one_by_one)
    assert_same(fast, fisher_diagonal(network, part, Categorical(), kind=kind, num_samples=3))


def test_batches_of_any_size_give_the_same_sum() -> None:
    network, x, y = small_net(), torch.randn(33, 3), torch.arange(33) % 3
    whole = fisher_diagonal(network, as_part((x, y)), Categorical(), kind="ggn", batch_size=100)
    loader: Any = DataLoader(TensorDataset(x, y), batch_size=20)
    for part in (as_part((x, y)), as_part(loader)):
        assert_same(whole, fisher_diagonal(network, part, Categorical(), kind="ggn", batch_size=8))


def test_several_inputs_and_what_is_not_an_example() -> None:
    network, x, shift, y = Tied(), torch.randn(8, 3), torch.randn(8, 3), torch.arange(8) % 3
    found = fisher_diagonal(network, as_part({"x": x, "shift": shift, "label": y}), Categorical(), batch_size=3)
    slow = [
        fisher_diagonal(
            network, as_part({"x": x[i : i + 1], "shift": shift[i : i + 1], "label": y[i : i + 1]}), Categorical()
        )
        for i in range(8)
    ]
    assert_same(found, {name: sum((s[name] for s in slow), torch.zeros(())) for name in found})


def test_an_input_shared_by_all_examples() -> None:
    network, x, shift, y = Tied(), torch.randn(8, 3), torch.randn(3), torch.arange(8) % 3
    dataset: Any = TensorDataset(x, y)

    def collate(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        inputs, targets = map(torch.stack, zip(*items, strict=True))
        return inputs, shift, targets

    shared = as_part(DataLoader(dataset, batch_size=4, collate_fn=collate))
    copied = as_part(((x, shift.expand(8, 3)), y))
    assert_same(fisher_diagonal(network, shared, Categorical()), fisher_diagonal(network, copied, Categorical()))


def test_curvature_of_the_prediction_needs_no_targets() -> None:
    network, x = small_net(), torch.randn(8, 3)
    labelled = fisher_diagonal(network, as_part((x, torch.zeros(8, dtype=torch.long))), Categorical(), kind="ggn")
    assert_same(labelled, fisher_diagonal(network, as_inputs(x), Categorical(), kind="ggn"))


def test_a_likelihood_of_your_own() -> None:
    network, part = small_net(1), as_part((torch.randn(9, 3), torch.randn(9, 1)))
    own = Custom(lambda outputs, targets: -0.5 * (targets - outputs).square().sum(1) / 0.5**2)
    assert_same(fisher_diagonal(network, part, own), fisher_diagonal(network, part, Gaussian(sd=0.5)))
    with pytest.raises(SettingError, match="Custom cannot: choose kind='empirical'"):
        fisher_diagonal(network, part, own, kind="monte_carlo")
    with pytest.raises(SettingError, match="Custom does not give: choose kind='empirical'"):
        fisher_diagonal(network, part, own, kind="ggn")


class Trembling(nn.Linear):
    """Draws noise, too small to matter, from the global generator."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 1e-6 * torch.randn_like(x))


def test_noise_inside_a_network_is_kept_apart() -> None:
    network, part = Trembling(3, 3), as_part((torch.randn(8, 3), torch.arange(8) % 3))
    before = torch.get_rng_state()
    one, again = (fisher_diagonal(network, part, Categorical()) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert_same(one, again, rtol=0, atol=0)


def test_too_little_memory_is_no_reason_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise torch.OutOfMemoryError

    part = as_part((torch.randn(8, 3), torch.arange(8) % 3))
    with monkeypatch.context() as patch:
        patch.setattr(pretrained.layerwise.Squares, "of", refuse)
        with pytest.raises(torch.OutOfMemoryError):
            fisher_diagonal(small_net(), part, Categorical())
    # A parameter that no layer knows is beyond the way by layers.
    monkeypatch.setattr(pretrained, "_all_at_once", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        fisher_diagonal(Tied(), part, Categorical())


def test_what_curvature_refuses() -> None:
    wide, part = nn.Linear(3, 101), as_part((torch.randn(4, 3), torch.arange(4)))
    with pytest.raises(SettingError, match=r"101 output elements .* choose kind='monte_carlo'"):
        fisher_diagonal(wide, part, Categorical(), kind="ggn")
    with pytest.raises(SettingError, match="kind='hessian': expected empirical, monte_carlo, ggn"):
        fisher_diagonal(wide, part, Categorical(), kind="hessian")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SettingError, match="batch_size=0"):
        fisher_diagonal(wide, part, Categorical(), batch_size=0)
    with pytest.raises(PartError, match="the part is empty"):
        fisher_diagonal(wide, as_part((torch.randn(0, 3), torch.arange(0))), Categorical())
    with pytest.raises(PartError, match="example 3 has target 101"):
        fisher_diagonal(wide, as_part((torch.randn(4, 3), torch.tensor([0, 1, 2, 101]))), Categorical())
    mixing = nn.Sequential(nn.Conv1d(3, 3, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Flatten())
    with pytest.raises(NetworkError, match="changes with the others in its batch"):
        fisher_diagonal(mixing, as_part((torch.randn(4, 3, 5), torch.arange(4))), Categorical())


# ---------------------------------------------------------------- what likelihoods draw


@pytest.mark.parametrize(("likelihood", "shape", "y"), CASES, ids=lambda value: getattr(value, "name", None))
def test_samples_have_the_moments_and_the_form_of_targets(
    likelihood: Likelihood, shape: tuple[int, ...], y: Tensor
) -> None:
    outputs, count = torch.randn(2, *shape), 20_000
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([likelihood.sample(outputs, {}, generator) for _ in range(count)])
    assert torch.equal(likelihood.check(outputs, draws[0], 0), draws[0])
    truth = likelihood.predictive(outputs, {})
    if isinstance(likelihood, Categorical):
        draws = F.one_hot(draws, shape[0]).double().movedim(-1, 2)
    error = (truth.variance / count).sqrt()
    assert ((draws.double().mean(0) - truth.mean).abs() <= 4 * error).all()
