"""A store's part learned in shares of its belief."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from postprior import distributed
from postprior.batch import Part
from postprior.errors import SettingError
from postprior.learning.absorb import Update
from postprior.learning.sharded import absorb_sharded
from postprior.learning.training import Progress
from postprior.networks.sharded import ShardedBelief
from postprior.pipeline.measures import BEFORE_SAMPLES
from postprior.pipeline.recipe import Recipe


def learned_share(
    read: Callable[[], ShardedBelief],
    make: Callable[[], nn.Module],
    part: Part,
    recipe: Recipe,
    settings: Mapping[str, Any],
    *,
    device: str,
    progress: Callable[[Progress], None] | None,
    stop: Callable[[], bool] | None,
) -> tuple[ShardedBelief, Update]:
    """Learn the part in the share that is read, together with the other processes."""
    with distributed.agreed():
        prior = read().to(device)
        if recipe.carry and not prior.num_parts:
            raise SettingError("pretrained weights start from a whole belief: absorb the first part without --shard")
        chosen = replace(recipe.settings_with(settings), score_samples=BEFORE_SAMPLES)
    return absorb_sharded(
        make,
        prior=prior,
        part=part,
        likelihood=recipe.make_likelihood(),
        settings=chosen,
        seed=recipe.seed,
        progress=progress,
        stop=stop,
    )


def measures_of(update: Update) -> dict[str, float]:
    """What an absorption itself measured of the new part under the old belief."""
    assert update.before is not None, "it was asked to"
    found: dict[str, float | None] = {**asdict(update.before)}
    return {name: float(value) for name, value in found.items() if value is not None}
