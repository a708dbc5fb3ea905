"""Gaussians with independent elements."""

import math

import torch
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)


def noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in the shape, type and place of ``like``."""
    # Drawn where the generator lives, so that a seed means the same numbers wherever the weights are.
    return torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype).to(like.device)


def sample(mean: Tensor, log_sd: Tensor, generator: torch.Generator) -> Tensor:
    """w = μ + σ ε, differentiable in μ and log σ."""
    return torch.addcmul(mean, log_sd.exp(), noise(mean, generator))


def log_density(value: Tensor, mean: Tensor, log_sd: Tensor) -> Tensor:
    """Σ log N(w | μ, σ²), in nats."""
    return -0.5 * ((value - mean) * (-log_sd).exp()).square().sum() - log_sd.sum() - 0.5 * LOG_2PI * value.numel()


def kl(mean_q: Tensor, log_sd_q: Tensor, mean_p: Tensor, log_sd_p: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(μ̃, σ̃²)) summed over all elements, in nats."""
    log_ratio = log_sd_q - log_sd_p
    distance = (mean_q - mean_p) * (-log_sd_p).exp()
    # expm1 keeps the digits where both widths agree, as they do at the start of every part.
    return 0.5 * (torch.expm1(2 * log_ratio) - 2 * log_ratio + distance.square()).sum()
