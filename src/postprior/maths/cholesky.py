"""Gaussians with a full covariance in each of many small blocks, Σ = L Lᵀ.

Shapes: B... leading axes that count blocks, K size of one block, P = K (K - 1) / 2 elements below its diagonal.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from postprior.maths.gaussian import LOG_2PI, width

NEAR = 2**18
"""Numbers in the factors that are taken through all operations before the next ones."""


@cache
def below_diagonal(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the elements below the diagonal of a K x K matrix."""
    rows, columns = torch.tril_indices(size, size, offset=-1, device=device)
    return rows, columns


def factor(lower: Tensor, log_diagonal: Tensor) -> Tensor:
    """L = diag(d) (I + M), with d = exp(log_diagonal) and M strictly lower triangular.

    The scale d multiplies whole rows, so that ``lower`` has no unit: one learning rate suits blocks of any width.
    """
    return log_diagonal.exp().unsqueeze(-1) * unit(lower, log_diagonal.shape[-1])  # [B..., K, K]


def unit(lower: Tensor, size: int) -> Tensor:
    """I + M."""
    return _Unit.apply(lower, size)  # pyright: ignore[reportReturnType]


class _Unit(torch.autograd.Function):
    """I + M from the elements of M. To put elements at pairs of indices, as autograd would, takes ten times as long."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, size: int) -> Tensor:
        ctx.size = size
        # torch is fast along an axis of a matrix, and of nothing larger.
        rows = lower.reshape(math.prod(lower.shape[:-1]), lower.shape[-1])
        return _unpacked(rows, _sources(size, lower.device)).view(*lower.shape[:-1], size, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, columns = below_diagonal(ctx.size, gradient.device)
        chosen = gradient.reshape(-1, ctx.size**2).index_select(1, rows * ctx.size + columns)
        return chosen.view(*gradient.shape[:-2], len(rows)), None


def _unpacked(lower: Tensor, sources: Tensor) -> Tensor:
    """Matrices of zeros, ones and elements of M, from M's elements [B, P]."""
    # Made where they are needed: numbers of Python's would have to be brought to a GPU at every step.
    constants = [lower.new_zeros(len(lower), 1), lower.new_ones(len(lower), 1)]
    return torch.cat([*constants, lower], 1).index_select(1, sources.flatten()).view(-1, *sources.shape)


@cache
def _sources(size: int, device: torch.device) -> Tensor:
    """Where each element of I + M stands in (0, 1, elements of M)."""
    rows, columns = below_diagonal(size, device)
    found = torch.eye(size, dtype=torch.long, device=device)
    found[rows, columns] = torch.arange(2, 2 + len(rows), device=device)
    return found


@cache
def _transposed_sources(size: int, device: torch.device) -> Tensor:
    """Of (I + M)ᵀ: a vector times a matrix takes a fifth of the time of a matrix times a vector."""
    return _sources(size, device).T.contiguous()


@cache
def _wider_sources(size: int, device: torch.device) -> Tensor:
    """Of I + M with a column of zeros beside it."""
    sources = _sources(size, device)
    return torch.cat([sources, torch.zeros_like(sources[:, :1])], 1)


def parts_of(lower_factor: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of ``factor``: M below its diagonal, and log d."""
    diagonal = lower_factor.diagonal(dim1=-2, dim2=-1)
    rows, columns = below_diagonal(lower_factor.shape[-1], lower_factor.device)
    return (lower_factor / diagonal.unsqueeze(-1))[..., rows, columns], diagonal.log()


def factor_of_inverse(matrix: Tensor) -> Tensor:
    """The L of A⁻¹ = L Lᵀ in each block, not a number where A is not positive definite."""
    # Read backwards, A = U Uᵀ with U upper triangular, and then L = U⁻ᵀ: no inverse is ever factorised.
    backwards, failed = torch.linalg.cholesky_ex(matrix.flip(-2, -1))
    found = inverse(backwards.flip(-2, -1).mT)
    return torch.where((failed > 0)[..., None, None], torch.nan, found)


def inverse(lower_factor: Tensor) -> Tensor:
    """L⁻¹ of each block."""
    identity = torch.eye(lower_factor.shape[-1], dtype=lower_factor.dtype, device=lower_factor.device)
    return torch.linalg.solve_triangular(lower_factor, identity.expand_as(lower_factor), upper=False)


def multiply(matrix: Tensor, vector: Tensor) -> Tensor:
    """A v in each block."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def sample(mean: Tensor, lower: Tensor, log_diagonal: Tensor, white: Tensor) -> Tensor:
    """m + L ε in each block, differentiable in m and in both parts of L; no factor is kept."""
    flat = (mean.flatten(0, -2), lower.flatten(0, -2), log_diagonal.flatten(0, -2), white.flatten(0, -2))
    found: Any = _Sample.apply(*flat)
    return found.view_as(mean)


class _Sample(torch.autograd.Function):
    """With its gradient written down: a slope g in the sample is d g εᵀ in M, and g times L ε in log d."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, lower: Tensor, log_diagonal: Tensor, white: Tensor) -> Tensor:
        size = log_diagonal.shape[-1]
        scale, sources = width(log_diagonal), _transposed_sources(size, lower.device)
        pieces = zip(*(_near(tensor, size) for tensor in (white.unsqueeze(1), lower)), strict=True)
        shift = torch.cat([noise @ _unpacked(some, sources) for noise, some in pieces]).squeeze(1).mul_(scale)
        ctx.save_for_backward(scale, shift, white)
        return mean + shift

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale, shift, white = ctx.saved_tensors
        size = white.shape[-1]
        rows, columns = below_diagonal(size, white.device)
        in_lower = white.new_empty(len(white), len(rows))
        for into, slope, noise in zip(*(_near(t, size) for t in (in_lower, scale * gradient, white)), strict=True):
            torch.mul(slope.index_select(1, rows), noise.index_select(1, columns), out=into)
        return gradient, in_lower, gradient * shift, None


def kl(mean: Tensor, lower: Tensor, log_diagonal: Tensor, prior: "Whitening") -> Tensor:
    """KL(N(m, L Lᵀ) ‖ prior) summed over blocks, in nats, differentiable in m and in both parts of L."""
    flat = (mean.flatten(0, -2), lower.flatten(0, -2), log_diagonal.flatten(0, -2))
    prior_flat = (prior.mean.flatten(0, -2), prior.inverse_factor.flatten(0, -3), prior.log_diagonal)
    return _KL.apply(*flat, *prior_flat)  # pyright: ignore[reportReturnType]


class Whitening(NamedTuple):
    """A block Gaussian as the unit in which others are measured."""

    mean: Tensor
    inverse_factor: Tensor
    log_diagonal: Tensor


class _KL(torch.autograd.Function):
    """With its gradient written down, which is known while the value is computed.

    A few blocks go through all of it while they are in the cache: whole stacks of factors are some twenty times as
    large as what is learned, and new memory for them costs more than the arithmetic.
    """

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, lower: Tensor, log_diagonal: Tensor, at: Tensor, inverse: Tensor, prior_log: Tensor
    ) -> Tensor:
        size = log_diagonal.shape[-1]
        rows, columns = below_diagonal(size, lower.device)
        sources, below = _wider_sources(size, lower.device), rows * (size + 1) + columns
        slopes = in_mean, in_lower, in_log = [torch.empty_like(tensor) for tensor in (mean, lower, log_diagonal)]
        total = mean.new_zeros(())
        tensors = (mean - at, lower, width(log_diagonal), inverse, *slopes)
        for distance, some, scale, white, *into in zip(*(_near(tensor, size) for tensor in tensors), strict=True):
            both = _unpacked(some, sources).mul_(scale.unsqueeze(-1))  # L, and the distance as one more column
            both[..., -1] = distance
            moved = white @ both
            total += moved.square().sum()
            slope = white.mT @ moved
            into[0].copy_(slope[..., -1])
            torch.mul(slope.flatten(1).index_select(1, below), scale.index_select(1, rows), out=into[1])
            torch.sum(slope.mul_(both)[..., :-1], -1, out=into[2]).sub_(1)
        ctx.save_for_backward(in_mean, in_lower, in_log)
        return 0.5 * (total - mean.numel()) + prior_log.sum() - log_diagonal.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (*(slope * gradient for slope in ctx.saved_tensors), None, None, None)


def _near(tensor: Tensor, size: int) -> tuple[Tensor, ...]:
    """The tensor in pieces of so many blocks of this size that their factors stay in the cache; on a GPU, whole."""
    return tensor.split(max(1, NEAR // size**2) if tensor.device.type == "cpu" else max(1, len(tensor)))


def log_density(value: Tensor, mean: Tensor, inverse_factor: Tensor, log_diagonal: Tensor) -> Tensor:
    """Σ over blocks of log N(v | m, L Lᵀ), given L⁻¹ and the logarithm of L's diagonal."""
    white = multiply(inverse_factor, value - mean)
    return -0.5 * white.square().sum() - log_diagonal.sum() - 0.5 * LOG_2PI * value.numel()


def kl_from_white(white_factor: Tensor, white_distance: Tensor, log_det_ratio: Tensor) -> Tensor:
    """KL between block Gaussians, with everything measured in units of the second one.

    ½ (‖L̃⁻¹L‖² + ‖L̃⁻¹(m - m̃)‖² - K) + log|L̃| - log|L|, summed over blocks; ``log_det_ratio`` is log|L̃| - log|L|.
    """
    return 0.5 * (white_factor.square().sum() + white_distance.square().sum() - white_distance.numel()) + log_det_ratio
