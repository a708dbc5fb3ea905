"""Running statistics as exact moments of everything seen, however it was cut into parts and batches."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.instancenorm import _InstanceNorm  # pyright: ignore[reportPrivateUsage]

from postprior import distributed

BATCHED_AXES: dict[type[nn.Module], int] = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
"""Axes of a batch; with one fewer, instance layers take it for a single example."""

Layers = Mapping[str, _NormBase]
"""Layers with running statistics, by name."""

Kept = tuple[int, Tensor, Tensor]
"""How much stands behind running statistics, and their mean and variance as the layer keeps them."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and mean squared deviation of each channel."""

    count: int
    mean: Tensor  # [C], float64
    variance: Tensor  # [C], float64, divided by the count

    def __add__(self, other: "Moments") -> "Moments":
        """The moments of both together. Chan et al., Updating formulae for computing sample variances, 1979."""
        count = self.count + other.count
        share = other.count / count
        gap = other.mean - self.mean
        within = self.variance * (1 - share) + other.variance * share
        return Moments(count, self.mean + share * gap, within + share * (1 - share) * gap.square())


@dataclass(frozen=True)
class Averages:
    """What instance normalisation keeps: averages over examples of each one's own mean and variance."""

    count: int
    mean: Tensor
    variance: Tensor

    def __add__(self, other: "Averages") -> "Averages":
        count = self.count + other.count
        share = other.count / count
        return Averages(
            count, torch.lerp(self.mean, other.mean, share), torch.lerp(self.variance, other.variance, share)
        )


def tracking_layers(network: nn.Module, held: frozenset[str]) -> dict[str, _NormBase]:
    """The layers with running statistics, but for those whose parameters are all held: they stay as they are."""
    found: dict[str, _NormBase] = {}
    for name, module in network.named_modules():
        if isinstance(module, _NormBase) and module.running_mean is not None:
            own = {f"{name}.{leaf}" if name else leaf for leaf, _ in module.named_parameters(recurse=False)}
            if not own or not own <= held:
                found[name] = module
    return found


@contextmanager
def training_mode(network: nn.Module, layers: Layers) -> Generator[None]:
    """The network in training mode, statistics that are not to be learned left alone, and afterwards all put back."""
    kept = [module for module in network.modules() if isinstance(module, _NormBase)]
    saved = [(buffer, buffer.clone()) for module in kept for buffer in module.buffers(recurse=False)]
    learning = set(layers.values())
    try:
        with modes_kept(network):
            network.train()
            for module in kept:
                module.train(module in learning)
            yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)


@contextmanager
def modes_kept(network: nn.Module) -> Generator[None]:
    """Afterwards every module is in training or eval mode as it was before."""
    modes = {module: module.training for module in network.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def observing(network: nn.Module, layers: Layers) -> Generator[dict[str, Moments | Averages]]:
    """Inside, the moments of what each layer is fed gather in the dictionary; the network itself is in eval mode."""
    seen: dict[str, Moments | Averages] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            new: Any = _moments(module, args[0] if args else kwargs["input"])
            seen[name] = seen[name] + new if name in seen else new

        return hook

    learning = set(layers.values())
    with training_mode(network, layers):
        for module in network.modules():
            module.training = module in learning
        handles = [layer.register_forward_pre_hook(watch(name), with_kwargs=True) for name, layer in layers.items()]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


def of_all(seen: Mapping[str, Moments | Averages]) -> dict[str, Moments | Averages]:
    """What all processes saw together: moments add up, in the same order everywhere."""
    if distributed.size() == 1:
        return dict(seen)
    plain = {f"{name}/{key}": torch.as_tensor(value) for name, new in seen.items() for key, value in vars(new).items()}
    found: dict[str, Moments | Averages] = {}
    for each in distributed.gather(plain):
        for name, own in seen.items():
            count, mean, variance = (each[f"{name}/{key}"] for key in ("count", "mean", "variance"))
            new: Any = type(own)(int(count), mean.to(own.mean.device), variance.to(own.mean.device))
            found[name] = found[name] + new if name in found else new
    return found


@torch.no_grad()
def accumulate(layers: Layers, counts: Mapping[str, int], seen: Mapping[str, Any]) -> dict[str, int]:
    """Add what was seen to each layer's running statistics; returns how much now stands behind them."""
    after = dict(counts)
    for name, new in seen.items():
        layer, count = layers[name], counts.get(name, 0)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        total = _kept(layer, count, layer.running_mean, layer.running_var) + new if count else new
        mean, variance = _running(total)
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)
        after[name] = total.count
    return after


def combined(layer: _NormBase, powers: Sequence[tuple[Kept, float]]) -> Kept:
    """The running statistics behind beliefs multiplied to these powers: moments add up, and come off below zero."""
    signed = [(power, _kept(layer, *kept)) for kept, power in powers if kept[0]]
    count = round(sum(power * moments.count for power, moments in signed))
    if not count:
        return powers[0][0]
    # About one of the means, since squares of the values themselves would leave few digits of a small variance.
    centre = signed[0][1].mean
    shares = [(power * moments.count / count, moments) for power, moments in signed]
    gaps = [moments.mean - centre for _, moments in shares]
    gap = _sum(share * each for (share, _), each in zip(shares, gaps, strict=True))
    variance = _sum(share * moments.variance for share, moments in shares)
    if isinstance(signed[0][1], Averages):
        return count, *_running(Averages(count, centre + gap, variance))
    spread = _sum(share * each.square() for (share, _), each in zip(shares, gaps, strict=True))
    return count, *_running(Moments(count, centre + gap, (variance + spread - gap.square()).clamp_min(0)))


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


def _kept(layer: _NormBase, count: int, mean: Tensor, variance: Tensor) -> Any:
    """What stands behind running statistics; as torch does, a batch layer keeps the variance over one less."""
    if isinstance(layer, _InstanceNorm):
        return Averages(count, mean.double(), variance.double())
    return Moments(count, mean.double(), variance.double() * ((count - 1) / count))


def _running(total: Moments | Averages) -> tuple[Tensor, Tensor]:
    """The inverse of ``_kept``."""
    unbias = total.count / max(total.count - 1, 1) if isinstance(total, Moments) else 1
    return total.mean, total.variance * unbias


@torch.no_grad()
def _moments(module: nn.Module, inputs: Tensor) -> Moments | Averages:
    values = inputs.double()
    if isinstance(module, _InstanceNorm):
        batched = next(axes for kind, axes in BATCHED_AXES.items() if isinstance(module, kind))
        values = (values if values.dim() == batched else values.unsqueeze(0)).flatten(2)  # [N, C, S]
        return Averages(values.shape[0], values.mean(2).mean(0), values.var(2).mean(0))
    flat = values.movedim(1, 0).flatten(1)  # [C, N S]
    return Moments(flat.shape[1], flat.mean(1), flat.var(1, correction=0))
