"""What this room's tests share: images so small and experiments so short that all of the real path can be run."""

from pathlib import Path
from typing import Any

import numpy as np

from postprior.data.datasets import ImageData
from postprior.learning.settings import Settings
from postprior.paper import records
from postprior.paper.experiment import Experiment
from postprior.paper.records import PartScore, Result


def images(num_train: int = 80, num_test: int = 40, channels: int = 1) -> ImageData:
    """Ten classes, each with a pattern of its own under the noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 200, (10, 8, 8, channels))

    def draw(num: int) -> tuple[np.ndarray, np.ndarray]:
        labels = (np.arange(num) % 10).astype(np.uint8)
        return (patterns[labels] + rng.integers(0, 56, (num, 8, 8, channels))).astype(np.uint8), labels

    return ImageData("tiny", 10, *draw(num_train), *draw(num_test))


def experiment(approach: str = "ffg", family: str = "factorized", num_parts: int = 2, **fields: Any) -> Experiment:
    settings = Settings(steps=fields.pop("steps", 3), batch_size=16, score_samples=0, holdout=fields.pop("holdout", 0))
    fields = {"dataset": "mnist", "method": "bayes" if family != "point" else "finetune", "variant": "quick"} | fields
    return Experiment(
        name=f"{fields['dataset']}-{approach}-t{num_parts}-{fields['variant']}",
        approach=approach,
        network="SmallConvNet",
        family=family,
        num_parts=num_parts,
        settings=settings,
        **{"samples_by_part": 2, "samples_at_end": 3, **fields},
    )


def pretrained(approach: str, family: str, pretraining: str, **fields: Any) -> Experiment:
    before = Settings(steps=4, batch_size=16, score_samples=0)
    fields = {"dataset": "cifar5+5", "pretraining": pretraining, "pretraining_settings": before, **fields}
    return experiment(approach, family, **fields)


def write_result(folder: Path, of: Experiment, seed: int, accuracy: float, nll: float = 0.5) -> Result:
    """A result that no run gave: after each part accuracy and NLL are those at the end, less and more by the hundredth
    for each part that was still to come."""
    ahead = [of.num_parts - 1 - part for part in range(of.num_parts)]
    scores = tuple(PartScore(accuracy - 0.01 * left, nll + 0.01 * left, 0.02, 2) for left in ahead)
    result = Result(of, seed, scores, PartScore(accuracy, nll, 0.02, 3), None, 60.0, "cpu, test", "abc", {})
    records.write(folder, result)
    return result
