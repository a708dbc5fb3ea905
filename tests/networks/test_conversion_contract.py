"""Every network is made Bayesian whole: nothing left out, no option dropped, the original left as it was."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_leaves, tree_map_only

from contracts.family_contract import generator
from postprior import BayesianNetwork, Learner, bayesianize, first_belief
from postprior.errors import NetworkError, SettingError
from postprior.families import FAMILIES, Channelwise, Factorized, Multiplicative, Point
from postprior.networks.bayesian import check_fits, from_belief, learnable
from postprior.networks.zoo import LeNet5, ResNet32x32, SmallConvNet, ThreeConvThreeFC


class Twice(nn.Module):
    """One module under two names, and called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class TwoNames(nn.Module):
    """One parameter under two names of one module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, 3))
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second


class TiedDecoder(nn.Module):
    """An embedding whose table is the decoder's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.hidden = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 7)
        self.decoder.weight = self.embedding.weight

    def forward(self, numbers: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.hidden(self.embedding(numbers))))


class OddlyNamed(nn.Module):
    """Parameters of odd shapes, under names that Python, nn.Module and nn.ModuleDict use for themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(()))
        self.values = nn.Parameter(torch.randn(1))
        self.items = nn.Parameter(torch.randn(2, 1, 3, 1, 2))
        self.pop = nn.Parameter(torch.randn(3))
        self.forward_ = nn.Parameter(torch.randn(2, 3))
        self.training_ = nn.Parameter(torch.randn(3))
        self.weight = nn.Parameter(torch.randn(3))
        self.mu = nn.Parameter(torch.randn(3))
        self.clear = nn.ParameterList([torch.randn(3), torch.randn(1)])
        self.update = nn.ParameterDict({"class": torch.randn(3), "network": torch.randn(())})
        # As an attribute it could not be set, but this is where torch keeps it.
        self._parameters["type"] = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        own = self._parameters["type"]
        assert own is not None
        x = x * self.keys + self.values + self.items.sum((0, 1, 3, 4)) + self.pop * own * self.mu
        x = x * self.clear[0] + self.clear[1] + self.update["class"] * self.update["network"] + self.weight
        return (x @ self.forward_.T) @ self.forward_ + self.training_


class SlashedNames(nn.Module):
    """Names that differ only in a dot and a slash."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 2)
        self.register_parameter("a/weight", nn.Parameter(torch.randn(2)))
        self.register_parameter("a~weight", nn.Parameter(torch.randn(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * getattr(self, "a/weight") + getattr(self, "a~weight")


class ComplexScale(nn.Module):
    """A complex parameter before a real layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x * self.scale).abs())


class WholeNumbers(nn.Module):
    """A buffer and a parameter of whole numbers, which cannot be learned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("order", torch.tensor([2, 0, 1]))
        self.shift = nn.Parameter(torch.tensor([4, 5]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, self.get_buffer("order")]) + self.shift


class SelfAttention(nn.Module):
    """Multi-head attention over three inputs."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, **options)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(query, key, value)


class TwoInputs(nn.Module):
    """A bilinear map and a PReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.bilinear, self.activation = nn.Bilinear(3, 2, 4), nn.PReLU(4)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.activation(self.bilinear(one, other))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def moved_norms(*layers: nn.Module) -> nn.Module:
    """Layers whose norms have running statistics away from 0 and 1."""
    network = nn.Sequential(*layers)
    for module in network:
        if isinstance(getattr(module, "running_mean", None), Tensor):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return network


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: tuple[Any, ...]


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(sum(shape)))


numbers = torch.tensor([[1, 0, 5], [2, 6, 6]])
CASES: dict[str, Case] = {
    "linear root": Case(lambda: nn.Linear(3, 2), (x(4, 3),)),
    "mlp": Case(lambda: nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.0), nn.Tanh(), nn.Linear(5, 2)), (x(4, 3),)),
    "conv1d": Case(
        lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, padding_mode="circular", dilation=2, groups=2), (x(2, 4, 9),)
    ),
    "conv2d": Case(
        lambda: nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(2, 1), padding_mode="reflect", dilation=(2, 1)),
        (x(2, 2, 6, 5),),
    ),
    "conv3d": Case(lambda: nn.Conv3d(2, 2, 2, padding=1, padding_mode="replicate", groups=2), (x(2, 2, 3, 3, 3),)),
    "conv2d same": Case(lambda: nn.Conv2d(1, 2, (3, 5), padding="same", bias=False), (x(1, 1, 5, 5),)),
    "conv1d transposed": Case(lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (x(2, 2, 4),)),
    "conv2d transposed": Case(
        lambda: nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
        (x(2, 4, 3, 4),),
    ),
    "embedding": Case(lambda: nn.Embedding(7, 3, padding_idx=0, scale_grad_by_freq=True), (numbers,)),
    "embedding bag": Case(
        lambda: nn.EmbeddingBag(7, 3, mode="mean", padding_idx=6, include_last_offset=True),
        (torch.tensor([1, 2, 4, 5]), torch.tensor([0, 1, 4])),
    ),
    "batch norm 1d": Case(lambda: moved_norms(nn.BatchNorm1d(3), nn.Linear(3, 2)), (x(5, 3),)),
    "batch norm 2d": Case(lambda: moved_norms(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3, momentum=None)), (x(4, 1, 3, 3),)),
    "layer norm": Case(lambda: nn.Sequential(nn.LayerNorm((2, 3), eps=0.1), nn.Linear(3, 2)), (x(4, 2, 3),)),
    "group norm": Case(lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Conv1d(4, 2, 1)), (x(3, 4, 5),)),
    "instance norm": Case(
        lambda: moved_norms(nn.InstanceNorm2d(2, affine=True, track_running_stats=True), nn.Conv2d(2, 2, 2)),
        (x(3, 2, 4, 4),),
    ),
    "rms norm": Case(lambda: nn.Sequential(nn.RMSNorm(3, eps=0.1), nn.Linear(3, 2)), (x(4, 3),)),
    "attention": Case(SelfAttention, (x(2, 3, 4), x(2, 5, 4), x(2, 5, 4))),
    "attention, other widths": Case(
        lambda: SelfAttention(kdim=3, vdim=5, add_bias_kv=True, add_zero_attn=True),
        (x(2, 3, 4), x(2, 5, 3), x(2, 5, 5)),
    ),
    "transformer encoder": Case(encoder, (x(2, 3, 4),)),
    "lstm": Case(lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2, batch_first=True), (x(2, 5, 3),)),
    "gru": Case(lambda: nn.GRU(3, 4, num_layers=2), (x(5, 2, 3),)),
    "rnn": Case(lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False, bidirectional=True), (x(5, 2, 3),)),
    "lstm cell": Case(lambda: nn.LSTMCell(3, 4), (x(2, 3), (x(2, 4), x(2, 4)))),
    "tied decoder": Case(TiedDecoder, (numbers,)),
    "same module twice": Case(Twice, (x(4, 3),)),
    "two names of one parameter": Case(TwoNames, (x(4, 3),)),
    "odd names and shapes": Case(OddlyNamed, (x(4, 3),)),
    "slashes in names": Case(SlashedNames, (x(4, 3),)),
    "bilinear and prelu": Case(TwoInputs, (x(4, 3), x(4, 2))),
    "weight norm": Case(lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.ELU()), (x(4, 3),)),
    "complex parameter": Case(ComplexScale, (x(4, 3),)),
    "whole numbers": Case(WholeNumbers, (x(4, 3),)),
    "SmallConvNet": Case(SmallConvNet, (x(2, 1, 8, 8),)),
    "LeNet5": Case(LeNet5, (x(1, 1, 28, 28),)),
    "ResNet32x32": Case(lambda: ResNet32x32(depth=8), (x(2, 3, 8, 8),)),
    "ThreeConvThreeFC": Case(ThreeConvThreeFC, (x(1, 3, 32, 32),)),
}
# torch says that it has no faster code for this one.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")


def all_but(*names: str) -> pytest.MarkDecorator:
    kept = {name: case for name, case in CASES.items() if name not in names}
    return pytest.mark.parametrize("case", kept.values(), ids=kept.keys())


BIG = ("LeNet5", "ThreeConvThreeFC")
EVERY_CASE, SMALL_CASES = all_but(), all_but(*BIG)
REAL_CASES = all_but(*BIG, "complex parameter")  # torch itself turns complex numbers into real ones here
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def make(case: Case, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return case.make()


def call(network: nn.Module, case: Case, dtype: torch.dtype | None = None) -> list[Tensor]:
    """All tensors in the output."""
    inputs = tree_map_only(Tensor, lambda t: t.to(dtype) if dtype and t.is_floating_point() else t, case.inputs)
    return [leaf for leaf in tree_leaves(network(*inputs)) if isinstance(leaf, Tensor)]


def close(found: list[Tensor], expected: list[Tensor], atol: float, rtol: float = 0.0) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=rtol)


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def seeded(bayesian: BayesianNetwork, case: Case, seed: int, dtype: torch.dtype | None = None) -> list[Tensor]:
    bayesian.generator.manual_seed(seed)
    return call(bayesian, case, dtype)


def has_widths(bayesian: BayesianNetwork) -> bool:
    return not all(isinstance(family, Point) for family in bayesian.families().values())


@EVERY_CASE
@EVERY_FAMILY
def test_at_the_mean_it_is_the_original(case: Case, family: str) -> None:
    original = make(case)
    bayesian = bayesianize(original, family)
    with bayesian.at_mean(), torch.no_grad():
        close(call(bayesian.eval(), case), call(original.eval(), case), atol=1e-6, rtol=1e-5)
        close(call(bayesian.train(), case), call(original.train(), case), atol=1e-6, rtol=1e-5)


@REAL_CASES
@EVERY_FAMILY
def test_to_double_everything_goes_along(case: Case, family: str) -> None:
    original = make(case)
    bayesian = bayesianize(original, family).to(torch.float64).eval()
    for name, tensor in [*bayesian.named_parameters(), *bayesian.named_buffers()]:
        assert tensor.dtype in (torch.float64, torch.int64), name
    with bayesian.at_mean(), torch.no_grad():
        expected = call(copy.deepcopy(original).double().eval(), case, torch.float64)
        assert all(value.dtype == torch.float64 for value in expected)
        close(call(bayesian, case, torch.float64), expected, atol=1e-10, rtol=1e-10)
    check_shared(bayesian)
    assert all(draw.weight.dtype != torch.float32 for draw in bayesian.draw().values())


@EVERY_CASE
@EVERY_FAMILY
def test_calls_sample_by_the_generator_alone(case: Case, family: str) -> None:
    bayesian, state = bayesianize(make(case), family, start_sd=0.1).eval(), torch.get_rng_state()
    with torch.no_grad():
        first, second = seeded(bayesian, case, 1), call(bayesian, case)
        with bayesian.at_mean():
            mean = call(bayesian, case)
        assert equal(seeded(bayesian, case, 1), first)
        assert equal(call(bayesian, case), second)
        assert equal(first, second) is not has_widths(bayesian)
        assert equal(first, mean) is not has_widths(bayesian)
    assert torch.equal(torch.get_rng_state(), state)


@SMALL_CASES
@EVERY_FAMILY
def test_the_original_is_left_as_it_was(case: Case, family: str) -> None:
    original = make(case).eval()
    before = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    identities = {name: id(parameter) for name, parameter in original.named_parameters(remove_duplicate=False)}
    grads = {name: parameter.requires_grad for name, parameter in original.named_parameters()}
    state, text = torch.get_rng_state(), repr(original)
    bayesian = bayesianize(original, family).train()
    optimizer = torch.optim.SGD([p for p in bayesian.parameters() if p.requires_grad], lr=0.1)
    sum(value.abs().sum() for value in call(bayesian, case)).backward()
    optimizer.step()
    bayesian.belief()
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in original.modules())
    assert original.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in original.state_dict().items())
    assert {name: id(p) for name, p in original.named_parameters(remove_duplicate=False)} == identities
    assert {name: parameter.requires_grad for name, parameter in original.named_parameters()} == grads
    assert all(parameter.grad is None for parameter in original.parameters())
    assert repr(original) == text


@SMALL_CASES
@EVERY_FAMILY
def test_options_of_layers_are_kept(case: Case, family: str) -> None:
    original = make(case)
    assert repr(bayesianize(original, family).network) == repr(original)


@SMALL_CASES
@EVERY_FAMILY
def test_a_state_dict_carries_everything(case: Case, family: str) -> None:
    saved = bayesianize(make(case), family, start_sd=0.1).eval()
    fresh = bayesianize(make(case, seed=1), family, start_sd=0.2, seed=5).eval()
    with torch.no_grad():
        for parameter in saved.beliefs.parameters():
            parameter.mul_(1.1)
        fresh.load_state_dict(saved.state_dict())
        assert equal(seeded(fresh, case, 3), seeded(saved, case, 3))
        with fresh.at_mean(), saved.at_mean():
            assert equal(call(fresh, case), call(saved, case))
    check_shared(fresh)


@EVERY_CASE
@EVERY_FAMILY
def test_every_floating_parameter_has_a_belief(case: Case, family: str) -> None:
    original = make(case)
    belief = bayesianize(original, family).belief()
    floating = {n: p for n, p in original.named_parameters() if p.is_floating_point() or p.is_complex()}
    assert belief.weights.keys() == floating.keys()
    assert belief.held == frozenset()
    sds, means = belief.sd(), belief.mean()
    for name, parameter in floating.items():
        assert sds[name].shape == means[name].shape == parameter.shape
        torch.testing.assert_close(means[name], parameter.detach(), rtol=1e-5, atol=1e-7)
        assert (name in belief.points) is (family == "point" or parameter.is_complex())
        assert bool((sds[name] > 0).all()) is (name not in belief.points), name
    assert belief.buffers.keys() == dict(original.named_buffers()).keys()
    assert all(torch.equal(belief.buffers[name], buffer) for name, buffer in original.named_buffers())
    check_fits(original, belief)


@SMALL_CASES
@EVERY_FAMILY
def test_backward_reaches_everything_that_learns(case: Case, family: str) -> None:
    bayesian = bayesianize(make(case), family).eval()
    outputs = call(bayesian, case)
    sum((value * torch.randn(value.shape, generator=generator(1))).sum() for value in outputs).backward()
    for name, member in bayesian.families().items():
        for own, parameter in member.named_parameters():
            assert parameter.requires_grad, (name, own)
            assert parameter.grad is not None, (name, own)
        location = member.location.grad
        assert location is not None
        assert (location.to_dense() if location.is_sparse else location).any(), name


@SMALL_CASES
@EVERY_FAMILY
def test_a_deep_copy_is_whole_and_its_own(case: Case, family: str) -> None:
    bayesian = bayesianize(make(case), family, start_sd=0.1).eval()
    with torch.no_grad():
        call(bayesian, case)
    copied = copy.deepcopy(bayesian)
    with torch.no_grad():
        expected = seeded(bayesian, case, 4)
        assert equal(seeded(copied, case, 4), expected)
        for parameter in copied.parameters():
            parameter.add_(1)
        assert equal(seeded(bayesian, case, 4), expected)
    check_shared(copied)


def check_shared(bayesian: BayesianNetwork) -> None:
    """The network inside has no weights but the locations of its families, under all of their names."""
    names = {id(member.location): name for name, member in bayesian.families().items()}
    own = {id(p) for p in bayesian.network.parameters() if p.is_floating_point() or p.is_complex()}
    assert own == set(names)
    for alias, parameter in bayesian.network.named_parameters(remove_duplicate=False):
        if id(parameter) in names:
            owner, _, leaf = alias.rpartition(".")
            kept = bayesian.network.get_submodule(owner)._parameters[leaf]
            assert kept is bayesian.families()[names[id(parameter)]].location


# Which family stands where.


def test_a_family_stands_where_it_is_made_for() -> None:
    network = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ConvTranspose1d(2, 2, 2), nn.Linear(3, 2), nn.LayerNorm(2))
    network.append(nn.LSTM(2, 3, proj_size=2)).append(nn.MultiheadAttention(4, 2)).append(nn.Embedding(3, 2))
    matrices = {
        *("2.weight", "4.weight_ih_l0", "4.weight_hh_l0", "4.weight_hr_l0"),
        *("5.in_proj_weight", "5.out_proj.weight"),
    }
    kernels = {"0.weight", "1.weight"}
    for family, kind, names in (
        ("channelwise", Channelwise, kernels),
        ("multiplicative", Multiplicative, kernels | matrices),
    ):
        members = bayesianize(network, family).families()
        assert {name for name, member in members.items() if isinstance(member, kind)} == names
        assert {type(member) for name, member in members.items() if name not in names} == {Factorized}


def test_first_priors_are_centred_on_what_changes_nothing() -> None:
    network = nn.Sequential(nn.Conv1d(2, 4, 3, groups=2), nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.RMSNorm(4))
    network.append(nn.Linear(4, 2)).append(nn.ConvTranspose2d(4, 2, 3))
    belief = first_belief(network, prior_sd=0.5)
    means, sds = belief.mean(), belief.sd()
    ones = {"1.weight", "2.weight", "3.weight"}
    assert all((means[name] == (1 if name in ones else 0)).all() for name in means)
    assert all(torch.allclose(sd, torch.tensor(0.5)) for sd in sds.values())
    widths = {name: float(sd.mean()) for name, sd in first_belief(network, prior_sd="fan_in").sd().items()}
    expected = {"0.weight": 1 * 3, "0.bias": 1 * 3, "4.weight": 4, "4.bias": 4, "5.weight": 4 * 9, "5.bias": 4 * 9}
    assert all(widths[name] == pytest.approx(inputs**-0.5) for name, inputs in expected.items())
    assert widths["1.weight"] == pytest.approx(1)


# Points and frozen parameters.


@EVERY_FAMILY
def test_point_and_frozen_patterns(family: str) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    inputs = x(4, 1, 3, 3)
    bayesian = bayesianize(network, family, point=("*.bias",), frozen=("1.*", "0.weight"), start_sd=0.1)
    belief = bayesian.belief()
    assert belief.held == {"1.weight", "1.bias", "0.weight"}
    points = {"0.bias", "1.weight", "1.bias", "0.weight", "3.bias"} | ({"3.weight"} if family == "point" else set())
    assert belief.points == points
    bayesian(inputs).square().sum().backward()
    for name, member in bayesian.families().items():
        for parameter in member.parameters():
            assert parameter.requires_grad is (name not in belief.held)
            assert (parameter.grad is not None) is (name not in belief.held)
    assert all(torch.equal(belief.mean()[name], dict(network.named_parameters())[name]) for name in points)


def test_parameters_that_do_not_learn_are_held() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    network[0].requires_grad_(False)
    bayesian = bayesianize(network)
    assert bayesian.belief().held == {"0.weight", "0.bias"}
    assert not any(p.requires_grad for p in network[0].parameters())
    assert all(torch.equal(bayesian.draw()[f"0.{n}"].weight, p) for n, p in network[0].named_parameters())
    assert {n for n, p in bayesian.network.named_parameters() if p.requires_grad} == {"1.weight", "1.bias"}


@pytest.mark.parametrize("setting", ["point", "frozen"])
@pytest.mark.parametrize("function", [bayesianize, first_belief])
def test_a_pattern_that_matches_nothing_is_a_mistake(function: Callable[..., Any], setting: str) -> None:
    with pytest.raises(SettingError, match=rf"{setting}: 'layer1.\*' matches no parameter; there are 0.weight, 0.bias"):
        function(nn.Sequential(nn.Linear(3, 2)), **{setting: ("*.bias", "layer1.*")})
    with pytest.raises(SettingError, match=rf"{setting}='\*.bias': expected a sequence of patterns"):
        function(nn.Sequential(nn.Linear(3, 2)), **{setting: "*.bias"})


@pytest.mark.parametrize("width", [0.0, -1.0, float("inf"), float("nan")])
def test_widths_must_be_positive_and_finite(width: float) -> None:
    with pytest.raises(SettingError, match=r"start_sd=.*: expected a finite number above 0"):
        bayesianize(nn.Linear(3, 2), start_sd=width)
    with pytest.raises(SettingError, match=r"prior_sd=.*: expected a finite number above 0"):
        first_belief(nn.Linear(3, 2), prior_sd=width)


# Layers with ways of their own.


def test_the_fast_path_of_a_transformer_uses_the_sampled_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    case, calls = CASES["transformer encoder"], list[int]()
    fast = torch._transformer_encoder_layer_fwd

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        return fast(*args, **kwargs)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    original = make(case).eval()
    bayesian = bayesianize(original, start_sd=0.1).eval().requires_grad_(False)
    with torch.no_grad():
        expected = call(original, case)
        assert len(calls) == 2
        with bayesian.at_mean():
            close(call(bayesian, case), expected, atol=1e-6)
        assert len(calls) == 4
        fast_output = seeded(bayesian, case, 1)
        assert len(calls) == 6
        with torch.enable_grad():
            slow_output = seeded(bayesian.requires_grad_(True), case, 1)
        assert len(calls) == 6
    close(fast_output, slow_output, atol=1e-5)
    assert (fast_output[0] - expected[0]).abs().max() > 1e-2


def test_a_tied_weight_has_one_belief_and_one_sample() -> None:
    bayesian = bayesianize(make(CASES["tied decoder"]), start_sd=0.5)
    assert "decoder.weight" not in bayesian.families()
    draws = bayesian.draw(generator(1))
    table = draws["embedding.weight"].weight
    hidden = torch.tanh(table[numbers] @ draws["hidden.weight"].weight.T + draws["hidden.bias"].weight)
    torch.testing.assert_close(bayesian.run(draws, numbers), hidden @ table.T + draws["decoder.bias"].weight)


@EVERY_FAMILY
def test_a_complex_parameter_learns_as_a_point(family: str) -> None:
    network = make(CASES["complex parameter"])
    learner = Learner(network, family=family, likelihood="gaussian", epochs=2, batch_size=5)
    update = learner.absorb((x(10, 3), x(10, 2)))
    assert isinstance(update.kl, float)
    learned = learner.belief.mean()["scale"]
    assert learned.is_complex()
    assert not torch.equal(learned.imag, network.get_parameter("scale").imag)
    assert not learner.belief.mean()["likelihood.log_sd"].is_complex()


def test_a_module_used_twice_has_one_sample_a_call() -> None:
    bayesian = bayesianize(make(CASES["same module twice"]), start_sd=0.5)
    assert set(bayesian.families()) == {"first.weight", "first.bias"}
    draws, inputs = bayesian.draw(generator(1)), x(4, 3)
    weight, bias = draws["first.weight"].weight, draws["first.bias"].weight
    torch.testing.assert_close(bayesian.run(draws, inputs), torch.tanh(inputs @ weight.T + bias) @ weight.T + bias)


@pytest.mark.parametrize("name", ["same module twice", "two names of one parameter", "tied decoder", "lstm"])
def test_tied_parameters_stay_tied_in_and_after_calls(name: str) -> None:
    network, case = make(CASES[name]), CASES[name]
    first = bayesianize(network, start_sd=0.5)
    for bayesian in (first, from_belief(network, first.belief(), generator=generator(0))):
        check_shared(bayesian)
        outputs = call(bayesian, case)
        check_shared(bayesian)
        assert all(parameter.is_leaf for parameter in bayesian.parameters())
        draws = bayesian.draw(generator(1))
        plain = copy.deepcopy(network)
        with torch.no_grad():
            for alias, parameter in plain.named_parameters():
                parameter.copy_(draws[alias].weight)
        with bayesian.at(draws):
            close(call(bayesian, case), call(plain, case), atol=1e-6)
        assert not equal(outputs, call(plain, case))


def test_names_that_differ_in_a_dot_and_a_slash_have_beliefs_of_their_own() -> None:
    members = bayesianize(make(CASES["slashes in names"])).families()
    assert {name: tuple(member.location.shape) for name, member in members.items()} == {
        "a/weight": (2,),
        "a~weight": (2,),
        "a.weight": (2, 3),
        "a.bias": (2,),
    }


def test_a_pinned_draw_stays_until_its_context_ends_even_by_an_error() -> None:
    bayesian, inputs = bayesianize(nn.Linear(3, 2), start_sd=0.5), x(4, 3)
    draws = bayesian.draw(generator(1))
    expected = bayesian.run(draws, inputs)
    with bayesian.at(draws):
        assert torch.equal(bayesian(inputs), expected)
        with bayesian.at_mean():
            assert not torch.equal(bayesian(inputs), expected)
        assert torch.equal(bayesian(inputs), expected)
    with pytest.raises(ZeroDivisionError), bayesian.at(draws):
        raise ZeroDivisionError
    assert not torch.equal(bayesian(inputs), expected)


# What cannot be made Bayesian.


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_script_module_is_refused() -> None:
    with pytest.raises(NetworkError, match="TorchScript network cannot be called with sampled weights"):
        bayesianize(torch.jit.script(nn.Linear(3, 2)))


@pytest.mark.parametrize(
    "layer", [lambda: nn.LazyLinear(2), lambda: nn.LazyConv2d(2, 3), nn.LazyBatchNorm1d], ids=["linear", "conv", "norm"]
)
def test_a_lazy_layer_without_shape_is_refused(layer: Callable[[], nn.Module]) -> None:
    with pytest.raises(NetworkError, match=r"1.weight has no shape yet: call the network once on an example"):
        bayesianize(nn.Sequential(nn.Linear(3, 3), layer()))


def test_a_lazy_layer_with_its_shape_is_taken() -> None:
    network = nn.Sequential(nn.LazyLinear(2))
    network(x(4, 3))
    assert bayesianize(network)(x(4, 3)).shape == (4, 2)


def test_a_bayesian_network_is_refused() -> None:
    with pytest.raises(NetworkError, match="Bayesian already: pass the plain network it was made from"):
        bayesianize(bayesianize(nn.Linear(3, 2)))


@pytest.mark.parametrize("network", [nn.ReLU(), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3, affine=False))])
def test_a_network_without_parameters_is_refused(network: nn.Module) -> None:
    with pytest.raises(NetworkError, match="has no floating parameters: there is nothing to have a belief about"):
        bayesianize(network)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_the_old_weight_norm_is_refused_and_the_new_one_named() -> None:
    with pytest.raises(NetworkError, match=r"Linear cannot be copied .*\.parametrizations\.weight_norm does not"):
        bayesianize(nn.utils.weight_norm(nn.Linear(3, 2)))


def test_a_child_called_likelihood_is_refused() -> None:
    with pytest.raises(NetworkError, match="called 'likelihood', a name kept for the noise: rename it"):
        bayesianize(nn.ModuleDict({"likelihood": nn.Linear(3, 2)}))


def test_learnable_parameters_come_once_and_whole_numbers_not_at_all() -> None:
    assert [name for name, _ in learnable(make(CASES["tied decoder"]))] == [
        *("embedding.weight", "hidden.weight", "hidden.bias", "decoder.bias")
    ]
    assert [name for name, _ in learnable(make(CASES["whole numbers"]))] == ["layer.weight", "layer.bias"]
