"""What is known of each kind of layer: how it uses its tensors, and how its outputs can be sampled instead."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd  # pyright: ignore[reportPrivateUsage]
from torch.overrides import TorchFunctionMode

from postprior.families import Role
from postprior.maths import gaussian

MATRICES: list[tuple[type[nn.Module], tuple[str, ...]]] = [
    (nn.Linear, ("weight",)),
    (nn.MultiheadAttention, ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")),
    (nn.RNNBase, ("weight_ih", "weight_hh", "weight_hr")),
    (nn.RNNCellBase, ("weight_ih", "weight_hh")),
]
"""Layers whose named tensors are matrices [out, in] (recurrent layers append the number of the layer to the name)."""

NORMALISATIONS: tuple[type[nn.Module], ...] = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Layers whose weight multiplies a standardised value, so that 1 and not 0 is its neutral value."""


@dataclass(frozen=True)
class Site:
    """Where a parameter stands in its network."""

    role: Role
    fan_in: int | None
    """Inputs that reach one output of the layer; None where that means nothing."""
    neutral: float
    """The value that a first prior is centred on."""


def sites(network: nn.Module) -> dict[str, Site]:
    """The site of every parameter, by the parameter's first name."""
    found: dict[str, Site] = {}
    for prefix, module in network.named_modules():
        for name, tensor in module.named_parameters(prefix=prefix, recurse=False):
            found[name] = _site(module, name.rpartition(".")[2], tensor)
    return {name: found[name] for name, _ in network.named_parameters()}


def _site(module: nn.Module, name: str, tensor: Tensor) -> Site:
    neutral = 1.0 if isinstance(module, NORMALISATIONS) and name == "weight" else 0.0
    return Site(_role(module, name, tensor), _fan_in(module), neutral)


def _role(module: nn.Module, name: str, tensor: Tensor) -> Role:
    if isinstance(module, _ConvNd) and name == "weight":
        return "kernel"
    for kind, names in MATRICES:
        if isinstance(module, kind) and name.startswith(names) and tensor.dim() == 2:
            return "dense"
    return "other"


def _fan_in(module: nn.Module) -> int | None:
    if isinstance(module, _ConvTransposeNd):
        return module.in_channels // module.groups * math.prod(module.kernel_size)
    if isinstance(module, _ConvNd):
        return module.in_channels // module.groups * math.prod(module.kernel_size)
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, nn.MultiheadAttention):
        return module.embed_dim
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return module.hidden_size
    return None


LINEAR_MAPS = frozenset(
    {F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}
)


class LocalReparameterization(TorchFunctionMode):
    """Inside this context, linear maps with a belief about their weight sample their outputs, not the weight.

    Kingma et al., Variational dropout and the local reparameterization trick, 2015. Each output element gets noise of
    its own with the right mean and variance; elements that share a weight lose their correlation, so it serves
    training, not prediction. The call is caught where the layer hands its weight to torch: padding, stride, dilation
    and groups stay exactly as the layer set them, and a weight used in any other way is the plain sample.
    """

    def __init__(
        self, moments: Iterable[tuple[Tensor, tuple[Tensor, Tensor]]], generator: torch.Generator, *, sign: int = 1
    ) -> None:
        super().__init__()
        # The samples are kept beside their moments: an id is only good while its tensor lives.
        self._moments = {id(sample): (sample, mean, variance) for sample, (mean, variance) in moments}
        self._generator, self._sign = generator, sign

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        known = self._moments.get(id(args[1])) if func in LINEAR_MAPS and len(args) > 1 else None
        if known is None:
            return func(*args, **(kwargs or {}))
        _, mean, variance = known
        inputs, _, *rest = args
        out = func(inputs, mean, *rest, **(kwargs or {}))
        no_bias = [None, *rest[1:]] if rest else []
        others = {key: value for key, value in (kwargs or {}).items() if key != "bias"}
        # Squares leave the range of half precision long before the inputs do.
        with torch.autocast(inputs.device.type, enabled=False):
            spread = func(inputs.to(variance.dtype).square(), variance, *no_bias, **others)
        noise = gaussian.noise_in_order(spread, self._generator)
        return gaussian.sample_given_variance(out, spread, noise if self._sign > 0 else noise.neg_())
