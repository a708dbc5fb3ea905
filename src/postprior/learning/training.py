"""The loop: passes over the part, and when to stop."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, final

import torch
from torch import Tensor

from postprior.batch import DrawingPart, Part
from postprior.errors import PartError
from postprior.learning.checkpoint import Keeper, Saved, inside, put_back, under
from postprior.learning.graph import Item
from postprior.learning.likelihoods import Likelihood
from postprior.learning.objective import Term
from postprior.learning.settings import Settings
from postprior.learning.steps import Stepper
from postprior.maths import seeds
from postprior.networks.drawing import Trainable


@dataclass(frozen=True)
class Progress:
    """How far an absorption is."""

    step: int
    num_steps: int
    nelbo: float
    """The objective per example, as it was last looked at."""


@dataclass(frozen=True)
class Epoch:
    """Averages over one pass over the part, in nats for the whole part."""

    data_term: float
    kl: float
    """Of the posterior from the prior, temperature not counted; averaged like the data term."""
    holdout_nll: float | None
    """Per example, after the pass."""


@dataclass(frozen=True)
class Trace:
    """What happened in the loop."""

    epochs: tuple[Epoch, ...]
    num_steps: int
    stopped_early: bool


def train(
    posterior: Trainable,
    part: Part,
    likelihood: Likelihood,
    terms: Mapping[str, Term],
    settings: Settings,
    num_examples: int,
    order: torch.Generator,
    judge: Callable[[], float] | None = None,
    progress: Callable[[Progress], None] | None = None,
    keeper: Keeper | None = None,
) -> Trace:
    """Train in place until the last epoch or step, or until ``judge``, the held-out NLL, no longer improves."""
    planned = settings.steps or settings.epochs * _count_batches(part, settings.batch_size)
    stepper = Stepper(posterior, part, likelihood, terms, settings, num_examples, planned)
    best = _Best(posterior)
    passes = _Passes(stepper, part, order, posterior.device)

    def state() -> Saved:
        saved = {"steps": stepper.state(), "passes": passes.state(), "best": best.state()}
        tensors = {key: value for name, (own, _) in saved.items() for key, value in under(name, own).items()}
        return tensors, {name: about for name, (_, about) in saved.items()}

    if keeper and keeper.training:
        tensors, about = keeper.training
        for name, kept in (("steps", stepper), ("passes", passes), ("best", best)):
            kept.load_state(inside(name, tensors), about[name])
    while passes.left or (stepper.step < planned and best.age < settings.patience):
        for item in passes.items():
            stepper.take(item)
            if progress:
                progress(Progress(stepper.step, planned, stepper.nelbo))
            if keeper:
                keeper.after_step(stepper.step, planned, state)
        holdout_nll = judge() if judge else None
        passes.end(settings.temperature, holdout_nll)
        if holdout_nll is not None:
            best.offer(holdout_nll)
    best.restore()
    return Trace(tuple(passes.epochs), stepper.step, stopped_early=best.age >= settings.patience)


@final
class _Passes:
    """Passes over the part, one after another; one that another process left is entered again at the same step."""

    def __init__(self, stepper: Stepper, part: Part, order: torch.Generator, device: torch.device) -> None:
        self._stepper, self._device = stepper, device
        self._order = order
        own = part.generators() if isinstance(part, DrawingPart) else ()
        self._generators = {"order": order, **{f"part {i}": generator for i, generator in enumerate(own)}}
        self._began = 0
        self._then: dict[str, Tensor] = {}
        """Where the generators were when the pass under way began."""
        self.left: dict[str, Tensor] = {}
        """Where the global generators were when another process left the pass under way; empty if none did."""
        self.epochs: list[Epoch] = []

    def items(self) -> Iterator[Item]:
        """What a new pass takes its steps on, or the rest of the pass that was left."""
        self._enter() if self.left else self._begin()
        items = islice(self._stepper.items(self._order), self._stepper.num_steps - self._began)
        if self.left:
            deque(islice(items, self._stepper.step - self._began), maxlen=0)
            seeds.set_global_states(self._device, self.left)
            self.left = {}
        return items

    def _begin(self) -> None:
        self._began = self._stepper.step
        own = {name: generator.get_state() for name, generator in self._generators.items()}
        self._then = {**under("own", own), **under("global", seeds.global_states(self._device))}
        for total in self._stepper.sums.values():
            total.zero_()

    def _enter(self) -> None:
        # A pass draws its order when it begins, so that is where it has to be entered.
        for name, state in inside("own", self._then).items():
            self._generators[name].set_state(state)
        seeds.set_global_states(self._device, inside("global", self._then))

    def end(self, temperature: float, holdout_nll: float | None) -> None:
        """Take down what the pass was like."""
        taken = self._stepper.step - self._began
        if not taken:
            raise PartError("the part gave no batch on a second pass: give one that can be read more than once")
        means = {name: float(value) / taken for name, value in self._stepper.sums.items()}
        self.epochs.append(Epoch(-means["data"], means["kl"] / temperature, holdout_nll))

    def state(self) -> Saved:
        """The pass under way, and what is known of those before it."""
        tensors = {**under("then", self._then), **under("now", seeds.global_states(self._device))}
        return tensors, {"began": self._began, "epochs": [asdict(epoch) for epoch in self.epochs]}

    def load_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        self._then, self.left = inside("then", tensors), inside("now", tensors)
        self._began, self.epochs = about["began"], [Epoch(**epoch) for epoch in about["epochs"]]


@final
class _Best:
    """The best weights so far, and how many epochs ago they were seen."""

    def __init__(self, posterior: Trainable) -> None:
        self._posterior = posterior
        self._nll, self._weights = math.inf, dict[str, Tensor]()
        self.age = 0

    def offer(self, nll: float) -> None:
        self.age += 1
        if nll < self._nll:
            self._nll, self.age = nll, 0
            self._weights = {name: value.detach().clone() for name, value in self._posterior.tensors().items()}

    def restore(self) -> None:
        if self._weights:
            put_back(self._posterior.tensors(), self._weights)

    def state(self) -> Saved:
        return self._weights, {"nll": self._nll if self._weights else None, "age": self.age}

    def load_state(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        self._weights = dict(tensors)
        self._nll, self.age = about["nll"] if tensors else math.inf, about["age"]


def _count_batches(part: Part, batch_size: int) -> int:
    count = part.num_batches(batch_size)
    return sum(1 for _ in part.batches(batch_size)) if count is None else count
