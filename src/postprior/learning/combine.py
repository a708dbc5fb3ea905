"""Beliefs multiplied and divided: evidence from several hands put together, or one part's taken out again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

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
def product(network: nn.Module, powers: Sequence[tuple[Belief, float]]) -> Belief:
    """The normalised product of beliefs, each to its power, in natural parameters and float64.

    K beliefs that learned different parts from one base: each to the power 1, and the base to 1 - K. It is exact where
    the families hold the true posteriors, and an approximation where they do not. A BeliefError where a family has no
    product, where more evidence would go than there is, or where the beliefs are not about the same weights.
    """
    model = powers[0][0]
    for other, _ in powers[1:]:
        _check_alike(model, other)
    weights: dict[str, Family] = {}
    wrong: list[str] = []
    for name in model.weights:
        try:
            weights[name] = _factor([(belief.weights[name], power) for belief, power in powers])
        except BeliefError as error:
            wrong.append(f"{name}: {error}")
    if wrong:
        rest = f"; and {len(wrong) - SHOWN} more tensors" if len(wrong) > SHOWN else ""
        raise BeliefError("; ".join(wrong[:SHOWN]) + rest)
    buffers, counts = _statistics(network, powers)
    return Belief(
        weights=weights,
        held=model.held,
        buffers=buffers,
        counts=counts,
        num_parts=round(sum(power * belief.num_parts for belief, power in powers)),
        num_examples=round(sum(power * belief.num_examples for belief, power in powers)),
    )


@torch.no_grad()
def set_back(posterior: Belief, prior: Belief) -> tuple[Belief, int]:
    """The posterior, but the prior's own wherever it came out less sure than that; of how many weights or kernels.

    A part seldom makes one less sure of a weight, but learning by gradients may end there by chance. In a product, that
    would take away evidence that others have.
    """
    weights: dict[str, Family] = dict(posterior.weights)
    count = 0
    for name, family in posterior.weights.items():
        own, old = family.natural(), prior.weights[name].natural()
        if own is None or old is None:
            continue
        kept = own.surer_than(old)
        if lost := int((~kept).sum()):
            weights[name] = type(family).from_natural(own.where(kept, old)).to(family.location.dtype)
            count += lost
    return replace(posterior, weights=weights), count


@torch.no_grad()
def check_combines(belief: Belief) -> None:
    """A BeliefError if beliefs in these families have no product, before anything is learned in vain."""
    for name, family in belief.weights.items():
        if not isinstance(family, Point):
            _factor([(family, 1.0)])
        elif name not in belief.held:
            raise BeliefError(f"{name} is a point estimate that learns, and those have no product: freeze it instead")


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


def _factor(powers: Sequence[tuple[Family, float]]) -> Family:
    first = powers[0][0]
    if isinstance(first, Point):
        if all(_same(first.location, other.location) for other, _ in powers):
            return first
        raise BeliefError("is known by a single value that changed, which cannot be multiplied: keep it frozen")
    terms = [natural * power for family, power in powers if (natural := family.natural()) is not None]
    if len(terms) < len(powers):
        raise BeliefError(f"{type(first).__name__} beliefs have no product in closed form; absorb in sequence instead")
    return type(first).from_natural(reduce(add, terms)).to(first.location.dtype)


def _statistics(network: nn.Module, powers: Sequence[tuple[Belief, float]]) -> tuple[dict[str, Tensor], dict[str, int]]:
    model = powers[0][0]
    buffers, counts = dict(model.buffers), dict(model.counts)
    tracked: set[str] = set()
    for name, layer in normalisation.tracking_layers(network, model.held).items():
        prefix = f"{name}." if name else ""
        mean, variance = f"{prefix}running_mean", f"{prefix}running_var"
        kept = [((b.counts.get(name, 0), b.buffers[mean], b.buffers[variance]), power) for b, power in powers]
        count, *values = normalisation.combined(layer, kept)
        for buffer, value in zip((mean, variance), values, strict=True):
            buffers[buffer] = value.to(buffers[buffer].dtype)
        tracked |= {mean, variance}
        if count:
            counts[name] = count
    for name in buffers.keys() - tracked:
        if not all(_same(buffers[name], belief.buffers[name]) for belief, _ in powers):
            raise BeliefError(f"the buffer {name} changed in one of the beliefs, and nothing tells how to combine it")
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
