"""Networks to learn with: the two of the paper, a residual network and a small one; plain modules that return logits.

Shapes: B images, C channels, K classes. `features` ends in a vector for each image, `classifier` turns it into logits.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from postprior.errors import SettingError


def _channels_last(images: Tensor) -> Tensor:
    # In this order in memory a convolution takes a quarter to a third less time; all layers after it keep the order.
    # A copy, since images of one channel are in both orders at once, and torch would go on with the other one.
    return images.clone(memory_format=torch.channels_last)


def _conv_pool_relu(in_channels: int, out_channels: int, conv: int, padding: int, pool: int) -> list[nn.Module]:
    # The tables say ReLU, then pooling. max and ReLU commute, so this order gives the same numbers, and ReLU has
    # only the pooled pixels to visit (a quarter of them).
    return [
        nn.Conv2d(in_channels, out_channels, conv, padding=padding),
        nn.MaxPool2d(pool, stride=2),
        nn.ReLU(),
    ]


@final
class LeNet5(nn.Module):
    """LeNet-5-Caffe for 28 x 28 images (paper, Table 2).

    The table says the pooling has stride 1; its own shapes (24 -> 12, 8 -> 4) need stride 2, which is used here.

    Example:
        >>> import torch
        >>> LeNet5()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, *, in_channels: int = 1, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_conv_pool_relu(in_channels, 20, conv=5, padding=0, pool=2),  # [B, 20, 12, 12]
            *_conv_pool_relu(20, 50, conv=5, padding=0, pool=2),  # [B, 50, 4, 4]
            nn.Flatten(),  # [B, 800]
        )
        self.classifier = nn.Sequential(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, num_classes))

    def forward(self, images: Tensor) -> Tensor:  # [B, C, 28, 28] -> [B, K]
        return self.classifier(self.features(_channels_last(images)))


@final
class ThreeConvThreeFC(nn.Module):
    """3Conv3FC for 32 x 32 images (paper, Table 3).

    The table contradicts itself in its third convolution: with padding 1 a 7 x 7 input becomes 5 x 5 and the first
    fully connected layer would see 128 * 2 * 2 = 512 numbers, yet the shapes beside it say 7 x 7 and 1152. We follow
    the shapes, so the padding is 2, as in the two convolutions before it.

    Example:
        >>> import torch
        >>> ThreeConvThreeFC()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, *, in_channels: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_conv_pool_relu(in_channels, 32, conv=5, padding=2, pool=3),  # [B, 32, 15, 15]
            *_conv_pool_relu(32, 64, conv=5, padding=2, pool=3),  # [B, 64, 7, 7]
            *_conv_pool_relu(64, 128, conv=5, padding=2, pool=3),  # [B, 128, 3, 3]
            nn.Flatten(),  # [B, 1152]
        )
        self.classifier = nn.Sequential(
            nn.Linear(1152, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, num_classes)
        )

    def forward(self, images: Tensor) -> Tensor:  # [B, C, 32, 32] -> [B, K]
        return self.classifier(self.features(_channels_last(images)))


@final
class MLP(nn.Module):
    """Fully connected layers for columns of numbers; with ``num_outputs`` classes, or numbers for a regression.

    Example:
        >>> import torch
        >>> MLP(in_features=4, num_outputs=3)(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(self, *, in_features: int, num_outputs: int, hidden: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        widths = (in_features, *hidden)
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.features = nn.Sequential(nn.Flatten(), *layers)
        self.classifier = nn.Linear(widths[-1], num_outputs)

    def forward(self, rows: Tensor) -> Tensor:  # [B, in_features] -> [B, num_outputs]
        return self.classifier(self.features(rows))


@final
class SmallConvNet(nn.Module):
    """Two convolutions and two fully connected layers for 8 x 8 images, such as scikit-learn's digits.

    Example:
        >>> import torch
        >>> SmallConvNet()(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, *, in_channels: int = 1, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_conv_pool_relu(in_channels, 16, conv=3, padding=1, pool=2),  # [B, 16, 4, 4]
            *_conv_pool_relu(16, 32, conv=3, padding=1, pool=2),  # [B, 32, 2, 2]
            nn.Flatten(),  # [B, 128]
        )
        self.classifier = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, num_classes))

    def forward(self, images: Tensor) -> Tensor:  # [B, C, 8, 8] -> [B, K]
        return self.classifier(self.features(_channels_last(images)))


@final
class _ResidualBlock(nn.Module):
    """relu(shortcut(x) + F(x)), where F is two 3 x 3 convolutions, each with its BatchNorm."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.new_channels = out_channels - in_channels
        # No bias: the BatchNorm that follows subtracts any constant again.
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, C + new, H / stride, W / stride]
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))
        return F.relu(shortcut + self.residual(x))


@final
class ResNet32x32(nn.Module):
    """The residual network of He et al. for 32 x 32 images: three stages of 16, 32 and 64 channels, with BatchNorm.

    Where a stage halves the image and doubles the channels, the shortcut keeps every second pixel and fills the new
    channels with zeros: He et al.'s option A, which has no parameters and so adds none to the belief.

    References:
        Deep Residual Learning for Image Recognition (He, Zhang, Ren and Sun, 2016), section 4.2.
        https://arxiv.org/abs/1512.03385

    Arguments:
        depth: The number of layers with weights, 6n + 2 for n blocks a stage: 20, 32, 44, 56, 110.
        in_channels: Channels of an image.
        num_classes: Classes to tell apart.

    Example:
        >>> import torch
        >>> ResNet32x32(depth=8)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, *, depth: int = 20, in_channels: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        num_blocks, rest = divmod(depth - 2, 6)
        if num_blocks < 1 or rest:
            raise SettingError(
                f"ResNet32x32: expected a depth of 6n + 2 with n >= 1, found {depth}; choose 20, 32, 44, 56 or 110."
            )
        layers: list[nn.Module] = [
            nn.Conv2d(in_channels, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        ]
        previous = 16
        for channels in (16, 32, 64):
            for block in range(num_blocks):
                stride = 2 if block == 0 and channels > 16 else 1
                layers.append(_ResidualBlock(previous, channels, stride))
                previous = channels
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())  # [B, 64]
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:  # [B, C, 32, 32] -> [B, K]
        return self.classifier(self.features(_channels_last(images)))
