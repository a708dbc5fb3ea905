"""Where a run begins: the network, and the first belief about it, with or without pretraining.

Convolutions carry over from the first five classes, dense layers start anew (the paper's appendix, "Incremental
Learning with Pretraining").
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from postprior.batch import Part
from postprior.data.parts import as_part
from postprior.learning.absorb import absorb
from postprior.learning.likelihoods import Categorical
from postprior.learning.pretrained import laplace_belief, pretrained_belief, search_prior_sd, start_anew
from postprior.learning.training import Progress
from postprior.maths import seeds
from postprior.networks.belief import Belief
from postprior.networks.convert import first_belief
from postprior.paper.experiment import NETWORKS, Experiment
from postprior.paper.tasks import Images, Task

CARRY = ("features.*",)
"""The convolutions, in every network of the zoo."""

Phase = Callable[[int], Callable[[Progress], None]]
"""Given the steps that a phase takes, returns what the phase tells its progress."""


@dataclass(frozen=True)
class Beginning:
    """A network and what is believed about it before the first part."""

    network: nn.Module
    belief: Belief
    sd: float | None = None
    """The width that the grid search chose."""


def begin(experiment: Experiment, task: Task, seed: int, device: torch.device | str, phase: Phase) -> Beginning:
    """The network of this seed, which is the same for all families and methods, and the first belief."""
    with seeds.quarantined(torch.device("cpu"), seed, "network"):
        make = NETWORKS[experiment.network]
        network = make(in_channels=task.num_channels, num_classes=task.num_classes).to(device)
    if task.before is None:
        return Beginning(network, first_belief(network, experiment.family, prior_sd=experiment.prior_sd))
    old = part_of(task.before)
    trained = _pretrained(network, old, experiment, seed, phase)
    fresh = start_anew(trained, CARRY, seed=seed)
    options: dict[str, Any] = {"family": experiment.family, "carry": CARRY, "prior_sd": experiment.prior_sd}
    if experiment.pretraining == "finetune":
        return Beginning(fresh, first_belief(fresh, "point"))
    if experiment.pretraining == "laplace":
        # The curvature is that of the old task, so it is taken with the old dense layers.
        precision = _prior_precision(experiment)
        temperature = experiment.settings.temperature
        belief = laplace_belief(
            trained, old, Categorical(), prior_precision=precision, temperature=temperature, seed=seed, **options
        )
        return Beginning(fresh, belief)
    # Only the first part is there when the width has to be chosen.
    grid, settings = experiment.pretraining_sds, experiment.settings
    tell = phase(len(grid) * (settings.steps or 0))
    first = part_of(task.parts[0])
    found = search_prior_sd(
        fresh, first, Categorical(), sds=grid, settings=settings, seed=seed, progress=tell, **options
    )
    return Beginning(fresh, pretrained_belief(fresh, sd=found.sd, **options), found.sd)


def part_of(images: Images) -> Part:
    """The images as a part to learn from."""
    return as_part((images.pixels, images.labels))


def at_mean(network: nn.Module, belief: Belief) -> nn.Module:
    """A copy of a network without buffers that has the belief's mean weights."""
    network, means = copy.deepcopy(network), belief.mean()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(means[name])
    return network


def _pretrained(network: nn.Module, old: Part, experiment: Experiment, seed: int, phase: Phase) -> nn.Module:
    """Trained on the first five classes in the conventional way."""
    settings = experiment.pretraining_settings
    assert settings is not None
    belief, _ = absorb(
        network,
        prior=first_belief(network, "point"),
        part=old,
        likelihood=Categorical(),
        settings=settings,
        seed=seeds.number(seed, "pretraining"),
        progress=phase(settings.steps or 0),
    )
    return at_mean(network, belief)


def _prior_precision(experiment: Experiment) -> float:
    assert not isinstance(experiment.prior_sd, str), "Laplace's widths need a prior of one width"
    return experiment.prior_sd**-2
