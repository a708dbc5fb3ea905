"""A network whose weights are sampled from a belief at every call."""

import copy
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from postprior.errors import BeliefError, NetworkError
from postprior.families import Draw, Family
from postprior.networks.belief import Belief
from postprior.networks.gathered import Gathered, gather
from postprior.networks.layers import LocalReparameterization, own_linear_maps

LIKELIHOOD = "likelihood."
"""Where the likelihood's own unknowns stand among the names of a belief."""


class BayesianNetwork(nn.Module):
    """The network, called with weights drawn from ``families()``, which are trainable.

    The network inside shares its parameters with the families' locations, so nothing is kept twice.
    ``at_mean`` gives the mean-weight mode, ``at`` any other fixed draw.
    """

    def __init__(
        self,
        network: nn.Module,
        families: Mapping[str, Family],
        *,
        held: frozenset[str] = frozenset(),
        local_reparameterization: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.beliefs = nn.ModuleDict({_key(name): family for name, family in families.items()})
        self.held = held
        self.local_reparameterization = local_reparameterization
        self.generator = generator or torch.Generator().manual_seed(0)
        self._names = tuple(families)
        self.gathered: Gathered | None = None
        self._pinned: Mapping[str, Draw] | None = None
        self._noise_state: Tensor | None = None
        self._mirroring = False
        for name in held:
            families[name].requires_grad_(False)
        _share_locations(network, families)
        self._places = _places(network)
        self.compiled: Callable[..., Any] | None = None
        """Stands in for the network's own code while it is set; see ``compiled_calls``."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(parameter for _, parameter in learnable(self.network)).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the floating weights."""
        return next(parameter.real.dtype for _, parameter in learnable(self.network))

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and buffer, each once."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def families(self) -> dict[str, Family]:
        """The belief about each parameter, by the network's own name."""
        return {name: cast(Family, self.beliefs[_key(name)]) for name in self._names}

    def draw(self, generator: torch.Generator | None = None) -> dict[str, Draw]:
        """One sample of everything, differentiable in the families' parameters."""
        generator = generator or self.generator
        gathered = self._draw_gathered(generator)
        families = self.families().items()
        return {name: gathered[name] if name in gathered else family.draw(generator) for name, family in families}

    def _draw_gathered(self, generator: torch.Generator) -> dict[str, Draw]:
        if self.gathered is None:
            return {}
        return self.gathered.draw_locally(generator) if self._moments_suffice() else self.gathered.draw(generator)

    def _moments_suffice(self) -> bool:
        return self.local_reparameterization and self.training and torch.is_grad_enabled()

    def gather(self, prior: Mapping[str, Family], *, draws_are_seen: bool = False) -> None:
        """Join what can be joined for training against this prior.

        Weights of linear maps whose outputs are sampled locally are then not drawn any more, unless ``draws_are_seen``
        by others than the network.
        """
        linear = frozenset[str]() if draws_are_seen else own_linear_maps(self.network)
        self.gathered = gather(self.families(), prior, linear)

    def settle(self) -> None:
        """After a backward pass: bring the slopes of what was joined to where the optimizer looks for them."""
        if self.gathered:
            self.gathered.settle()

    def ungathered(self) -> dict[str, Family]:
        """The families that were not joined with others."""
        gathered = self.gathered.shapes if self.gathered else {}
        return {name: family for name, family in self.families().items() if name not in gathered}

    def mirrored(self, draws: Mapping[str, Draw]) -> dict[str, Draw]:
        """The draw on the other side of the mean."""
        gathered: Mapping[str, Draw] = {}
        if self.gathered:
            local = self._moments_suffice()
            gathered = self.gathered.mirrored_locally(draws) if local else self.gathered.mirrored(draws)
        families = self.families()
        return {n: gathered[n] if n in gathered else families[n].mirrored(draw) for n, draw in draws.items()}

    @contextmanager
    def mirroring(self) -> Generator[None]:
        """Inside, outputs that are sampled locally get the noise of the last call with its sign turned."""
        self._mirroring = True
        try:
            yield
        finally:
            self._mirroring = False

    def means(self) -> dict[str, Draw]:
        """Every weight at its mean, in the form of a draw."""
        return {name: Draw(family.mean()) for name, family in self.families().items()}

    @contextmanager
    def at(self, draws: Mapping[str, Draw]) -> Generator[None]:
        """Inside, every call uses these weights."""
        before, self._pinned = self._pinned, draws
        try:
            yield
        finally:
            self._pinned = before

    @contextmanager
    def at_mean(self) -> Generator[None]:
        """Inside, every call uses the mean weights."""
        with self.at(self.means()):
            yield

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output with a fresh draw of the weights, or with the pinned one."""
        if self._pinned is not None:
            return self._call(self._pinned, args, kwargs)
        return self.run(self.draw(), *args, **kwargs)

    def run(self, draws: Mapping[str, Draw], *args: Any, **kwargs: Any) -> Any:
        """The network's output with these draws; while training, outputs are sampled locally where that was chosen."""
        if not (self.local_reparameterization and self.training):
            return self._call(draws, args, kwargs)
        if self._mirroring and self._noise_state is not None:
            self.generator.set_state(self._noise_state)
        self._noise_state = self.generator.get_state()
        families = self.families()
        joined = self.gathered.moments() if self.gathered and self._moments_suffice() else {}
        moments = (
            (draw.weight, joined[name] if name in joined else families[name].local_moments(draw))
            for name, draw in draws.items()
        )
        known = ((weight, both) for weight, both in moments if both is not None)
        with LocalReparameterization(known, self.generator, sign=-1 if self._mirroring else 1):
            return self._call(draws, args, kwargs)

    def _call(self, draws: Mapping[str, Draw], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        weights = {place: draws[name].weight for place, name in self._places.items() if name in draws}
        if self.compiled is not None:
            return self.compiled({**weights, **dict(self.network.named_buffers())}, args, dict(kwargs))
        return functional_call(self.network, weights, args, dict(kwargs), tie_weights=False)

    def belief(self, counts: Mapping[str, int] | None = None, *, num_parts: int = 0, num_examples: int = 0) -> Belief:
        """What the network believes now, frozen and detached."""
        buffers = dict(self.network.named_buffers())
        return Belief(self.families(), self.held, buffers, counts or {}, num_parts, num_examples)


_COMPILED: WeakKeyDictionary[nn.Module, Callable[..., Any]] = WeakKeyDictionary()


def compiled_calls(network: nn.Module) -> Callable[..., Any]:
    """The network's code in eval mode as a function of its tensors, compiled for each shape it meets, and kept."""
    if network not in _COMPILED:
        frame = copy_network(network).eval().requires_grad_(False)

        def call(tensors: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return functional_call(frame, tensors, args, kwargs, tie_weights=False)

        _COMPILED[network] = torch.compile(call, dynamic=False)
    return _COMPILED[network]


def likelihood_values(draws: Mapping[str, Draw]) -> dict[str, Tensor]:
    """The likelihood's own unknowns among the draws."""
    return {name.removeprefix(LIKELIHOOD): d.weight for name, d in draws.items() if name.startswith(LIKELIHOOD)}


def from_belief(
    network: nn.Module, belief: Belief, *, local_reparameterization: bool = False, generator: torch.Generator
) -> BayesianNetwork:
    """A trainable copy of the belief inside a copy of the network."""
    check_fits(network, belief)
    network = copy_network(network)
    take_buffers(network, belief)
    families = {name: copy.deepcopy(family).requires_grad_(True) for name, family in belief.weights.items()}
    options: dict[str, Any] = {"local_reparameterization": local_reparameterization, "generator": generator}
    return BayesianNetwork(network, families, held=belief.held, **options)


@torch.no_grad()
def take_buffers(network: nn.Module, belief: Belief) -> None:
    """Put the belief's buffers, running statistics among them, into the network."""
    for name, buffer in network.named_buffers():
        if buffer.shape == belief.buffers[name].shape:
            buffer.copy_(belief.buffers[name])


def check_fits(network: nn.Module, belief: Belief) -> None:
    """Raise a BeliefError unless the belief is about the parameters and buffers of this network."""
    problems: list[str] = []
    parameters = dict(learnable(network))
    known = {name: family for name, family in belief.weights.items() if not name.startswith(LIKELIHOOD)}
    problems += [f"{name} is in the network only" for name in parameters.keys() - known.keys()]
    problems += [f"{name} is in the belief only" for name in known.keys() - parameters.keys()]
    for name in parameters.keys() & known.keys():
        expected, found = tuple(parameters[name].shape), tuple(known[name].location.shape)
        if expected != found:
            problems.append(f"{name} has shape {expected} in the network and {found} in the belief")
    buffers = dict(network.named_buffers())
    problems += [f"buffer {name} is in one of them only" for name in buffers.keys() ^ belief.buffers.keys()]
    if problems:
        shown = "; ".join(sorted(problems)[:5]) + ("; ..." if len(problems) > 5 else "")
        raise BeliefError(
            f"the belief is about another network ({len(problems)} differences): {shown}. "
            "Build the network as it was when the belief was first made"
        )


def check_plain(network: nn.Module) -> None:
    """Raise a NetworkError for what is no plain network."""
    if isinstance(network, BayesianNetwork):
        raise NetworkError("the network is Bayesian already: pass the plain network it was made from")
    if isinstance(network, torch.jit.ScriptModule):
        raise NetworkError("a TorchScript network cannot be called with sampled weights: pass the original nn.Module")
    for name, module in network.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise NetworkError(
                f"{name or 'the network'} has sparse gradients, which Adam does not take: set sparse=False"
            )


def copy_network(network: nn.Module) -> nn.Module:
    """A deep copy, so that the user's own network is never touched."""
    check_plain(network)
    try:
        return copy.deepcopy(network)
    except (RuntimeError, TypeError) as error:
        raise NetworkError(
            f"{type(network).__name__} cannot be copied ({error}): torch.nn.utils.weight_norm keeps computed tensors "
            "in the module; its successor torch.nn.utils.parametrizations.weight_norm does not"
        ) from error


def learnable(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The floating and complex parameters, each once; whole numbers cannot be learned."""
    for name, parameter in network.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise NetworkError(f"{name} has no shape yet: call the network once on an example, then try again")
        if parameter.is_floating_point() or parameter.is_complex():
            yield name, parameter


def _key(name: str) -> str:
    # A ModuleDict takes neither dots nor the names of its own methods, and parameters may be called anything.
    return "of/" + name.replace("~", "~0").replace("/", "~1").replace(".", "/")


def _places(network: nn.Module) -> dict[str, str]:
    """Where each parameter stands: every place under one name of its module, with the parameter's own first name."""
    # Given a module under two of its names, functional_call would leave the sample in it.
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    modules = network.named_modules()
    own = (m.named_parameters(prefix, recurse=False, remove_duplicate=False) for prefix, m in modules)
    return {place: names[id(parameter)] for places in own for place, parameter in places}


def _share_locations(network: nn.Module, families: Mapping[str, Family]) -> None:
    """Put each family's location where the network's parameter stood, under all of its names."""
    by_identity = {id(parameter): name for name, parameter in network.named_parameters()}
    for alias, parameter in list(network.named_parameters(remove_duplicate=False)):
        family = families.get(by_identity[id(parameter)])
        if family is not None:
            owner, _, leaf = alias.rpartition(".")
            setattr(network.get_submodule(owner), leaf, family.location)
