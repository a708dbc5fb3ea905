"""A belief cut among processes, of which none ever holds the whole: factorised Gaussians alone.

Every tensor is cut into stretches of one length, one a process, so that what a process does to its stretches (the KL,
the optimizer) needs no other, and what needs a whole tensor can gather that one and let it go again.

Shapes: P weights of a tensor, L the numbers that one process holds of all tensors.
"""

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, cast, final

import torch
from torch import Tensor, nn

from postprior import distributed
from postprior.errors import BeliefError, NetworkError
from postprior.families import Factorized
from postprior.maths import seeds
from postprior.networks.bayesian import LIKELIHOOD, check_plain, learnable
from postprior.networks.belief import Belief, digest
from postprior.networks.convert import prior_widths
from postprior.networks.layers import sites


@final
@dataclass(frozen=True)
class Cut:
    """How tensors are cut: each of N processes has 1/N of each tensor's numbers, the last ones perhaps fewer."""

    shapes: Mapping[str, torch.Size]
    rank: int
    size: int

    @classmethod
    def here(cls, shapes: Mapping[str, torch.Size]) -> Self:
        """Among the processes that there are."""
        return cls(dict(shapes), distributed.rank(), distributed.size())

    def own(self, name: str) -> tuple[int, int]:
        """Which of the tensor's numbers, row by row, this process has: from, and up to but without."""
        count, length = self.shapes[name].numel(), self.length(name)
        return min(self.rank * length, count), min((self.rank + 1) * length, count)

    def length(self, name: str) -> int:
        """How many numbers each process has room for; those it does not need stay at zero."""
        return math.ceil(self.shapes[name].numel() / self.size)

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where each tensor's stretch lies in this process's long vectors."""
        found, start = dict[str, slice](), 0
        for name in self.shapes:
            found[name] = slice(start, start + self.length(name))
            start += self.length(name)
        return found

    @property
    def total(self) -> int:
        """The length of these vectors."""
        return sum(map(self.length, self.shapes))

    def empty(self, like: Tensor) -> Tensor:
        """A long vector of zeros."""
        return like.new_zeros(self.total)

    def pieces(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The windows on a long vector that hold a tensor's own numbers, without what is only room."""
        for name, place in self.places.items():
            start, stop = self.own(name)
            yield name, vector[place][: stop - start]


@final
@dataclass(frozen=True)
class ShardedBelief:
    """One process's share of a belief: all processes hold one each, and together they are the belief.

    It is carried like a ``Belief``: frozen, detached, the prior of the next part.
    """

    cut: Cut
    mu: Tensor  # [L]
    log_sd: Tensor  # [L]
    buffers: Mapping[str, Tensor]
    """Whole, and the same in all processes."""
    counts: Mapping[str, int]
    num_parts: int = 0
    num_examples: int = 0

    @classmethod
    def of(cls, belief: Belief) -> Self:
        """This process's share of a belief that every process holds."""
        families = check_shardable(belief)
        cut = Cut.here({name: family.mu.shape for name, family in families.items()})
        like = next(iter(families.values())).mu.detach()
        mu, log_sd = cut.empty(like), cut.empty(like)
        for (name, own), (_, own_log_sd) in zip(cut.pieces(mu), cut.pieces(log_sd), strict=True):
            stretch = slice(*cut.own(name))
            own.copy_(families[name].mu.detach().flatten()[stretch])
            own_log_sd.copy_(families[name].log_sd.detach().flatten()[stretch])
        return cls(cut, mu, log_sd, belief.buffers, belief.counts, belief.num_parts, belief.num_examples)

    @torch.no_grad()
    def whole(self) -> Belief:
        """The belief in one piece, in every process; all of them call this together, and need memory for all of it."""
        self.check_here()
        weights = {
            name: Factorized(self._tensor(name, self.mu), self._tensor(name, self.log_sd)) for name in self.cut.shapes
        }
        return Belief(weights, frozenset(), self.buffers, self.counts, self.num_parts, self.num_examples)

    def to(self, device: torch.device | str) -> "ShardedBelief":
        """The same share on another device."""
        buffers = {name: value.to(device) for name, value in self.buffers.items()}
        tensors = self.mu.to(device), self.log_sd.to(device), buffers
        return ShardedBelief(self.cut, *tensors, self.counts, self.num_parts, self.num_examples)

    def check_here(self) -> None:
        """Raise a BeliefError unless this is the share of this process among those that there are."""
        found = distributed.rank(), distributed.size()
        if (self.cut.rank, self.cut.size) != found:
            raise BeliefError(
                f"this is share {self.cut.rank} of a belief cut for {self.cut.size} processes, and here is process "
                f"{found[0]} of {found[1]}: make or read it inside distributed.joined(), where it is used"
            )

    def digest(self) -> str:
        """A hash of all that the belief says, however it is cut; all processes ask together."""
        own = hashlib.sha256()
        for vector in (self.mu, self.log_sd):
            for _, piece in self.cut.pieces(vector):
                own.update(piece.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        # Buffers and figures are those of a belief without weights.
        rest = Belief({}, frozenset(), self.buffers, self.counts, self.num_parts, self.num_examples)
        shapes = {name: tuple(shape) for name, shape in self.cut.shapes.items()}
        said = [digest(rest), str(shapes), *distributed.told_by_each(own.hexdigest())]
        return hashlib.sha256(" ".join(said).encode()).hexdigest()

    def _tensor(self, name: str, vector: Tensor) -> Tensor:
        shape = self.cut.shapes[name]
        return distributed.all_pieces(vector[self.cut.places[name]])[: shape.numel()].view(shape)


def first_share(
    network: nn.Module,
    prior_sd: float | str = 1.0,
    unknowns: Mapping[str, tuple[float, float]] | None = None,
    device: torch.device | str | None = None,
) -> ShardedBelief:
    """This process's share of what ``first_belief`` says; the network's parameters may be on the device "meta".

    It lies where the network does unless a device is named; of a network on "meta", on the GPU if there is one.
    """
    check_plain(network)
    parameters = dict(learnable(network))
    check_learnable(network)
    widths, centres = prior_widths(network, prior_sd), {name: site.neutral for name, site in sites(network).items()}
    shapes = {name: value.shape for name, value in parameters.items()}
    moments = {name: (centres[name], widths[name]) for name in parameters}
    for name, pair in (unknowns or {}).items():
        shapes[LIKELIHOOD + name], moments[LIKELIHOOD + name] = torch.Size(()), pair
    cut = Cut.here(shapes)
    first = next(iter(parameters.values()))
    usual = ("cuda" if torch.cuda.is_available() else "cpu") if first.is_meta else first.device
    like = torch.empty(0, dtype=first.dtype, device=device or usual)
    mu, log_sd = cut.empty(like), cut.empty(like)
    for (name, own), (_, own_log_sd) in zip(cut.pieces(mu), cut.pieces(log_sd), strict=True):
        own.fill_(moments[name][0])
        own_log_sd.fill_(math.log(moments[name][1]))
    return ShardedBelief(cut, mu, log_sd, {k: v.detach().clone() for k, v in network.named_buffers()}, {})


@torch.no_grad()
def starting_share(network: nn.Module, prior: ShardedBelief, start_sd: float, seed: int) -> tuple[Tensor, Tensor]:
    """Own means and log sds of a fresh start: at the network's own weights, never wider than the prior.

    Layers on the device "meta" are made one at a time, by their own ``reset_parameters``.
    """
    mu, log_sd, cut = prior.mu.clone(), prior.log_sd.clone(), prior.cut
    for _, widths in cut.pieces(log_sd):
        widths.clamp_(max=math.log(start_sd))
    own = dict(cut.pieces(mu))
    first = {id(parameter): name for name, parameter in learnable(network)}
    for prefix, module in network.named_modules():
        parameters = {leaf: p for leaf, p in module.named_parameters(recurse=False) if id(p) in first}
        made = _made(prefix, module, prior.mu.device, seed) if any(p.is_meta for p in parameters.values()) else module
        for leaf, parameter in made.named_parameters(recurse=False):
            if leaf in parameters:
                name = first[id(parameters[leaf])]
                own[name].copy_(parameter.detach().flatten()[slice(*cut.own(name))])
    return mu, log_sd


def check_fits_share(network: nn.Module, belief: ShardedBelief) -> None:
    """Raise a BeliefError unless the belief is about the parameters and buffers of this network."""
    expected = {name: tuple(value.shape) for name, value in learnable(network)}
    found = {name: tuple(s) for name, s in belief.cut.shapes.items() if not name.startswith(LIKELIHOOD)}
    odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    odd += sorted(dict(network.named_buffers()).keys() ^ belief.buffers.keys())
    if odd:
        name = odd[0]
        raise BeliefError(
            f"the belief is about another network ({len(odd)} differences): {name} is {expected.get(name, 'not')} in "
            f"the network and {found.get(name, 'not')} in the belief. Build the network as it was when the belief was "
            "first made"
        )


def check_shardable(belief: Belief) -> dict[str, Factorized]:
    """The belief's families, which are all factorised Gaussians of one type; else a BeliefError."""
    families = {name: family for name, family in belief.weights.items() if isinstance(family, Factorized)}
    if odd := sorted(belief.weights.keys() - families.keys()):
        raise BeliefError(
            f"{odd[0]} is believed in as {type(belief.weights[odd[0]]).__name__}, and only factorised Gaussians can be "
            "cut among processes: make the belief with family='factorized', without point= and frozen="
        )
    kinds = sorted({str(family.mu.dtype) for family in families.values()})
    if len(kinds) != 1:
        raise BeliefError(f"the belief has weights of {' and '.join(kinds) or 'no type'}, expected one type to cut")
    return families


def check_learnable(network: nn.Module) -> None:
    """Raise a NetworkError for what a sharded belief cannot stand in for."""
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase):
            raise NetworkError(
                f"{name or 'the network'} is an {type(module).__name__}, which keeps a list of its weights that no "
                "sharded belief can stand in for: learn it unsharded"
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.padding_idx is not None:
            raise NetworkError(f"{name or 'the network'} has a padding row, which never learns: learn it unsharded")
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            raise NetworkError(f"{name or 'the network'} has buffers on the device meta: put them on a real one")
    for name, parameter in learnable(network):
        if parameter.is_complex() or not parameter.requires_grad:
            what = "complex" if parameter.is_complex() else "frozen"
            raise NetworkError(f"{name} is {what}, and only factorised Gaussians can be cut: learn it unsharded")
    if len(kinds := {parameter.dtype for _, parameter in learnable(network)}) != 1:
        raise NetworkError(f"the network has weights of {len(kinds)} types, expected one type to cut")


def hollow(network: nn.Module) -> nn.Module:
    """A copy of the network whose parameters are names and shapes alone."""
    memo: dict[int, nn.Parameter] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta")) for _, parameter in learnable(network)
    }
    check_plain(network)
    return copy.deepcopy(network, cast(Any, memo))


def _made(name: str, layer: nn.Module, device: torch.device, seed: int) -> nn.Module:
    """The layer with weights, as its class makes them."""
    reset = getattr(layer, "reset_parameters", None)
    if not callable(reset) or any(True for _ in layer.children()):
        raise NetworkError(
            f"{name or 'the network'} ({type(layer).__name__}) is on the device meta, and has no reset_parameters of "
            "its own to make its weights with: hand over a network that has weights"
        )
    made = copy.deepcopy(layer).to_empty(device=device)
    with seeds.quarantined(device, seed, "layer", name):
        cast(Any, made).reset_parameters()
    return made
