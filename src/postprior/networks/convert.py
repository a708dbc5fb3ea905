"""From a plain network to a Bayesian one, and to the first belief about it."""

import fnmatch
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from postprior.errors import NetworkError, SettingError
from postprior.families import Factorized, Family, Point, Role, family_for
from postprior.networks.bayesian import (
    LIKELIHOOD,
    BayesianNetwork,
    check_fits,
    check_plain,
    copy_network,
    learnable,
    take_buffers,
)
from postprior.networks.belief import Belief
from postprior.networks.layers import sites

KNOWN_SD = 1e-6
"""How wide a belief is about what the network itself keeps fixed, such as an embedding's padding row."""

START_SD = 0.02
"""How wide a posterior starts: narrow enough that a network trains as it would without a belief."""


def bayesianize(
    network: nn.Module,
    family: str = "factorized",
    *,
    start_sd: float = START_SD,
    point: Sequence[str] = (),
    frozen: Sequence[str] = (),
    local_reparameterization: bool = False,
    seed: int = 0,
) -> BayesianNetwork:
    """The network with a belief of this family about its weights; its means start at the network's own weights.

    ``point`` and ``frozen`` are patterns (``"*.bias"``, ``"layer1.*"``) of parameters that learn a single value, and of
    those that do not learn. The original is left untouched.

        >>> bayesian = bayesianize(nn.Linear(3, 2))
        >>> with bayesian.at_mean():
        ...     output = bayesian(torch.ones(1, 3))
    """
    check_positive("start_sd", start_sd)
    prior = first_belief(network, family, prior_sd=start_sd, point=point, frozen=frozen)
    generator = torch.Generator().manual_seed(seed)
    return starting_posterior(network, prior, start_sd, local_reparameterization, generator)


def first_belief(
    network: nn.Module,
    family: str = "factorized",
    *,
    prior_sd: float | str = 1.0,
    point: Sequence[str] = (),
    frozen: Sequence[str] = (),
    unknowns: Mapping[str, tuple[float, float]] | None = None,
) -> Belief:
    """What is believed before any data: every weight N(0, prior_sd²), weights of normalisation layers N(1, prior_sd²).

    ``prior_sd="fan_in"`` means 1/√(inputs of the layer). ``unknowns`` are the likelihood's own, each with mean and sd.
    """
    check_plain(network)
    parameters = dict(learnable(network))  # first, since it refuses parameters without a shape
    widths = prior_widths(network, prior_sd)
    centres = {name: site.neutral for name, site in sites(network).items()}
    means = {name: torch.full_like(value, centres[name]) for name, value in parameters.items()}
    sds = {name: torch.full_like(value, widths[name]) for name, value in parameters.items()}
    return gaussian_belief(network, family, means, sds, point=point, frozen=frozen, unknowns=unknowns)


def gaussian_belief(
    network: nn.Module,
    family: str,
    means: Mapping[str, Tensor],
    sds: Mapping[str, Tensor],
    *,
    point: Sequence[str] = (),
    frozen: Sequence[str] = (),
    unknowns: Mapping[str, tuple[float, float]] | None = None,
) -> Belief:
    """A first belief from a mean and a standard deviation of every weight; points and frozen ones keep their values."""
    parameters = dict(learnable(network))
    if not parameters:
        raise NetworkError(
            f"{type(network).__name__} has no floating parameters: there is nothing to have a belief about"
        )
    if any((name + ".").startswith(LIKELIHOOD) for name, _ in network.named_children()):
        raise NetworkError("a part of the network is called 'likelihood', a name kept for the noise: rename it")
    means, sds = _with_known_rows(network, means, sds)
    held = matching(parameters, frozen, "frozen") | {n for n, p in parameters.items() if not p.requires_grad}
    points = matching(parameters, point, "point") | held | {n for n, p in parameters.items() if p.is_complex()}
    roles: dict[str, Role] = {name: site.role for name, site in sites(network).items()}
    generator = torch.Generator().manual_seed(0)  # first priors draw nothing that a result depends on
    weights: dict[str, Family] = {}
    for name, value in parameters.items():
        kind = Point if name in points else family_for(family, roles[name])
        weights[name] = Point(value.detach()) if kind is Point else kind.first_prior(means[name], sds[name], generator)
    like = next(iter(parameters.values())).real
    for name, (mean, sd) in (unknowns or {}).items():
        kind = Point if family == "point" else Factorized
        value, width = (torch.tensor(number, dtype=like.dtype, device=like.device) for number in (mean, sd))
        weights[LIKELIHOOD + name] = kind.first_prior(value, width, generator)
    return Belief(weights, frozenset(held), dict(network.named_buffers()), {})


def _with_known_rows(
    network: nn.Module, means: Mapping[str, Tensor], sds: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The same, but sure of the rows that stand for padding: the network never learns them, so nothing else would."""
    known = {id(m.weight): m.padding_idx for m in network.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    means, sds = dict(means), dict(sds)
    for name, value in network.named_parameters():
        row = known.get(id(value))
        if row is not None and name in means:
            means[name], sds[name] = means[name].clone(), sds[name].clone()
            means[name][row], sds[name][row] = value.detach()[row], KNOWN_SD
    return means, sds


def starting_posterior(
    network: nn.Module,
    prior: Belief,
    start_sd: float,
    local_reparameterization: bool,
    generator: torch.Generator,
) -> BayesianNetwork:
    """A fresh start in the prior's families: means at the network's own weights, never wider than the prior."""
    check_fits(network, prior)
    network = copy_network(network)
    if prior.num_parts:  # what was counted stays counted, however the weights start
        take_buffers(network, prior)
    parameters = dict(learnable(network))
    families: dict[str, Family] = {}
    with torch.no_grad():
        for name, family in prior.weights.items():
            mean = parameters.get(name, family.location)
            sd = family.sd().clamp(max=start_sd)
            families[name] = type(family).from_gaussian(mean, sd, generator)
            families[name].requires_grad_(True)
    return BayesianNetwork(
        network,
        families,
        held=prior.held,
        local_reparameterization=local_reparameterization,
        generator=generator,
    )


def prior_widths(network: nn.Module, prior_sd: float | str) -> dict[str, float]:
    """The standard deviation of each parameter's first prior."""
    if isinstance(prior_sd, str):
        if prior_sd != "fan_in":
            raise SettingError(f"prior_sd={prior_sd!r}: expected a number above 0, or 'fan_in' for 1/sqrt(inputs)")
        return {name: 1 / math.sqrt(site.fan_in or 1) for name, site in sites(network).items()}
    check_positive("prior_sd", prior_sd)
    return dict.fromkeys(sites(network), float(prior_sd))


def check_positive(setting: str, value: float) -> None:
    """Raise a SettingError unless the value is a positive, finite number."""
    if not 0 < value < math.inf:
        raise SettingError(f"{setting}={value}: expected a finite number above 0")


def matching(names: Mapping[str, object], patterns: Sequence[str], setting: str) -> set[str]:
    """The names that some pattern matches; a pattern that matches none is a mistake."""
    if isinstance(patterns, str):
        raise SettingError(f"{setting}={patterns!r}: expected a sequence of patterns, such as ({patterns!r},)")
    found: set[str] = set()
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise SettingError(
                f"{setting}: {pattern!r} matches no parameter; there are {', '.join(list(names)[:8])}, ..."
            )
        found.update(matched)
    return found
