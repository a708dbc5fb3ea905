"""A network whose belief is cut among processes: a tensor is gathered and drawn where the network reads it.

It is let go of once the layer is done. What autograd would keep of it for the backward pass is kept as the seed of its
noise, gathered and drawn again when it is needed, and its slopes are added up over all processes at once, each of which
keeps its own stretch of the sum. So no process holds more whole tensors than those of the layer at work.

All processes have to run the same layers in the same order; what each draws is its own.

Shapes: P weights of a tensor, L the numbers that one process holds of all tensors.
"""

import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from postprior import distributed
from postprior.errors import NetworkError
from postprior.families import Draw, Family
from postprior.maths import gaussian, seeds
from postprior.networks.bayesian import LIKELIHOOD, BayesianNetwork, learnable
from postprior.networks.sharded import Cut, ShardedBelief, hollow

SMALL = 2**14
"""Tensors of fewer numbers are kept for the backward pass, and travel in one message."""

NEAR = 2**22
"""Weights whose KL is computed at a time, so that what is computed on the way takes no room."""


class Noise(NamedTuple):
    """Which noise a sample of all weights is made of."""

    seed: int
    sign: int = 1


class Draws(dict[str, Draw]):
    """One sample of all weights: the likelihood's own as they are, the network's as the noise to draw them with."""

    def __init__(self, noise: Noise, likelihoods: Mapping[str, Draw]) -> None:
        super().__init__(likelihoods)
        self.noise = noise


@final
class ShardedNetwork:
    """The network, called with weights drawn from a belief of which this process holds a share."""

    def __init__(
        self, network: nn.Module, prior: ShardedBelief, mu: Tensor, log_sd: Tensor, generator: torch.Generator
    ) -> None:
        self.network = hollow(network)
        for name, buffer in prior.buffers.items():
            owner, _, leaf = name.rpartition(".")
            self.network.get_submodule(owner)._buffers[leaf] = buffer.clone()  # pyright: ignore[reportPrivateUsage]
        self.gathered = Shards(prior, mu, log_sd)
        self.generator = generator
        self.device, self.dtype, self.training = mu.device, mu.dtype, False
        self.held = frozenset[str]()
        self._now: Noise | None = None
        names = {id(parameter): name for name, parameter in learnable(self.network)}
        for module in self.network.modules():
            read = cast(Any, module)
            found = {leaf: names[id(p)] for leaf, p in _own(module) if id(p) in names}
            read._parameters = _Read(self, found, _own(module))

    def draw(self, generator: torch.Generator | None = None) -> Draws:
        """One sample of everything; where gradients are wanted, they reach the share by ``settle``."""
        if torch.is_grad_enabled():
            self.gathered.begin()
        drawn_by = generator or self.generator
        seed = int(torch.randint(2**62, (), generator=drawn_by, device=drawn_by.device))
        return self.draws_with(Noise(seed))

    def mirrored(self, draws: Mapping[str, Draw]) -> Draws:
        """The draw on the other side of the mean."""
        assert isinstance(draws, Draws), "what is mirrored was drawn here"
        return self.draws_with(Noise(draws.noise.seed, -draws.noise.sign))

    @contextmanager
    def mirroring(self) -> Generator[None]:
        """Nothing: no outputs are sampled locally here."""
        yield

    def settle(self) -> None:
        """After a backward pass: the slopes, complete, to where the optimizer looks for them."""
        self.gathered.settle()

    def ungathered(self) -> dict[str, Family]:
        """The families that are not cut, of which there are none."""
        return {}

    def run(self, draws: Mapping[str, Draw], *args: Any, **kwargs: Any) -> Any:
        """The network's output with this draw."""
        assert isinstance(draws, Draws), "a share draws for itself"
        before, self._now = self._now, draws.noise
        try:
            with self.gathered.forgetful(draws.noise) if torch.is_grad_enabled() else nullcontext():
                return self.network(*args, **kwargs)
        finally:
            self._now = before

    def weight(self, name: str) -> Tensor:
        """One tensor of the draw that the network is being called with."""
        if self._now is None:
            raise NetworkError(
                f"{name} was read outside of a call of the network, where a sharded belief has no weights (activation "
                "checkpointing inside of the network does this): leave that out, or learn unsharded"
            )
        return self.gathered.weight(name, self._now)

    def belief(self, counts: Mapping[str, int], *, num_parts: int, num_examples: int) -> ShardedBelief:
        """What this process's share of the belief is now."""
        buffers = {name: buffer.detach().clone() for name, buffer in self.network.named_buffers()}
        mu, log_sd = self.gathered.mu.detach(), self.gathered.log_sd.detach()
        return ShardedBelief(self.gathered.cut, mu, log_sd, buffers, dict(counts), num_parts, num_examples)

    def tensors(self) -> dict[str, Tensor]:
        """All that learns or is learned from, each once: the share, and buffers."""
        own = {"mu": self.gathered.mu, "log_sd": self.gathered.log_sd}
        return own | {f"network.{name}": buffer for name, buffer in self.network.named_buffers()}

    def draws_with(self, noise: Noise) -> Draws:
        """The sample that is made of this noise."""
        own = (name for name in self.gathered.cut.shapes if name.startswith(LIKELIHOOD))
        return Draws(noise, {name: Draw(self.gathered.weight(name, noise)) for name in own})


@final
class Shards:
    """Own stretches of the means and log sds that learn, their slopes, and the prior's."""

    def __init__(self, prior: ShardedBelief, mu: Tensor, log_sd: Tensor) -> None:
        self.cut: Cut = prior.cut
        self.mu, self.log_sd = nn.Parameter(mu), nn.Parameter(log_sd)  # [L]
        self._prior = prior
        self._slopes: dict[str, Tensor] = {}
        """Of the data term in μ and log σ, summed over processes; there once something learns."""
        self._kl: Tensor | None = None
        self._read = 0
        """What was gathered since the last step, and in which order, as one number."""
        self._again: tuple[str, Noise, Tensor, Tensor] | None = None
        """The tensor that was drawn again last, and its shift: its slope usually comes next."""
        self._living: dict[int, tuple[StorageWeakRef, str]] = {}
        """Tensors that were drawn and are not yet gone, by their storage."""

    def begin(self) -> None:
        """Before the draws of a step: slopes at zero, and the KL known."""
        if self._kl is None:
            for name in ("mu", "log_sd"):
                self._slopes.setdefault(name, torch.zeros_like(self.mu, requires_grad=False)).zero_()
            # The mean over processes is what all of them minimise, so that N times the own part makes up the whole.
            own = self.own_kl().to(self.mu.dtype)
            self._kl = (self.cut.size * own).requires_grad_()

    def kl(self) -> Tensor:
        """N x this process's part of KL(posterior ‖ prior) in nats, exact; its mean over processes is the KL."""
        assert self._kl is not None, "the KL is asked for between a draw and settle"
        return self._kl

    @torch.no_grad()
    def own_kl(self) -> Tensor:
        """The KL of the own stretches."""
        pieces = [gaussian.kl(*near).double() for near in self._near(self.mu, self.log_sd)]
        return torch.stack(pieces).sum()

    @torch.no_grad()
    def settle(self) -> None:
        """The slopes of the mean over processes: of the data gathered so far, of the KL worked out here."""
        assert self._kl is not None, "there is a slope to settle only after a draw"
        self._check_order()
        of_kl = torch.zeros_like(self._kl) if self._kl.grad is None else self._kl.grad
        vectors = (self.mu, self.log_sd, self._slopes["mu"], self._slopes["log_sd"])
        for mu, log_sd, slope_mu, slope_log_sd, prior_mu, prior_log_sd in self._near(*vectors):
            distance = (mu - prior_mu).mul_((-2 * prior_log_sd).exp_())
            slope_mu.div_(self.cut.size).addcmul_(distance, of_kl)
            slope_log_sd.div_(self.cut.size).addcmul_((log_sd - prior_log_sd).mul_(2).expm1_(), of_kl)
        self.mu.grad, self.log_sd.grad = self._slopes["mu"], self._slopes["log_sd"]
        self._kl = None

    def weight(self, name: str, noise: Noise) -> Tensor:
        """A tensor drawn with this noise, whose slope finds its way to the shares."""
        drawn: Tensor = cast(Any, _Drawn).apply(self.mu, self, name, noise)
        self._living = {key: entry for key, entry in self._living.items() if not entry[0].expired()}
        self._living[_place(drawn)] = (StorageWeakRef(drawn.untyped_storage()), name)
        return drawn

    @torch.no_grad()
    def drawn(self, name: str, noise: Noise) -> tuple[Tensor, Tensor]:
        """The whole tensor drawn with this noise, and by how much it differs from the mean."""
        shape, place = self.cut.shapes[name], self.cut.places[name]
        self._read = zlib.crc32(f"{self._read} {name}".encode())
        if self.is_small(name):
            both = distributed.all_pieces(torch.cat([self.mu[place], self.log_sd[place]])).view(self.cut.size, 2, -1)
            mu, log_sd = both[:, 0].flatten(), both[:, 1].flatten()
        else:
            mu, log_sd = distributed.all_pieces(self.mu[place]), distributed.all_pieces(self.log_sd[place])
        weight, shift = mu[: shape.numel()], log_sd[: shape.numel()].exp_()
        shift.mul_(noise_of(name, noise, shift))
        return weight.add_(shift).view(shape), shift.view(shape)

    def is_small(self, name: str) -> bool:
        """Whether a message costs more than its bytes."""
        return self.cut.shapes[name].numel() < SMALL

    def drawn_again(self, name: str, noise: Noise) -> tuple[Tensor, Tensor]:
        """The same once more, in the backward pass."""
        if self._again is None or self._again[:2] != (name, noise):
            self._again = None  # before the next one takes its room
            self._again = (name, noise, *self.drawn(name, noise))
        return self._again[2:]

    @torch.no_grad()
    def take(self, name: str, noise: Noise, slope: Tensor, shift: Tensor | None) -> None:
        """Add the slope in a whole tensor to the own stretches of the slopes in μ and log σ, over all processes."""
        if shift is None:
            shift = self.drawn_again(name, noise)[1]
            self._again = None
        place = self.cut.places[name]
        in_mu = self._with_room(name, slope.reshape(-1))
        if self.is_small(name):
            in_log_sd = self._with_room(name, (shift * slope).flatten())
            both = torch.stack([in_mu.view(self.cut.size, -1), in_log_sd.view(self.cut.size, -1)], 1)
            own_mu, own_log_sd = distributed.own_piece_of_sum(both.flatten()).view(2, -1)
        else:
            own_mu = distributed.own_piece_of_sum(in_mu)
            own_log_sd = distributed.own_piece_of_sum(self._with_room(name, shift.mul_(slope).flatten()))
        self._slopes["mu"][place].add_(own_mu)
        self._slopes["log_sd"][place].add_(own_log_sd)

    @contextmanager
    def forgetful(self, noise: Noise) -> Generator[None]:
        """Inside, autograd keeps the names of tensors drawn here rather than the tensors."""

        def packed(tensor: Tensor) -> Any:
            storage, name = self._living.get(_place(tensor), (None, ""))
            if storage is None or self.is_small(name):
                return tensor
            return _Kept(name, noise, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

        def unpacked(kept: Any) -> Tensor:
            if not isinstance(kept, _Kept):
                return kept
            weight = self.drawn_again(kept.name, kept.noise)[0]
            return weight.as_strided(kept.size, kept.stride, kept.offset)

        with saved_tensors_hooks(packed, unpacked):
            yield

    def _with_room(self, name: str, whole: Tensor) -> Tensor:
        length = self.cut.length(name) * self.cut.size
        if whole.numel() == length:
            return whole
        roomy = whole.new_zeros(length)
        roomy[: whole.numel()] = whole
        return roomy

    def _near(self, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Pieces of these vectors, and of the prior's, a few at a time."""
        all_vectors = (*vectors, self._prior.mu, self._prior.log_sd)
        return zip(*(vector.detach().split(NEAR) for vector in all_vectors), strict=True)

    def _check_order(self) -> None:
        """Raise a NetworkError unless all processes have read the same weights in the same order."""
        read, self._read = distributed.gather_values(self._read), 0
        if len(set(read)) > 1:
            raise NetworkError(
                "processes used the network's weights in different orders, which a sharded belief does not allow: "
                "what the network does must not depend on the examples"
            )


Trainable = BayesianNetwork | ShardedNetwork
"""What gradient steps are taken on."""


def noise_of(name: str, noise: Noise, like: Tensor) -> Tensor:
    """The standard normal numbers behind one tensor of a draw."""
    generator = seeds.stream(like.device, noise.seed, name)
    found = gaussian.noise(like, generator)
    return found if noise.sign > 0 else found.neg_()


@dataclass(frozen=True)
class _Kept:
    """What autograd keeps of a tensor that can be drawn again."""

    name: str
    noise: Noise
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Drawn(torch.autograd.Function):
    """From the share to a whole tensor. Its slope is taken to the shares as a side effect."""

    @staticmethod
    def forward(ctx: Any, lever: Tensor, shards: Shards, name: str, noise: Noise) -> Tensor:
        del lever  # which is here so that the outcome wants a slope
        weight, shift = shards.drawn(name, noise)
        ctx.way = shards, name, noise, shift if shards.is_small(name) else None
        return weight

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        shards, name, noise, shift = ctx.way
        shards.take(name, noise, slope, shift)
        return None, None, None, None


class _Read(dict[str, nn.Parameter | None]):
    """A module's own parameters, each drawn where it is read."""

    def __init__(
        self,
        network: ShardedNetwork,
        names: Mapping[str, str],
        parameters: Iterator[tuple[str, nn.Parameter | None]],
    ) -> None:
        super().__init__(parameters)
        self._network, self._names = network, names

    def __getitem__(self, leaf: str) -> Any:
        name = self._names.get(leaf)
        return super().__getitem__(leaf) if name is None else self._network.weight(name)


def _place(tensor: Tensor) -> int:
    """Which storage a tensor lies in; no other has this number while a weak reference to it is kept."""
    return cast(Any, tensor.untyped_storage())._cdata


def _own(module: nn.Module) -> Iterator[tuple[str, nn.Parameter | None]]:
    return iter(module._parameters.items())  # pyright: ignore[reportPrivateUsage]  # None among them too
