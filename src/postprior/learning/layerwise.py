"""Squared gradients of every example at once, layer by layer: what a layer was given and what came back is enough.

The gradient of one example in the weight of a linear map is a product of its inputs and of the slopes in its outputs.
So a plain forward pass and one backward pass to the layers' outputs replace a gradient for every example, and only a
few examples' products are in memory at any time.

Shapes: B examples, N outputs, C inputs, L positions of one example, K = C times the size of a kernel.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from postprior.batch import Batch

NEAR = 2**17
"""Numbers of examples' own gradients that are made before they are squared and added up: they stay in the cache."""


class NotLayerwiseError(RuntimeError):
    """The network uses a weight in a way that has no rule here."""


@final
class Squares:
    """Σ over the examples of a batch and their vectors of (Jᵀ a)², for every weight of the network."""

    def __init__(self, network: nn.Module, weights: Mapping[str, Tensor]) -> None:
        self._network, self._weights = network, weights
        self._sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self._counted_by_example = set[tuple[Any, ...]]()
        """Uses of layers, as they were, whose outputs were seen to grow with the examples."""

    def of(self, batch: Batch, vectors_of: Callable[[Tensor], Tensor]) -> Mapping[str, Tensor]:
        """The sums, until the next call; the vectors [B, K, *outputs of one example] come of the outputs."""
        uses, outputs = self._watched(batch)
        self._check(uses, len(outputs), batch)
        places = [use.outputs for use in uses]
        rows = vectors_of(outputs.detach()).unbind(1)
        for sums in self._sums.values():  # used again, since new memory costs more than what is written to it
            sums.zero_()
        for i, row in enumerate(rows):
            kept = i < len(rows) - 1
            options = {"retain_graph": kept, "allow_unused": True, "materialize_grads": True}
            slopes = torch.autograd.grad(outputs, places, row, **options)
            with torch.no_grad():
                for use, slope in zip(uses, slopes, strict=True):
                    use.add(slope, self._sums)
        return self._sums

    def _watched(self, batch: Batch) -> tuple[list["_Use"], Tensor]:
        with _Watch({id(weight): name for name, weight in self._weights.items()}) as watch:
            outputs: Any = functional_call(self._network, dict(self._weights), batch.args, dict(batch.kwargs))
        return watch.uses, outputs

    def _check(self, uses: list["_Use"], size: int, batch: Batch) -> None:
        found = [(uses, size)]
        shapes = tuple(use.shape_of_one() for use in uses)
        if shapes not in self._counted_by_example:  # as many positions as examples could pass for them, but not twice
            found.append((self._watched(batch.cut(0, 1))[0], 1))
        if any(len(use.outputs) != count for watched, count in found for use in watched):
            raise NotLayerwiseError("a layer has outputs that are not counted by examples")
        if any(use.changed() for use in uses):
            raise NotLayerwiseError("a layer's inputs or outputs were written over")
        self._counted_by_example.add(shapes)


@final
class _Use:
    """One call of a layer: its inputs, its outputs, and whose weights it used."""

    def __init__(self, outputs: Tensor, inputs: Tensor, weight: str | None, bias: str | None, **conv: Any) -> None:
        self.outputs, self._inputs = outputs, inputs
        self._weight, self._bias, self._conv = weight, bias, conv
        self._versions = outputs._version, inputs._version

    def changed(self) -> bool:
        """Whether an operation in place has changed what the layer gave or was given."""
        return (self.outputs._version, self._inputs._version) != self._versions

    def shape_of_one(self) -> tuple[str | None, str | None, torch.Size, torch.Size]:
        """Whose weights met what, of one example."""
        return self._weight, self._bias, self._inputs.shape[1:], self.outputs.shape[1:]

    def add(self, slope: Tensor, sums: dict[str, Tensor]) -> None:
        """The squared gradients of this layer's weights, added up over examples."""
        if self._conv:
            slope = slope.flatten(2)  # [B, N, L]
        elif slope.dim() > 2:
            slope = slope.flatten(1, -2).mT  # [B, N, L]
        if self._bias is not None:
            each = slope.sum(2) if slope.dim() == 3 else slope
            sums[self._bias] += each.square().sum(0)
        if self._weight is None:
            return
        into = sums[self._weight]
        if slope.dim() == 2:  # one position: the square of a product is the product of squares
            into.addmm_(slope.square().T, self._inputs.square())
            return
        groups = self._conv.get("groups", 1)
        total = into.new_zeros(groups, len(into) // groups, into[0].numel())
        # As many examples at a time as keep both their columns and their gradients in the cache.
        size = max(1, NEAR // max(into.numel(), slope.shape[2] * into[0].numel()))
        for some, slopes in zip(self._inputs.split(size), slope.split(size), strict=True):
            for own, part, sums_of in zip(some.chunk(groups, 1), slopes.chunk(groups, 1), total, strict=True):
                each = part @ self._columns(own)  # [B, N / groups, K]
                sums_of.add_(each.square_().sum(0)) if len(each) > 1 else sums_of.addcmul_(each[0], each[0])
        if self._conv:
            total = total.view(len(into), *into.shape[2:], into.shape[1]).movedim(-1, 1)
        into += total.reshape(into.shape)

    def _columns(self, inputs: Tensor) -> Tensor:
        """The inputs that meet the weight at each position, [B, L, K]; of images with their channels last."""
        if not self._conv:
            return inputs.flatten(1, -2)
        if inputs.dim() == 3:  # a line is an image of one row
            inputs = inputs.unsqueeze(2)
        return patches(inputs, **{name: value for name, value in self._conv.items() if name != "groups"})


def patches(
    images: Tensor,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """What ``F.unfold`` gives, [B, L, K], but with the channels last in K.

    A row of a patch is then one piece of memory, and the copy two to ten times as fast.
    """
    if any(padding):
        images = F.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    images = images.contiguous(memory_format=torch.channels_last)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel_size, strict=True)]
    places = [(n - r) // s + 1 for n, r, s in zip(images.shape[2:], reach, stride, strict=True)]
    each, channel, *pixel = images.stride()
    steps = [p * s for p, s in zip(pixel, stride, strict=True)]
    inside = [p * d for p, d in zip(pixel, dilation, strict=True)]
    shape = (len(images), *places, *kernel_size, images.shape[1])
    found = images.as_strided(shape, (each, *steps, *inside, channel), images.storage_offset())
    return found.reshape(len(images), math.prod(places), -1)


@final
class _Watch(TorchFunctionMode):
    """Inside this context every use of the weights is taken down; uses without a rule raise."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self._names, self._used = names, set[str]()
        self.uses: list[_Use] = []

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        used = [self._names[id(leaf)] for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._names]
        if not used:
            return func(*args, **kwargs)
        signature = _SIGNATURES.get(func)
        if signature is None or self._used & set(used) or len(set(used)) != len(used):
            raise NotLayerwiseError(f"{', '.join(used)} used in {getattr(func, '__name__', func)}, or used twice")
        self._used |= set(used)
        given = {**dict(zip(signature, args, strict=False)), **kwargs}
        inputs, weight, bias = given["input"], given["weight"], given.get("bias")
        names = self._names.get(id(weight)), self._names.get(id(bias))
        conv = _conv_options(given) if "stride" in signature else {}
        if not torch.is_tensor(inputs) or inputs.dim() < weight.dim():
            raise NotLayerwiseError("an input without an axis that counts examples")
        outputs: Tensor = func(*args, **kwargs)
        if not outputs.requires_grad:
            outputs.requires_grad_()
        self.uses.append(_Use(outputs, inputs.detach(), *names, **conv))
        return outputs


_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_SIGNATURES: dict[Any, tuple[str, ...]] = {
    F.linear: ("input", "weight", "bias"),
    F.conv1d: _CONV,
    F.conv2d: _CONV,
}


def _conv_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a convolution as ``F.unfold`` wants them."""
    kernel = tuple(given["weight"].shape[2:])
    settings = {name: given.get(name, 1 if name != "padding" else 0) for name in ("stride", "padding", "dilation")}
    if isinstance(settings["padding"], str):
        raise NotLayerwiseError("padding by a name")
    pairs = {name: _pair(value, len(kernel), 0 if name == "padding" else 1) for name, value in settings.items()}
    return {"kernel_size": (1,) * (2 - len(kernel)) + kernel, **pairs, "groups": given.get("groups", 1)}


def _pair(value: int | Sequence[int], axes: int, neutral: int) -> tuple[int, ...]:
    values = (value,) * axes if isinstance(value, int) else tuple(value) * (axes if len(value) == 1 else 1)
    return (neutral,) * (2 - axes) + values
