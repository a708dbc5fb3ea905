"""Networks of every kind that conversion takes, each with inputs, and how tests call and compare them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_leaves, tree_map_only

from contracts.family_contract import generator
from postprior import BayesianNetwork
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
        lambda: nn.Conv2d(
            *(4, 6, (3, 2)), stride=(1, 2), padding=(2, 1), padding_mode="reflect", dilation=(2, 1), groups=2
        ),
        (x(2, 4, 6, 5),),
    ),
    "conv3d": Case(
        lambda: nn.Conv3d(
            *(2, 2, 2), stride=(2, 1, 1), padding=1, padding_mode="replicate", dilation=(1, 2, 1), groups=2
        ),
        (x(2, 2, 3, 3, 3),),
    ),
    "conv2d same": Case(lambda: nn.Conv2d(1, 2, (3, 5), padding="same", bias=False), (x(1, 1, 5, 5),)),
    "conv1d transposed": Case(lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (x(2, 2, 4),)),
    "conv2d transposed": Case(
        lambda: nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
        (x(2, 4, 3, 4),),
    ),
    "conv3d transposed": Case(
        lambda: nn.ConvTranspose3d(
            2, 4, 2, stride=2, padding=1, output_padding=(1, 0, 1), groups=2, dilation=(2, 1, 1)
        ),
        (x(2, 2, 2, 2, 2),),
    ),
    "embedding": Case(lambda: nn.Embedding(7, 3, padding_idx=0, scale_grad_by_freq=True), (numbers,)),
    "embedding bag": Case(
        lambda: nn.EmbeddingBag(7, 3, mode="mean", padding_idx=6, include_last_offset=True),
        (torch.tensor([1, 2, 4, 5]), torch.tensor([0, 1, 4])),
    ),
    "batch norm 1d": Case(lambda: moved_norms(nn.BatchNorm1d(3), nn.Linear(3, 2)), (x(5, 3),)),
    "batch norm 2d": Case(lambda: moved_norms(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3, momentum=None)), (x(4, 1, 3, 3),)),
    "batch norm 3d": Case(lambda: moved_norms(nn.BatchNorm3d(2, eps=0.1), nn.Conv3d(2, 1, 2)), (x(3, 2, 2, 2, 2),)),
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
    "gru": Case(lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True), (x(5, 2, 3),)),
    "rnn": Case(lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False, bidirectional=True), (x(5, 2, 3),)),
    "lstm cell": Case(lambda: nn.LSTMCell(3, 4), (x(2, 3), (x(2, 4), x(2, 4)))),
    "gru cell": Case(lambda: nn.GRUCell(3, 4, bias=False), (x(2, 3), x(2, 4))),
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
KINDS: dict[str, type[nn.Module]] = {
    "linear root": nn.Linear,
    "conv1d": nn.Conv1d,
    "conv2d": nn.Conv2d,
    "conv3d": nn.Conv3d,
    "conv1d transposed": nn.ConvTranspose1d,
    "conv2d transposed": nn.ConvTranspose2d,
    "conv3d transposed": nn.ConvTranspose3d,
    "embedding": nn.Embedding,
    "embedding bag": nn.EmbeddingBag,
    "batch norm 1d": nn.BatchNorm1d,
    "batch norm 2d": nn.BatchNorm2d,
    "batch norm 3d": nn.BatchNorm3d,
    "layer norm": nn.LayerNorm,
    "group norm": nn.GroupNorm,
    "instance norm": nn.InstanceNorm2d,
    "rms norm": nn.RMSNorm,
    "attention": nn.MultiheadAttention,
    "transformer encoder": nn.TransformerEncoder,
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
    "lstm cell": nn.LSTMCell,
    "gru cell": nn.GRUCell,
    "bilinear and prelu": nn.Bilinear,
}
"""The kinds of layers that are taken, each with the case that holds it."""


def make(case: Case, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return case.make()


def call(network: Callable[..., Any], case: Case, dtype: torch.dtype | None = None) -> list[Tensor]:
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
