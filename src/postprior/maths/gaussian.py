"""Gaussians with independent elements."""

import math
from typing import Any

import torch
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)
LOG2_E = math.log2(math.e)

SMALLEST_SD = 1e-6
"""Of an output that is sampled: below it the root's slope, which grows without bound, is taken to be zero."""


def noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in the shape, type and place of ``like``."""
    # Drawn where the generator lives, so that a seed means the same numbers wherever the weights are.
    return torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype).to(like.device)


def fill_with_noise(vector: Tensor, generator: torch.Generator) -> Tensor:
    """The same numbers as ``noise``, in memory that is there already."""
    if generator.device != vector.device:
        return vector.copy_(noise(vector, generator))
    return vector.normal_(generator=generator)


def noise_in_order(like: Tensor, generator: torch.Generator) -> Tensor:
    """The same, in the order in which ``like`` lies in memory: nine times as fast where that is not row by row."""
    if generator.device != like.device:
        return noise(like, generator)
    found = torch.empty_like(like)  # dense, whatever its order
    found.as_strided((found.numel(),), (1,)).normal_(generator=generator)
    return found


def width(log_sd: Tensor, out: Tensor | None = None) -> Tensor:
    """σ = 2^(log₂e log σ), a quarter of ``exp``'s time on a CPU, and as many digits."""
    return torch.mul(log_sd, LOG2_E, out=out).exp2_()


def sample(mean: Tensor, log_sd: Tensor, generator: torch.Generator) -> Tensor:
    """w = μ + σ ε, differentiable in μ and log σ."""
    mean, log_sd = torch.broadcast_tensors(mean, log_sd)
    return _Sample.apply(mean, log_sd, noise(mean, generator))  # pyright: ignore[reportReturnType]


class _Sample(torch.autograd.Function):
    """With its gradient written down: the slope in log σ is σ ε, the same that moves the mean."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_sd: Tensor, noise: Tensor) -> Tensor:
        shift = noise.mul_(width(log_sd))
        ctx.save_for_backward(shift)
        return mean + shift

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (shift,) = ctx.saved_tensors
        return gradient, gradient * shift, None


def sample_given_variance(mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """m + √v ε, differentiable in m and v, in the memory of all three: give it what nobody needs any more."""
    return _SampleGivenVariance.apply(mean, variance, noise)  # pyright: ignore[reportReturnType]


class _SampleGivenVariance(torch.autograd.Function):
    """With its gradient written down: ε / 2√v, kept instead of everything that led to it."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        sd = variance.clamp_min_(0).sqrt_()
        if mean.dtype == sd.dtype:
            ctx.mark_dirty(mean)
            sampled = mean.addcmul_(sd, noise)
        else:
            sampled = torch.addcmul(mean.to(sd.dtype), sd, noise).to(mean.dtype)
        ctx.save_for_backward(noise.div_(torch.threshold_(sd, SMALLEST_SD, math.inf)).mul_(0.5))
        return sampled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (slope,) = ctx.saved_tensors
        return gradient, gradient * slope, None


def log_density(value: Tensor, mean: Tensor, log_sd: Tensor) -> Tensor:
    """Σ log N(w | μ, σ²), in nats."""
    return -0.5 * ((value - mean) * (-log_sd).exp()).square().sum() - log_sd.sum() - 0.5 * LOG_2PI * value.numel()


def log_density_of_white(value: Tensor) -> Tensor:
    """Σ log N(ε | 0, 1), in nats."""
    return -0.5 * (value.square().sum() + LOG_2PI * value.numel())


def kl(mean_q: Tensor, log_sd_q: Tensor, mean_p: Tensor, log_sd_p: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(μ̃, σ̃²)) summed over all elements, in nats."""
    return _KL.apply(*torch.broadcast_tensors(mean_q, log_sd_q, mean_p, log_sd_p))  # pyright: ignore[reportReturnType]


class _KL(torch.autograd.Function):
    """With its gradient written down, which is known while the value is computed."""

    @staticmethod
    def forward(ctx: Any, mean_q: Tensor, log_sd_q: Tensor, mean_p: Tensor, log_sd_p: Tensor) -> Tensor:
        precision_root = width(-log_sd_p)
        distance = (mean_q - mean_p).mul_(precision_root)
        log_ratio = log_sd_q - log_sd_p
        # expm1 keeps the digits where both widths agree, as they do at the start of every part.
        growth = (2 * log_ratio).expm1_()  # σ²/σ̃² - 1
        ctx.save_for_backward(distance, precision_root, growth)
        return 0.5 * torch.sub(growth, log_ratio, alpha=2).addcmul_(distance, distance).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        distance, precision_root, growth = ctx.saved_tensors
        in_mean = distance * precision_root * gradient
        in_prior_log_sd = -(growth + distance.square()) * gradient if ctx.needs_input_grad[3] else None
        return in_mean, growth * gradient, -in_mean if ctx.needs_input_grad[2] else None, in_prior_log_sd
