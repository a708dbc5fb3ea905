"""How a store begins: what is settled for all its beliefs, and the belief before any part."""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from postprior.data.encoding import Encoding, check_once, check_way
from postprior.errors import DataError, NetworkError, SettingError
from postprior.learning import likelihoods
from postprior.learning.likelihoods import Likelihood
from postprior.learning.pretrained import laplace_belief, pretrained_belief
from postprior.learning.settings import checked_names
from postprior.networks.belief import Belief
from postprior.networks.convert import check_positive, first_belief, matching
from postprior.pipeline.incoming import encoding_for, raw_data
from postprior.pipeline.recipe import GIVEN, Recipe, build, settings_of

Address = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that can be said when a store is made."""

    network: str | nn.Module
    likelihood: str | Likelihood
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the network's function is called with."""
    family: str = "factorized"
    prior_sd: float | str = 1.0
    point: Sequence[str] = ()
    frozen: Sequence[str] = ()
    seed: int = 0
    pretrained: Address | Mapping[str, Tensor] | None = None
    """Weights by the network's own names, or the .safetensors file that holds them."""
    carry: Sequence[str] = ()
    """Patterns of the pretrained parameters that are believed in; all of them where ``pretrained`` is given alone."""
    pretrained_sd: float | None = None
    """How far they may be from the truth; or else ``old_data`` tells."""
    old_data: Any = None
    """What the network was pretrained on, for Laplace's width of every carried weight."""
    like: Any = None
    """Data that tell the normalisation and the classes before any part is learned, as ``old_data`` do too. Otherwise
    the first part does."""
    normalise: str = "standard"
    classes: Sequence[str] | None = None
    target: str | None = None
    inputs: Sequence[str] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, network: str | nn.Module, likelihood: str | Likelihood, options: Mapping[str, Any]) -> Self:
        """A plan from keywords, among which settings need no name of their own."""
        own = {each.name for each in fields(cls)} - {"settings"}
        settings = checked_names({name: value for name, value in options.items() if name not in own})
        return cls(
            network=network, likelihood=likelihood, settings=settings, **{k: v for k, v in options.items() if k in own}
        )

    @property
    def carried(self) -> tuple[str, ...]:
        """The patterns of what is carried over."""
        return tuple(self.carry) or (("*",) if self.pretrained is not None else ())

    def recipe(self) -> Recipe:
        """What is kept of it for all later parts, once it is known to make sense."""
        likelihood = likelihoods.to_json(likelihoods.as_likelihood(self.likelihood))
        if likelihood is None:
            known = ", ".join(likelihoods.LIKELIHOODS)
            raise SettingError(
                f"the likelihood is a function of your own, and no store holds code: choose among {known}"
            )
        settings_of(self.settings)
        check_way(self.normalise)
        check_once("classes", self.classes or ())
        if self.carried and (self.pretrained_sd is None) == (self.old_data is None):
            raise SettingError(
                "pretrained weights need a width: give either pretrained_sd (one number) or old_data (Laplace)"
            )
        return Recipe(
            network=self.network if isinstance(self.network, str) else GIVEN,
            arguments=dict(self.arguments),
            family=self.family,
            likelihood=likelihood,
            prior_sd=self.prior_sd,
            settings=dict(self.settings),
            point=tuple(self.point),
            frozen=tuple(self.frozen),
            carry=self.carried,
            normalise=self.normalise,
            target=self.target,
            inputs=None if self.inputs is None else tuple(self.inputs),
            classes=None if self.classes is None else tuple(self.classes),
            seed=self.seed,
        )


def first(plan: Plan, device: str) -> tuple[Recipe, Belief, Encoding | None, nn.Module | None]:
    """The recipe, the first belief, the encoding if data told it, and the module if one was handed over."""
    recipe = plan.recipe()
    given = copy.deepcopy(plan.network) if isinstance(plan.network, nn.Module) else None
    network = build(recipe, given, device)
    if plan.pretrained is not None:
        load_weights(network, plan.pretrained, recipe.carry)
    raw = None
    if (known := plan.like if plan.old_data is None else plan.old_data) is not None:
        raw = raw_data(known, recipe, labelled=True)
    encoding = None if raw is None else encoding_for(raw, recipe, None)
    belief = _belief(plan, recipe, network, encoding.part(raw) if encoding and raw is not None else None)
    return recipe, belief.to("cpu"), encoding, given


def load_weights(network: nn.Module, source: Address | Mapping[str, Tensor], carry: Sequence[str]) -> None:
    """Put pretrained weights and buffers into the network; those that are carried must all be there, and fit."""
    where = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the pretrained weights"
    weights = _read_weights(Path(where)) if isinstance(source, (str, os.PathLike)) else dict(source)
    parameters = dict(network.named_parameters())
    needed = matching(parameters, carry, "carry")
    for name in sorted(needed - weights.keys()):
        raise NetworkError(
            f"{where} has no {name}, which is to be carried over; it has {', '.join(sorted(weights)[:8])}"
        )
    places = {name: place for name, place in (*parameters.items(), *network.named_buffers()) if name in weights}
    for name, place in places.items():
        if place.shape != weights[name].shape and (name in needed or name not in parameters):
            found, expected = tuple(weights[name].shape), tuple(place.shape)
            raise NetworkError(f"{where}: {name} has shape {found}, expected {expected}: it is of another network")
    with torch.no_grad():
        for name, place in places.items():
            if name in needed or name not in parameters:
                place.copy_(weights[name])


def _belief(plan: Plan, recipe: Recipe, network: nn.Module, old: Any) -> Belief:
    options: dict[str, Any] = {"prior_sd": recipe.prior_sd, "point": recipe.point, "frozen": recipe.frozen}
    likelihood = recipe.make_likelihood()
    if not recipe.carry:
        return first_belief(network, recipe.family, unknowns=likelihood.unknowns(), **options)
    if plan.pretrained_sd is not None:
        check_positive("pretrained_sd", plan.pretrained_sd)
        about: dict[str, Any] = {"sd": plan.pretrained_sd, "unknowns": likelihood.unknowns()}
        return pretrained_belief(network, recipe.family, carry=recipe.carry, **about, **options)
    width = recipe.prior_sd if isinstance(recipe.prior_sd, (int, float)) else 1.0
    about = {"prior_precision": width**-2, "temperature": settings_of(recipe.settings).temperature, "seed": recipe.seed}
    return laplace_belief(network, old, likelihood, recipe.family, carry=recipe.carry, **about, **options)


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}; check the path") from error
    except SafetensorError as error:
        raise DataError(
            f"{path} holds no safetensors ({error}); expected a network's weights, saved by that library"
        ) from error
