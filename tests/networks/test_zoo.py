"""The networks have the shapes and the numbers of parameters that their tables give."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from postprior.errors import SettingError
from postprior.networks.zoo import LeNet5, ResNet32x32, SmallConvNet, ThreeConvThreeFC

NETWORKS = [(LeNet5, 1, 28), (ThreeConvThreeFC, 3, 32), (ResNet32x32, 3, 32), (SmallConvNet, 1, 8)]
Zoo = type[LeNet5] | type[ThreeConvThreeFC] | type[ResNet32x32] | type[SmallConvNet]


def layer(inputs: int, outputs: int, kernel: int = 1) -> int:
    """Weights and biases of a convolution; of a fully connected layer with kernel 1."""
    return outputs * inputs * kernel**2 + outputs


def resnet(depth: int) -> int:
    def block(inputs: int, outputs: int) -> int:
        return 9 * inputs * outputs + 9 * outputs * outputs + 2 * 2 * outputs  # two convolutions, two BatchNorms

    more = (depth - 2) // 6 - 1
    stages = sum(block(a, b) + more * block(b, b) for a, b in [(16, 16), (16, 32), (32, 64)])
    return 9 * 3 * 16 + 2 * 16 + stages + layer(64, 10)


COUNTS = [
    (LeNet5, 431_080),
    (LeNet5, layer(1, 20, 5) + layer(20, 50, 5) + layer(800, 500) + layer(500, 10)),
    (
        ThreeConvThreeFC,
        layer(3, 32, 5)
        + layer(32, 64, 5)
        + layer(64, 128, 5)
        + layer(128 * 3 * 3, 1000)
        + layer(1000, 1000)
        + layer(1000, 10),
    ),
    (SmallConvNet, layer(1, 16, 3) + layer(16, 32, 3) + layer(128, 64) + layer(64, 10)),
    (ResNet32x32, 269_722),
    (ResNet32x32, resnet(20)),
    (partial(ResNet32x32, depth=32), resnet(32)),
]


@pytest.mark.parametrize(("make", "channels", "side"), NETWORKS)
def test_logits_have_a_row_per_image_and_a_column_per_class(make: Zoo, channels: int, side: int) -> None:
    assert make()(torch.zeros(2, channels, side, side)).shape == (2, 10)
    network = make(in_channels=2, num_classes=7)
    assert network(torch.zeros(3, 2, side, side)).shape == (3, 7)


@pytest.mark.parametrize(("make", "count"), COUNTS)
def test_number_of_parameters(make: Callable[[], nn.Module], count: int) -> None:
    assert sum(parameter.numel() for parameter in make().parameters()) == count


@pytest.mark.parametrize(("make", "channels", "side"), NETWORKS)
def test_every_parameter_has_a_say(make: Zoo, channels: int, side: int) -> None:
    generator = torch.Generator().manual_seed(0)
    network = make()
    network(torch.randn(4, channels, side, side, generator=generator)).logsumexp(dim=1).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize(("make", "channels", "side"), NETWORKS[:2] + NETWORKS[3:])
def test_pooling_before_relu_equals_the_order_of_the_tables(make: Zoo, channels: int, side: int) -> None:
    def as_in_the_table(images: Tensor) -> Tensor:
        x, modules = images, iter(network.features)
        for module in modules:
            if isinstance(module, nn.MaxPool2d):
                next(modules)  # the ReLU that we moved behind the pooling
                x = module(F.relu(x))
            else:
                x = module(x)
        return network.classifier(x)

    generator = torch.Generator().manual_seed(0)
    network = make().double()
    images = torch.randn(4, channels, side, side, generator=generator, dtype=torch.float64)
    ours, theirs = network(images), as_in_the_table(images)
    # Ours convolves in another order in memory, so that sums may end in another last digit.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    weights = list(network.parameters())
    pairs = zip(torch.autograd.grad(ours.sum(), weights), torch.autograd.grad(theirs.sum(), weights), strict=True)
    for our_gradient, their_gradient in pairs:
        torch.testing.assert_close(our_gradient, their_gradient, rtol=0, atol=1e-12)


def test_padding_1_in_the_third_convolution_would_not_give_the_shape_of_the_table() -> None:
    network = ThreeConvThreeFC()
    assert network.features(torch.zeros(1, 3, 32, 32)).shape == (1, 1152)
    third = network.features[6]
    assert isinstance(third, nn.Conv2d)
    third.padding = (1, 1)
    assert network.features(torch.zeros(1, 3, 32, 32)).shape == (1, 512)


def test_shortcut_without_parameters_passes_the_image_on() -> None:
    block = ResNet32x32(depth=8).features[4]  # the first of stage two: 16 -> 32 channels, half the side
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.rand(2, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    passed, new = block(x).split(16, dim=1)
    assert torch.equal(passed, x[:, :, ::2, ::2])
    assert not new.any()


@pytest.mark.parametrize("depth", [0, 2, 18, 21])
def test_depth_must_fit_the_three_stages(depth: int) -> None:
    with pytest.raises(SettingError, match=f"ResNet32x32: expected a depth of 6n .* found {depth}; choose 20"):
        ResNet32x32(depth=depth)
