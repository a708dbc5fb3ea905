"""From pretrained weights to a first belief, against closed forms, exact Hessians and slow plain loops."""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from postprior.data.parts import as_inputs, as_part
from postprior.errors import DivergedError, NetworkError, PartError, SettingError
from postprior.learning import pretrained
from postprior.learning.absorb import absorb
from postprior.learning.likelihoods import Bernoulli, Categorical, Custom, Gaussian, Likelihood, Poisson
from postprior.learning.pretrained import (
    Kind,
    fisher_diagonal,
    laplace_belief,
    laplace_sd,
    pretrained_belief,
    search_prior_sd,
    start_anew,
)
from postprior.learning.settings import Settings
from postprior.learning.training import Progress
from postprior.networks.convert import first_belief

F64 = torch.float64
Tensors = Mapping[str, Tensor]


@pytest.fixture(autouse=True)
def _double() -> Any:
    threads = torch.get_num_threads()
    torch.set_default_dtype(F64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)


def assert_same(found: Tensors, expected: Tensors, rtol: float = 1e-8, atol: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


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


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.rnn: Any = kind(3, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([(self.up if row.sum() > 0 else self.down)(row)[None] for row in x])


class Tied(nn.Module):
    """One matrix used twice, a parameter of its own, one that is used nowhere, and a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.scale, self.unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, shift: Any = 0, *, flag: bool = True) -> Tensor:
        assert flag
        return self.second(torch.tanh(self.first(x))) * self.scale + shift


def conv_net() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2))
    network = nn.Sequential(body, nn.Flatten(), nn.Linear(3 * 2 * 2, 3))
    with torch.no_grad():
        network(torch.randn(20, 1, 6, 6))  # running statistics worth the name
    return network.train()


def small_net(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


# ---------------------------------------------------------------- curvature


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

    monkeypatch.setattr(pretrained, "_all_at_once", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        fisher_diagonal(small_net(), as_part((torch.randn(8, 3), torch.arange(8) % 3)), Categorical())


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


# ---------------------------------------------------------------- Laplace


def test_laplace_is_the_exact_posterior_of_an_orthogonal_design() -> None:
    design = torch.linalg.qr(torch.randn(40, 5)).Q * torch.tensor([1.0, 2, 3, 4, 5])
    network, part = nn.Linear(5, 1, bias=False), as_part((design, torch.randn(40, 1)))
    fisher = fisher_diagonal(network, part, Gaussian(sd=0.7), kind="ggn")
    exact = torch.linalg.inv(design.T @ design / 0.7**2 + 2.5 * torch.eye(5)).diagonal().sqrt()
    torch.testing.assert_close(laplace_sd(fisher, 2.5)["weight"], exact[None])
    # At a temperature the old examples count for more, as they do in absorb.
    colder = torch.linalg.inv(design.T @ design / 0.7**2 / 0.05 + 2.5 * torch.eye(5)).diagonal().sqrt()
    torch.testing.assert_close(laplace_sd(fisher, 2.5, temperature=0.05)["weight"], colder[None])


def test_a_weight_without_curvature_has_the_prior_width() -> None:
    fisher = fisher_diagonal(Tied(), as_part((torch.randn(4, 3), torch.arange(4) % 3)), Categorical())
    assert torch.equal(laplace_sd(fisher, 4.0)["unused"], torch.full((2,), 0.5))


@pytest.mark.parametrize("precision", [0.0, -1.0, math.inf, math.nan])
def test_a_prior_precision_must_be_positive(precision: float) -> None:
    with pytest.raises(SettingError, match="prior_precision="):
        laplace_sd({"weight": torch.ones(2)}, precision)


def test_laplace_belief_is_its_three_steps() -> None:
    network, part = small_net(1), as_part((torch.randn(20, 3), torch.randn(20, 1)))
    belief = laplace_belief(network, part, Gaussian(), carry=["0.*"], prior_precision=3.0, kind="ggn", prior_sd=0.4)
    sd = laplace_sd(fisher_diagonal(network, part, Gaussian(), kind="ggn"), 3.0)
    torch.testing.assert_close(belief.sd()["0.weight"], sd["0.weight"])
    torch.testing.assert_close(belief.sd()["2.weight"], torch.full((1, 4), 0.4))
    assert "likelihood.log_sd" in belief.weights


# ---------------------------------------------------------------- the belief


def normed_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_only_carried_parameters_are_centred_on_the_network() -> None:
    network = normed_net()
    belief = pretrained_belief(network, carry=["0.*", "1.weight"], sd=0.1, prior_sd="fan_in")
    first = first_belief(network, prior_sd="fan_in")
    for name, value in network.named_parameters():
        carried = name in ("0.weight", "0.bias", "1.weight")
        torch.testing.assert_close(belief.mean()[name], value.detach() if carried else first.mean()[name])
        expected = torch.full_like(value, 0.1) if carried else first.sd()[name]
        torch.testing.assert_close(belief.sd()[name], expected.detach())


def test_carrying_nothing_is_the_first_belief() -> None:
    network = normed_net()
    belief, first = pretrained_belief(network, carry=(), sd=0.1), first_belief(network)
    assert_same(belief.mean(), first.mean())
    assert_same(belief.sd(), first.sd())


@pytest.mark.parametrize("family", ["factorized", "channelwise", "multiplicative", "point"])
def test_widths_of_every_weight_reach_every_family(family: str) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    sds = {name: torch.rand_like(value) + 0.1 for name, value in network.named_parameters()}
    belief = pretrained_belief(network, family, sd={**sds, "elsewhere": torch.ones(1)})
    assert_same(belief.mean(), {name: value.detach() for name, value in network.named_parameters()})
    if family == "multiplicative":
        given_latent = {n: f.log_sd.exp() for n, f in belief.weights.items()}  # type: ignore[union-attr]
        assert_same(given_latent, sds)
    elif family != "point":
        assert_same(belief.sd(), sds)


def test_points_and_frozen_ones_need_no_width() -> None:
    network = normed_net()
    network[1].requires_grad_(False)
    sds = {"0.weight": torch.full((4, 3), 0.2)}
    belief = pretrained_belief(network, carry=["0.*", "1.*", "3.*"], sd=sds, point=["*.bias"], frozen=["3.*"])
    assert belief.points == {"0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
    assert_same(belief.mean(), {name: value.detach() for name, value in network.named_parameters()})


def test_what_a_belief_refuses() -> None:
    network = normed_net()
    ones = {name: torch.ones_like(value) for name, value in network.named_parameters()}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"carry": ["conv.*"], "sd": 0.1}, r"carry: 'conv.\*' matches no parameter"),
        ({"carry": "0.*", "sd": 0.1}, r"carry='0.\*': expected a sequence of patterns"),
        ({"sd": 0.0}, "sd=0.0: expected a finite number above 0"),
        ({"sd": {"0.weight": ones["0.weight"]}}, "sd says nothing of 0.bias, which is carried"),
        ({"sd": {**ones, "0.bias": torch.ones(5)}}, r"sd of 0.bias has shape \(5,\), expected \(4,\)"),
        ({"sd": {**ones, "0.bias": torch.zeros(4)}}, "sd of 0.bias is not everywhere a finite number above 0"),
        ({"sd": {**ones, "0.bias": torch.full((4,), math.inf)}}, "sd of 0.bias is not everywhere"),
    ]
    for options, message in refused:
        with pytest.raises(SettingError, match=message):
            pretrained_belief(network, **options)


def test_a_narrow_belief_holds_on_to_the_weights_and_a_wide_one_lets_go() -> None:
    network = nn.Linear(4, 1)
    x = torch.randn(30, 4)
    part = as_part((x, x @ torch.full((4, 1), 3.0)))
    moved: list[float] = []
    for sd in (0.001, 10.0):
        prior = pretrained_belief(network, sd=sd)
        settings = Settings(steps=300, learning_rate=0.05)
        belief, _ = absorb(network, prior=prior, part=part, likelihood=Gaussian(sd=1.0), settings=settings)
        moved.append(float((belief.mean()["weight"] - network.weight).abs().max().detach()))
    assert moved[0] < 0.01
    assert moved[1] > 2


# ---------------------------------------------------------------- starting anew


def same(one: nn.Module, other: nn.Module) -> set[str]:
    """The parameters and buffers that agree."""
    others = other.state_dict()
    return {name for name, value in one.state_dict().items() if torch.equal(value, others[name])}


def used(network: nn.Module, x: Tensor) -> nn.Module:
    """The network with running statistics and normalisation weights that are not those of a new one."""
    with torch.no_grad():
        network(x)
        for value in network.parameters():
            value.add_(torch.rand_like(value))
    return network


STATISTICS = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_what_is_carried_stays_and_the_rest_begins_again() -> None:
    network = used(normed_net(), torch.randn(9, 3))
    carried = {"0.weight", "0.bias", "1.weight", "1.bias", *STATISTICS}
    assert same(network, start_anew(network, ["0.*", "1.*"], seed=0)) == carried
    fresh = start_anew(network, ["0.*"], seed=0)
    assert same(network, fresh) == {"0.weight", "0.bias"}
    new = nn.BatchNorm1d(4)
    assert_same(fresh.get_submodule("1").state_dict(), new.state_dict())
    assert same(network, start_anew(network, ["*"], seed=0)) == set(network.state_dict())
    assert same(network, start_anew(network, [], seed=0)) == set()


def test_a_pattern_may_cut_through_a_layer() -> None:
    network = used(normed_net(), torch.randn(9, 3))
    assert same(network, start_anew(network, ["*.weight"], seed=0)) == {"0.weight", "1.weight", "3.weight"}


def test_neither_the_network_nor_the_global_generator_changes() -> None:
    network = used(normed_net(), torch.randn(9, 3))
    state, random = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    one, again, other = (start_anew(network, ["0.*"], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(random, torch.get_rng_state())
    assert_same(network.state_dict(), state, rtol=0, atol=0)
    assert_same(one.state_dict(), again.state_dict(), rtol=0, atol=0)
    assert not {"3.weight", "3.bias"} & same(one, other)
    # A layer starts the same whatever else is carried.
    assert {"3.weight", "3.bias"} <= same(one, start_anew(network, ["1.*"], seed=1))


def test_statistics_without_weights_go_by_their_own_names() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))
    used(network, torch.randn(9, 3))
    assert same(network, start_anew(network, ["0.*", "1.*"], seed=0)) >= STATISTICS
    assert not same(network, start_anew(network, ["0.*"], seed=0)) & STATISTICS
    assert (
        pretrained_belief(network, carry=["0.*", "1.*"], sd=0.1).weights.keys()
        == dict(network.named_parameters()).keys()
    )


class Parent(nn.Module):
    """Begins again with its children, buffers and all."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.own = nn.BatchNorm1d(3), nn.Parameter(torch.ones(3))
        self.register_buffer("clock", torch.zeros(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.child.reset_parameters()
        nn.init.normal_(self.own)
        self.get_buffer("clock").zero_()

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("clock").add_(1)
        return self.child(x) * self.own


def test_a_parent_does_not_reset_what_a_child_carries() -> None:
    network = used(Parent(), torch.randn(9, 3))
    assert same(network, start_anew(network, ["child.weight", "child.bias"], seed=0)) == {
        f"child.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_layers_of_one_shape_begin_apart() -> None:
    fresh = start_anew(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), [], seed=0)
    assert not torch.equal(fresh.get_parameter("0.weight"), fresh.get_parameter("1.weight"))


def test_tied_recurrent_and_attention_layers() -> None:
    tied = nn.ModuleDict({"into": nn.Embedding(5, 3), "out": nn.Linear(3, 5, bias=False)})
    tied["out"].weight = tied["into"].weight
    fresh = start_anew(tied, [], seed=0)
    assert fresh.get_parameter("into.weight") is fresh.get_parameter("out.weight")
    assert not same(tied, fresh)
    assert same(tied, start_anew(tied, ["into.*"], seed=0)) == {"into.weight", "out.weight"}
    assert same(Recurrent(), start_anew(Recurrent(), ["head.*"], seed=0)) == set()
    attention = nn.MultiheadAttention(4, 2)
    with torch.no_grad():
        for value in attention.parameters():
            value.add_(1)
    new = start_anew(attention, [], seed=0)
    assert not same(attention, new)
    assert new.get_parameter("out_proj.bias").eq(0).all(), "a new one begins with zero here"


def test_a_layer_that_cannot_begin_again() -> None:
    with pytest.raises(NetworkError, match=r"the network .Tied. has parameters .* no reset_parameters"):
        start_anew(Tied(), ["first.*"], seed=0)
    start_anew(Tied(), ["scale", "unused"], seed=0)
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    with pytest.raises(NetworkError, match=r"0.parametrizations.weight \(ParametrizationList\)"):
        start_anew(normed, ["0.bias"], seed=0)
    with pytest.raises(SettingError, match=r"carry: 'conv.\*' matches no parameter"):
        start_anew(normed, ["conv.*"], seed=0)


# ---------------------------------------------------------------- the search

SETTINGS = Settings(steps=250, learning_rate=0.05)


def regression(num_examples: int, dimensions: int) -> tuple[Any, Tensor]:
    x, weight = torch.randn(num_examples, dimensions), torch.randn(dimensions)
    return as_part((x, (x @ weight + 0.5 * torch.randn(num_examples))[:, None])), weight


def pretrained_line(weight: Tensor) -> nn.Linear:
    network = nn.Linear(len(weight), 1, bias=False)
    with torch.no_grad():
        network.weight.copy_(weight)
    return network


def test_right_weights_are_best_held_on_to_and_wrong_ones_let_go() -> None:
    part, weight = regression(num_examples=20, dimensions=15)
    options: dict[str, Any] = {"sds": [0.01, 3.0], "settings": SETTINGS, "share": 0.3, "seed": 3}
    right = search_prior_sd(pretrained_line(weight), part, Gaussian(sd=0.5), **options)
    assert right.sd == 0.01
    part, weight = regression(num_examples=100, dimensions=5)
    wrong = search_prior_sd(pretrained_line(-weight), part, Gaussian(sd=0.5), **options)
    assert wrong.sd == 3.0
    assert [trial.sd for trial in wrong.trials] == [0.01, 3.0]
    assert wrong.trials[1].nll < wrong.trials[0].nll
    assert wrong.trials[0].accuracy is None


def test_the_search_scores_what_the_exact_posterior_predicts() -> None:
    # Points are predicted by N(x w, sd²): with all weights held tightly, the score is that of the network itself.
    part, weight = regression(num_examples=20, dimensions=3)
    network = pretrained_line(weight)
    found = search_prior_sd(network, part, Gaussian(sd=0.5), sds=[1e-6], settings=Settings(steps=1), share=0.5, seed=5)
    held = pretrained._split(part, 0.5, 128, 5)[1]
    (batch,) = held.batches(128)
    assert batch.targets is not None
    expected = -torch.distributions.Normal(network(batch.args[0]), 0.5).log_prob(batch.targets).mean()
    assert found.trials[0].nll == pytest.approx(float(expected.detach()), rel=1e-3)


def test_the_search_repeats_itself_and_tells_how_far_it_is() -> None:
    x, y = torch.randn(40, 3), torch.arange(40) % 3
    settings, heard = replace(SETTINGS, steps=5), list[Progress]()
    options: dict[str, Any] = {"sds": [0.1, 1.0], "carry": ["0.*"], "settings": settings}
    one, again = (
        search_prior_sd(small_net(), as_part((x, y)), Categorical(), **options, progress=tell)
        for tell in (heard.append, None)
        if torch.manual_seed(1)
    )
    assert one == again
    torch.manual_seed(1)
    assert one != search_prior_sd(small_net(), as_part((x, y)), Categorical(), **options, seed=1)
    assert all(trial.accuracy is not None for trial in one.trials)
    assert [now.step for now in heard] == list(range(1, 11))
    assert {now.num_steps for now in heard} == {10}


def test_a_width_that_diverges_does_not_cost_the_others() -> None:
    part, weight = regression(num_examples=20, dimensions=3)
    options: dict[str, Any] = {"settings": replace(SETTINGS, steps=20), "share": 0.5}
    network = pretrained_line(weight)
    found = search_prior_sd(network, part, Gaussian(sd=0.5), sds=[1e-200, 1.0], **options)
    assert found.sd == 1.0
    assert found.trials[0].nll == math.inf
    with pytest.raises(DivergedError, match="every one of 1 widths"):
        search_prior_sd(network, part, Gaussian(sd=0.5), sds=[1e-200], **options)


def test_what_a_search_refuses() -> None:
    part, weight = regression(num_examples=3, dimensions=2)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"sds": []}, "sds is empty"),
        ({"sds": [0.1, -1.0]}, "sds=-1.0"),
        ({"sds": [0.1], "share": 0.0}, "share=0.0: expected a share above 0 and below 1"),
        ({"sds": [0.1], "share": 0.1}, "share=0.1 of 3 examples leaves 0 to judge by and 3 to learn from"),
    ]
    for options, message in refused:
        with pytest.raises((SettingError, PartError), match=message):
            search_prior_sd(pretrained_line(weight), part, Gaussian(sd=0.5), **options)


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
