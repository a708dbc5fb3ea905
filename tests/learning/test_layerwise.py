"""The squared gradients taken layer by layer are those of every example's own backward pass."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from postprior.batch import Batch
from postprior.learning import layerwise, pretrained
from postprior.learning.predict import frozen_network
from postprior.networks.convert import first_belief
from postprior.networks.zoo import LeNet5, ThreeConvThreeFC


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(x + torch.tanh(self.one(x)))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LeNet5": (LeNet5, (1, 28, 28)),
    "3Conv3FC": (ThreeConvThreeFC, (3, 32, 32)),
    "residual": (Residual, (3,)),
    "linear maps of many positions": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (6, 3)),
    "no bias": (lambda: nn.Sequential(nn.Conv2d(2, 3, 2, bias=False), nn.Tanh(), nn.Flatten()), (2, 4, 4)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, padding=1), nn.Tanh()), (4, 5, 5)),
    "stride, dilation": (lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), dilation=(1, 2), padding=(0, 1)), (2, 7, 6)),
    "one axis": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1, stride=2), nn.Tanh()), (2, 8)),
    "reflected padding": (lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), (1, 4, 4)),
}


@pytest.mark.parametrize("near", [1, layerwise.NEAR])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_example_by_example(name: str, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layerwise, "NEAR", near)
    make, shape = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = make().double().eval()
    weights = {key: value.detach() for key, value in network.named_parameters()}
    x = images(3, *shape)
    vectors = torch.randn(3, 2, *network(x).shape[1:], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = layerwise.Squares(network, weights).of(Batch((x,), {}, None), lambda _: vectors)
    expected = pretrained._one_by_one(network, weights, Batch((x,), {}, None), vectors)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-12)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Transposed(nn.Module):
    """Examples on the second axis inside, where there are as many positions as examples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "a weight used twice": (Shared, (3,)),
    "normalisation": (lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), (3,)),
    "operations in place": (lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.ReLU(True)), (3,)),
    "recurrent": (lambda: nn.RNN(3, 2, batch_first=True), (4, 3)),
    "examples on another axis": (Transposed, (4, 3)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_has_no_rule_is_refused_and_has_its_curvature_all_the_same(name: str) -> None:
    make, shape = OTHERS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = make().double().eval()
    weights = {key: value.detach() for key, value in network.named_parameters()}
    batch = Batch((images(4, *shape),), {}, None)
    outputs = network(*batch.args)
    vectors = torch.ones(4, 1, *(outputs[0] if isinstance(outputs, tuple) else outputs).shape[1:], dtype=torch.float64)
    with pytest.raises(layerwise.NotLayerwiseError):
        layerwise.Squares(network, weights).of(batch, lambda _: vectors)
    if isinstance(outputs, Tensor):
        sums = pretrained._Sums(frozen_network(network, first_belief(network, "point")), weights)
        sums.add(batch, lambda _: vectors, 0)
        expected = pretrained._one_by_one(network, weights, batch, vectors)
        for key, value in expected.items():
            torch.testing.assert_close(sums.total[key], value, rtol=1e-9, atol=1e-12)
