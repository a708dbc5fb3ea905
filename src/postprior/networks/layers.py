"""What is known of each kind of layer: how it uses its tensors, and how its outputs can be sampled instead."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd  # pyright: ignore[reportPrivateUsage]
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

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


OWN_LINEAR_MAPS: tuple[type[nn.Module], ...] = (
    nn.Linear,
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
"""Layers that are known to hand their weight to a linear map and to do nothing else with it."""


def own_linear_maps(network: nn.Module) -> frozenset[str]:
    """The weights that stand in one place, in a layer that is one of these and none derived from it."""
    places = Counter(id(tensor) for _, tensor in network.named_parameters(remove_duplicate=False))
    names = {id(tensor): name for name, tensor in network.named_parameters()}
    weights = [module.weight for module in network.modules() if type(module) in OWN_LINEAR_MAPS]
    return frozenset(names[id(weight)] for weight in weights if places[id(weight)] == 1 and id(weight) in names)


class LocalReparameterization(TorchFunctionMode):
    """Inside this context, linear maps with a belief about their weight sample their outputs, not the weight.

    Kingma et al., Variational dropout and the local reparameterization trick, 2015. Each output element gets noise of
    its own with the right mean and variance; elements that share a weight lose their correlation, so it serves
    training, not prediction. The call is caught where the layer hands its weight to torch: padding, stride, dilation
    and groups stay exactly as the layer set them, and a weight used in any other way is the plain sample; one that was
    not drawn, and stands here as its own mean, is drawn then.
    """

    def __init__(
        self, moments: Iterable[tuple[Tensor, tuple[Tensor, Tensor]]], generator: torch.Generator, *, sign: int = 1
    ) -> None:
        super().__init__()
        # The samples are kept beside their moments: an id is only good while its tensor lives.
        self._moments = {id(sample): (sample, mean, variance) for sample, (mean, variance) in moments}
        self._undrawn = {key for key, (sample, mean, _) in self._moments.items() if sample is mean}
        self._drawn: dict[int, Tensor] = {}
        self._generator, self._sign = generator, sign

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named: dict[str, Any] = dict(kwargs or {})
        known = self._moments.get(id(args[1])) if func in LINEAR_MAPS and len(args) > 1 else None
        if known is None:
            args, named = self._with_samples((args, named))
            return func(*args, **named)
        _, mean, variance = known
        inputs, *rest = self._with_samples((args[0], *args[2:]))
        out = func(inputs, mean, *rest, **named)
        no_bias = [None, *rest[1:]] if rest else []
        others = {key: value for key, value in named.items() if key != "bias"}
        # Squares leave the range of half precision long before the inputs do.
        with torch.autocast(inputs.device.type, enabled=False):
            spread = func(_squares(inputs.to(variance.dtype)), variance, *no_bias, **others)
        return self._sample(out, spread)

    def _sample(self, mean: Tensor, variance: Tensor) -> Tensor:
        noise = gaussian.noise_in_order(variance, self._generator)
        return gaussian.sample_given_variance(mean, variance, noise if self._sign > 0 else noise.neg_())

    def _with_samples(self, given: Any) -> Any:
        """The same, where a weight that was not drawn, and is now used in another way, is a sample after all."""
        if not any(id(leaf) in self._undrawn for leaf in tree_leaves(given)):
            return given
        return tree_map(self._drawn_once, given)

    def _drawn_once(self, weight: Any) -> Any:
        if id(weight) not in self._undrawn:
            return weight
        if id(weight) not in self._drawn:
            _, mean, variance = self._moments[id(weight)]
            self._drawn[id(weight)] = self._sample(mean.clone(), variance.clone())
        return self._drawn[id(weight)]


def _squares(inputs: Tensor) -> Tensor:
    # Images of one channel are in two orders at once; ``square`` would leave them in the one that is slow.
    return inputs.square() if inputs.requires_grad else torch.square(inputs, out=torch.empty_like(inputs))
