"""Beliefs multiplied and divided: evidence from several hands put together, or one part's taken out again."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add, sub

import torch
from torch import Tensor, nn

from postprior.errors import BeliefError
from postprior.families import Family, Point, kl
from postprior.maths import seeds
from postprior.networks import normalisation
from postprior.networks.belief import Belief

DIVERGENCE_DRAWS = 16
"""Draws behind a divergence that has no closed form."""

WHOLE = "network"
"""What a network that is a single layer calls it."""

SHOWN = 3


@torch.no_grad()
def product(network: nn.Module, plus: Sequence[Belief], minus: Sequence[Belief]) -> Belief:
    """The normalised product of ``plus`` over ``minus``, in natural parameters and float64.

    K beliefs that learned different parts from one base: plus=them, minus=[base] x (K - 1). It is exact where the
    families hold the true posteriors, and an approximation where they do not. A BeliefError where a family has no
    product, where more evidence would go than there is, or where the beliefs are not about the same weights.
    """
    everyone = [*plus, *minus]
    for other in everyone[1:]:
        _check_alike(plus[0], other)
    weights: dict[str, Family] = {}
    wrong: list[str] = []
    for name, first in plus[0].weights.items():
        try:
            weights[name] = _factor(first, [b.weights[name] for b in plus], [b.weights[name] for b in minus])
        except BeliefError as error:
            wrong.append(f"{name}: {error}")
    if wrong:
        rest = f"; and {len(wrong) - SHOWN} more tensors" if len(wrong) > SHOWN else ""
        raise BeliefError("; ".join(wrong[:SHOWN]) + rest)
    buffers, counts = _statistics(network, plus, minus)
    return Belief(
        weights=weights,
        held=plus[0].held,
        buffers=buffers,
        counts=counts,
        num_parts=sum(b.num_parts for b in plus) - sum(b.num_parts for b in minus),
        num_examples=sum(b.num_examples for b in plus) - sum(b.num_examples for b in minus),
    )


@torch.no_grad()
def divergence_by_layer(posterior: Belief, prior: Belief) -> dict[str, float]:
    """KL(posterior ‖ prior) in nats, summed over the weights of each layer; points, which have none, are left out."""
    _check_alike(posterior, prior, families=False)
    found: dict[str, float] = {}
    for name, family in posterior.weights.items():
        if isinstance(family, Point) or isinstance(prior.weights[name], Point):
            continue
        layer = name.rpartition(".")[0] or WHOLE
        found[layer] = found.get(layer, 0.0) + _divergence(family, prior.weights[name])
    return found


def _divergence(posterior: Family, prior: Family) -> float:
    generator = seeds.stream(posterior.location.device, 0, "divergence")
    # One draw will do where the form is closed, which natural parameters tell.
    count = 1 if posterior.natural() is not None else DIVERGENCE_DRAWS
    return sum(float(kl(posterior, prior, posterior.draw(generator))) for _ in range(count)) / count


def _factor(first: Family, plus: Sequence[Family], minus: Sequence[Family]) -> Family:
    if isinstance(first, Point):
        if all(_same(first.location, other.location) for other in (*plus, *minus)):
            return first
        raise BeliefError("is known by a single value that changed, which cannot be multiplied: keep it frozen")
    naturals = [[family.natural() for family in side] for side in (plus, minus)]
    some = [[natural for natural in side if natural is not None] for side in naturals]
    if some != naturals:
        raise BeliefError(f"{type(first).__name__} beliefs have no product in closed form; absorb in sequence instead")
    combined = reduce(sub, some[1], reduce(add, some[0]))
    return type(first).from_natural(combined).to(first.location.dtype)


def _statistics(
    network: nn.Module, plus: Sequence[Belief], minus: Sequence[Belief]
) -> tuple[dict[str, Tensor], dict[str, int]]:
    buffers, counts = dict(plus[0].buffers), dict(plus[0].counts)
    tracked: set[str] = set()
    for name, layer in normalisation.tracking_layers(network, plus[0].held).items():
        prefix = f"{name}." if name else ""
        mean, variance = f"{prefix}running_mean", f"{prefix}running_var"
        kept = [[(b.counts.get(name, 0), b.buffers[mean], b.buffers[variance]) for b in side] for side in (plus, minus)]
        count, *values = normalisation.combined(layer, *kept)
        for buffer, value in zip((mean, variance), values, strict=True):
            buffers[buffer] = value.to(buffers[buffer].dtype)
        tracked |= {mean, variance}
        if count:
            counts[name] = count
    for name in buffers.keys() - tracked:
        if not all(_same(buffers[name], b.buffers[name]) for b in (*plus, *minus)):
            raise BeliefError(
                f"the buffer {name} changed in one of the beliefs, and nothing tells how two of it combine"
            )
    return buffers, counts


def _check_alike(one: Belief, other: Belief, *, families: bool = True) -> None:
    """Refuse beliefs about different weights, or ones written down in different families."""
    if one.weights.keys() != other.weights.keys() or one.buffers.keys() != other.buffers.keys():
        odd = ", ".join(sorted(_names(one) ^ _names(other))[:SHOWN])
        raise BeliefError(f"the beliefs are about different networks: only one of them has {odd}")
    for name, family in one.weights.items():
        kinds = type(family), type(other.weights[name])
        if families and kinds[0] is not kinds[1]:
            raise BeliefError(f"{name} is {kinds[0].__name__} in one belief and {kinds[1].__name__} in another")
        if family.location.shape != other.weights[name].location.shape:
            raise BeliefError(f"the beliefs are about different networks: {name} differs in shape")
    if one.held != other.held:
        raise BeliefError(f"held in only one of the beliefs: {', '.join(sorted(one.held ^ other.held)[:SHOWN])}")


def _names(belief: Belief) -> set[str]:
    return {*belief.weights, *belief.buffers}


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def weights_per_layer(belief: Belief) -> Mapping[str, int]:
    """How many weights each layer of ``divergence_by_layer`` has."""
    found: dict[str, int] = {}
    for name, family in belief.weights.items():
        if not isinstance(family, Point):
            layer = name.rpartition(".")[0] or WHOLE
            found[layer] = found.get(layer, 0) + family.location.numel()
    return found
