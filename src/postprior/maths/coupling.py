"""An affine coupling: an invertible map of a vector whose log-determinant costs nothing extra.

Dinh et al., Density estimation using Real NVP, 2017. Every other element passes unchanged and decides, through a small
network, how the rest is shifted and scaled. Shapes: D length of the vector, A elements that decide, R = D - A the rest,
H hidden units.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGEST_LOG_SCALE = 2.0  # one coupling scales by e^±2 at most, which keeps a long chain of them inside float32


class Conditioner(NamedTuple):
    """Weights of the small network that turns the deciding elements into shifts and scales."""

    weight_in: Tensor  # [H, A]
    bias_in: Tensor  # [H]
    weight_out: Tensor  # [2 R, H]
    bias_out: Tensor  # [2 R]


def forward(vector: Tensor, net: Conditioner, *, decides_even: bool) -> tuple[Tensor, Tensor]:
    """The mapped vector [..., D] and log|det ∂out/∂in| [...]."""
    return _mapped(vector, net, decides_even, backwards=False)


def inverse(vector: Tensor, net: Conditioner, *, decides_even: bool) -> tuple[Tensor, Tensor]:
    """The vector that ``forward`` maps here, and log|det ∂out/∂in| of this inverse."""
    return _mapped(vector, net, decides_even, backwards=True)


def _mapped(vector: Tensor, net: Conditioner, decides_even: bool, *, backwards: bool) -> tuple[Tensor, Tensor]:
    if vector.dim() == 1:
        return _Coupling.apply(vector, *net, decides_even, backwards)  # pyright: ignore[reportReturnType]
    return _step(vector, net, decides_even, backwards)[:2]


class _Steps(NamedTuple):
    """What is made on the way, of which the gradient is made."""

    mapped: Tensor
    log_det: Tensor
    hidden: Tensor
    bent: Tensor
    scale: Tensor


def _step(vector: Tensor, net: Conditioner, decides_even: bool, backwards: bool) -> _Steps:
    deciding, rest = _cut(vector, decides_even)
    # Multipliers live around one, so the network sees how far they are from it.
    hidden = torch.tanh(torch.nn.functional.linear(deciding - 1, net.weight_in, net.bias_in))
    shift, raw = torch.nn.functional.linear(hidden, net.weight_out, net.bias_out).chunk(2, dim=-1)
    bent = torch.tanh(raw / LARGEST_LOG_SCALE)
    sign = -1 if backwards else 1
    scale = (bent * (sign * LARGEST_LOG_SCALE)).exp()
    moved = (rest - shift) * scale if backwards else torch.addcmul(shift, rest, scale)
    log_det = bent.sum(-1) * (sign * LARGEST_LOG_SCALE)
    return _Steps(_join(deciding, moved, decides_even), log_det, hidden, bent, scale)


class _Coupling(torch.autograd.Function):
    """One vector, with its gradient written down: half as many small operations as autograd's."""

    @staticmethod
    def forward(ctx: Any, vector: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        *weights, ctx.decides_even, ctx.backwards = arguments
        steps = _step(vector, Conditioner(*weights), ctx.decides_even, ctx.backwards)
        ctx.save_for_backward(vector, *weights, *steps)
        return steps.mapped, steps.log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, in_mapped: Tensor, in_log_det: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        vector, weight_in, _, weight_out, _, mapped, _, hidden, bent, scale = ctx.saved_tensors
        deciding, rest = _cut(vector, ctx.decides_even)
        in_deciding, in_moved = _cut(in_mapped, ctx.decides_even)
        in_rest = in_moved * scale
        if ctx.backwards:
            moved = _cut(mapped, ctx.decides_even)[1]
            in_shift, in_log_scale = -in_rest, -torch.addcmul(in_log_det, in_moved, moved)
        else:
            in_shift, in_log_scale = in_moved, torch.addcmul(in_log_det, in_rest, rest)
        in_outputs = torch.cat([in_shift, _through_tanh(in_log_scale, bent)])
        in_hidden = _through_tanh(weight_out.T @ in_outputs, hidden)
        in_deciding = torch.addmv(in_deciding, weight_in.T, in_hidden)
        if any(ctx.needs_input_grad[1:5]):
            of_weights = torch.outer(in_hidden, deciding - 1), in_hidden, torch.outer(in_outputs, hidden), in_outputs
        else:
            of_weights = (None,) * len(Conditioner._fields)
        return _join(in_deciding, in_rest, ctx.decides_even), *of_weights, None, None


def _through_tanh(slope: Tensor, value: Tensor) -> Tensor:
    """The slope before a tanh, given its value."""
    return torch.addcmul(slope, slope * value, value, value=-1)


def _cut(vector: Tensor, decides_even: bool) -> tuple[Tensor, Tensor]:
    """The elements that decide, and the rest."""
    even, odd = vector[..., 0::2], vector[..., 1::2]
    return (even, odd) if decides_even else (odd, even)


def _join(deciding: Tensor, rest: Tensor, decides_even: bool) -> Tensor:
    joined = deciding.new_empty(*deciding.shape[:-1], deciding.shape[-1] + rest.shape[-1])
    joined[..., 0::2], joined[..., 1::2] = (deciding, rest) if decides_even else (rest, deciding)
    return joined
