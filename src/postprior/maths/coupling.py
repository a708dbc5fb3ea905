"""An affine coupling: an invertible map of a vector whose log-determinant costs nothing extra.

Dinh et al., Density estimation using Real NVP, 2017. Every other element passes unchanged and decides, through a small
network, how the rest is shifted and scaled. Shapes: D length of the vector, A elements that decide, R = D - A the rest,
H hidden units.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_LOG_SCALE = 2.0  # one coupling scales by e^±2 at most, which keeps a long chain of them inside float32


class Conditioner(NamedTuple):
    """Weights of the small network that turns the deciding elements into shifts and scales."""

    weight_in: Tensor  # [H, A]
    bias_in: Tensor  # [H]
    weight_out: Tensor  # [2 R, H]
    bias_out: Tensor  # [2 R]


def _shift_and_log_scale(deciding: Tensor, net: Conditioner) -> tuple[Tensor, Tensor]:
    # Multipliers live around one, so the network sees how far they are from it.
    hidden = torch.tanh(torch.nn.functional.linear(deciding - 1, net.weight_in, net.bias_in))
    shift, raw = torch.nn.functional.linear(hidden, net.weight_out, net.bias_out).chunk(2, dim=-1)
    return shift, LARGEST_LOG_SCALE * torch.tanh(raw / LARGEST_LOG_SCALE)


def _join(even: Tensor, odd: Tensor) -> Tensor:
    joined = torch.empty(*even.shape[:-1], even.shape[-1] + odd.shape[-1], dtype=even.dtype, device=even.device)
    joined[..., 0::2], joined[..., 1::2] = even, odd
    return joined


def forward(vector: Tensor, net: Conditioner, *, decides_even: bool) -> tuple[Tensor, Tensor]:
    """The mapped vector [..., D] and log|det ∂out/∂in| [...]."""
    even, odd = vector[..., 0::2], vector[..., 1::2]
    deciding, rest = (even, odd) if decides_even else (odd, even)
    shift, log_scale = _shift_and_log_scale(deciding, net)
    moved = rest * log_scale.exp() + shift
    return _join(deciding, moved) if decides_even else _join(moved, deciding), log_scale.sum(-1)


def inverse(vector: Tensor, net: Conditioner, *, decides_even: bool) -> tuple[Tensor, Tensor]:
    """The vector that ``forward`` maps here, and log|det ∂out/∂in| of this inverse."""
    even, odd = vector[..., 0::2], vector[..., 1::2]
    deciding, moved = (even, odd) if decides_even else (odd, even)
    shift, log_scale = _shift_and_log_scale(deciding, net)
    rest = (moved - shift) * (-log_scale).exp()
    return _join(deciding, rest) if decides_even else _join(rest, deciding), -log_scale.sum(-1)
