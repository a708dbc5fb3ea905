"""Gaussians with a full covariance in each of many small blocks, Σ = L Lᵀ.

Shapes: B... leading axes that count blocks, K size of one block, P = K (K - 1) / 2 elements below its diagonal.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from postprior.maths.gaussian import LOG_2PI


@cache
def below_diagonal(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the elements below the diagonal of a K x K matrix."""
    rows, columns = torch.tril_indices(size, size, offset=-1, device=device)
    return rows, columns


def factor(lower: Tensor, log_diagonal: Tensor) -> Tensor:
    """L = diag(d) (I + M), with d = exp(log_diagonal) and M strictly lower triangular.

    The scale d multiplies whole rows, so that ``lower`` has no unit: one learning rate suits blocks of any width.
    """
    unit: Any = _Unit.apply(lower, log_diagonal.shape[-1])
    return log_diagonal.exp().unsqueeze(-1) * unit  # [B..., K, K]


class _Unit(torch.autograd.Function):
    """I + M from the elements of M. To put elements at pairs of indices, as autograd would, takes ten times as long."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, size: int) -> Tensor:
        ctx.size = size
        # torch is fast along an axis of a matrix, and of nothing larger.
        rows = lower.reshape(math.prod(lower.shape[:-1]), lower.shape[-1])
        # Made where they are needed: numbers of Python's would have to be brought to a GPU at every step.
        constants = [rows.new_zeros(len(rows), 1), rows.new_ones(len(rows), 1)]
        chosen = torch.cat([*constants, rows], 1).index_select(1, _sources(size, lower.device))
        return chosen.view(*lower.shape[:-1], size, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, columns = below_diagonal(ctx.size, gradient.device)
        chosen = gradient.reshape(-1, ctx.size**2).index_select(1, rows * ctx.size + columns)
        return chosen.view(*gradient.shape[:-2], len(rows)), None


@cache
def _sources(size: int, device: torch.device) -> Tensor:
    """Where each element of I + M stands in (0, 1, elements of M)."""
    rows, columns = below_diagonal(size, device)
    found = torch.eye(size, dtype=torch.long, device=device)
    found[rows, columns] = torch.arange(2, 2 + len(rows), device=device)
    return found.flatten()


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


def log_density(value: Tensor, mean: Tensor, inverse_factor: Tensor, log_diagonal: Tensor) -> Tensor:
    """Σ over blocks of log N(v | m, L Lᵀ), given L⁻¹ and the logarithm of L's diagonal."""
    white = multiply(inverse_factor, value - mean)
    return -0.5 * white.square().sum() - log_diagonal.sum() - 0.5 * LOG_2PI * value.numel()


def kl_from_white(white_factor: Tensor, white_distance: Tensor, log_det_ratio: Tensor) -> Tensor:
    """KL between block Gaussians, with everything measured in units of the second one.

    ½ (‖L̃⁻¹L‖² + ‖L̃⁻¹(m - m̃)‖² - K) + log|L̃| - log|L|, summed over blocks; ``log_det_ratio`` is log|L̃| - log|L|.
    """
    return 0.5 * (white_factor.square().sum() + white_distance.square().sum() - white_distance.numel()) + log_det_ratio
