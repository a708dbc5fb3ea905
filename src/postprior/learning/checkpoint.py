"""An absorption put away between two steps, so that another process can go on with it and end at the same bytes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, final

import torch
from torch import Tensor

from postprior import distributed
from postprior.batch import IndexedPart, Part
from postprior.errors import BeliefError, PartError, SettingError, StoppedError
from postprior.learning import likelihoods
from postprior.learning.likelihoods import Likelihood
from postprior.learning.predict import Score
from postprior.learning.settings import Settings
from postprior.networks.belief import Belief, digest
from postprior.networks.sharded import ShardedBelief

FORMAT = 1
"""Raised whenever older code could misread a newer checkpoint."""

OWN = ("steps/generator", "passes/")
"""What each of several processes has for itself, its generators; all else is the same in all of them."""

Saved = tuple[Mapping[str, Tensor], Mapping[str, Any]]
"""Tensors by name, and all else as JSON."""


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Checkpointing:
    """When an absorption is put away and how, and which one to go on with.

    On the CPU the resumed absorption ends at the same bytes as one that was never interrupted. It has to be given what
    the first was given; functions of your own (likelihood, augment, terms) may keep no state, but may draw from torch's
    global generators.
    """

    save: Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]
    """Puts tensors and JSON away, the later in the place of the earlier. They are copies on the CPU, to be kept.
    Of several processes the first one is asked to; ``resume_from`` is for all of them."""
    every_seconds: float = 60.0
    """How long to learn from one checkpoint to the next; ``math.inf`` saves at a stop alone."""
    resume_from: Saved | None = None
    """What ``save`` was given last."""
    stop: Callable[[], bool] = _never
    """Asked after every step; at True the state is saved, and a StoppedError raised."""

    def __post_init__(self) -> None:
        if not self.every_seconds >= 0:
            raise SettingError(f"every_seconds={self.every_seconds}: expected a number of seconds from 0")


@final
class Keeper:
    """Saves one absorption when it is time, stops it when asked to, and has what an earlier process left of it."""

    def __init__(self, how: Checkpointing, identity: Callable[[], dict[str, Any]]) -> None:
        self._how, self._identity = how, cache(identity)  # which reads the whole prior, so not before it is needed
        self._began = self._saved = time.monotonic()
        self.before: Score | None = None
        """The part under the old belief; once known, it belongs to the checkpoint."""
        self.training: Saved | None = None
        self.seconds_before = 0.0
        """Spent by earlier processes."""
        if how.resume_from is not None:
            self._take_up(*how.resume_from)

    def after_step(self, step: int, num_steps: int, training: Callable[[], Saved]) -> None:
        """Save if it is time; raise a StoppedError if a stop was asked for."""
        due = time.monotonic() - self._saved >= self._how.every_seconds
        # Several processes do what one of them wants to.
        wish = distributed.largest(2 if self._how.stop() else int(due))
        if not wish:
            return
        assert self.before is not None, "a part is scored before it is learned"
        tensors, about = training()
        heading = {
            "format": FORMAT,
            "of": self._identity(),
            "before": asdict(self.before),
            "seconds": self.seconds_before + time.monotonic() - self._began,
        }
        others = distributed.gather({name: value for name, value in tensors.items() if name.startswith(OWN)})[1:]
        with distributed.agreed():
            if distributed.is_first():
                copies = {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
                for number, own in enumerate(others, 1):
                    copies |= under(f"process {number}", own)
                self._how.save(copies, {**heading, "training": about})
        self._saved = time.monotonic()
        if wish == 2:
            raise StoppedError(
                f"absorption was stopped on request at step {step} of {num_steps}; its checkpoint is kept"
            )

    def _take_up(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        if about.get("format") != FORMAT:
            raise SettingError(
                f"resume_from has format {about.get('format')}, expected a checkpoint of format {FORMAT}: "
                "resume it with the code that saved it, or begin anew"
            )
        _check_same(about["of"], self._identity())
        self.before, self.seconds_before = Score(**about["before"]), about["seconds"]
        own = inside(f"process {distributed.rank()}", tensors)
        self.training = {**tensors, **own}, about["training"]


def identity_of(
    prior: Belief | ShardedBelief,
    likelihood: Likelihood,
    settings: Settings,
    seed: int,
    terms: Mapping[str, object],
    device: str,
) -> dict[str, Any]:
    """What an absorption is given besides its part, as JSON; of functions, whether they are there."""
    return {
        "prior": prior.digest() if isinstance(prior, ShardedBelief) else digest(prior),
        "seed": seed,
        "device": device,
        "processes": distributed.size(),
        "likelihood": likelihoods.to_json(likelihood) or type(likelihood).__name__,
        "terms": sorted(terms),
        **asdict(replace(settings, augment=None)),
        "augment": settings.augment is not None,
    }


def check_part(part: Part, batch_size: int, num_examples: int) -> None:
    """Raise a PartError unless the part has as many examples as the one that the checkpoint was made in."""
    own = sum(map(len, part.chunks(batch_size) if isinstance(part, IndexedPart) else part.batches(batch_size)))
    found = round(distributed.total(own))
    if found != num_examples:
        raise PartError(
            f"the checkpoint was made in a part of {num_examples} examples, this one has {found}: "
            "resume with the same part, or begin anew"
        )


def _check_same(kept: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    kept = {"processes": 1, **kept}
    if kept["prior"] != given["prior"]:
        raise BeliefError(
            f"the checkpoint was made from another prior (digest {kept['prior'][:12]}, expected "
            f"{given['prior'][:12]}): resume with the belief that was absorbed into, or begin anew"
        )
    for name in [name for name in given if kept.get(name) != given[name]]:
        raise SettingError(
            f"the checkpoint was made with {name}={kept.get(name)!r}, found {name}={given[name]!r}: "
            "resume with what the absorption began with, or begin anew"
        )


def under(place: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the place before their names."""
    return {f"{place}/{name}": value for name, value in tensors.items()}


def inside(place: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the place, by the rest of their names."""
    return {name.removeprefix(f"{place}/"): v for name, v in tensors.items() if name.startswith(f"{place}/")}


@torch.no_grad()
def put_back(places: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Write each value where it belongs; the tensors themselves stay, since others may look at them."""
    if places.keys() != values.keys():
        odd = sorted(places.keys() ^ values.keys())
        raise SettingError(f"the checkpoint is of another network: {odd[0]} is in one of them only; give the same one")
    for name, place in places.items():
        place.copy_(values[name])
