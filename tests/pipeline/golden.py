"""Made the golden stores of format 1 in ``golden/``, once: they stay as they are, and must open for ever.

python tests/pipeline/golden.py FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from postprior import Store

FAMILIES = ("point", "factorized", "channelwise", "multiplicative")
NETWORK = "golden:network"
CLASSES = ["circle", "square", "star"]


def network() -> torch.nn.Module:
    """A convolution, normalisation with running statistics, a dense layer."""
    layers = (torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(), torch.nn.Flatten())
    return torch.nn.Sequential(*layers, torch.nn.Linear(18, 3))


def pictures(seed: int, count: int = 12) -> tuple[Tensor, Any]:
    """Raw pixels, and labels by name."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 1, 5, 5), np.uint8)
    return torch.from_numpy(images), np.array(CLASSES)[images[:, 0, 2, 2] % 3]


def make(folder: Path, family: str) -> None:
    """A store with every event there is, and what it answered."""
    plan: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 6,
        "classes": CLASSES,
        "like": (pictures(9)[0].numpy(), pictures(9)[1]),
    }
    store = Store.create(folder / family, NETWORK, family=family, seed=1, **plan)

    def absorb(seed: int, **options: Any) -> str:
        images, names = pictures(seed)
        held_out, held_names = pictures(8)
        return store.absorb(
            (images.numpy(), names), part=f"part {seed}", evaluate=(held_out.numpy(), held_names), **options
        ).belief

    base = absorb(0, gate="nll<=champion+100")
    absorb(1, gate="nll<=0")  # kept, and not promoted
    absorb(2)
    store.rollback()
    store.alias("release", "champion")
    absorb(3, branch="apart", onto=base)
    absorb(4)
    if family in ("factorized", "channelwise"):
        store.merge(["head", "apart"], base=base)
        store.forget("part 4")
    store.promote("head")
    images = pictures(7)[0].numpy()
    answers = {
        "beliefs": {id: store.predict(images, at=id, at_mean=True).mean.tolist() for id in known(store)},
        "sampled": store.predict(images, at="head", num_samples=3).mean.tolist(),
        "aliases": store.aliases,
        "parts": [record["id"] for record in store.parts()],
        "events": [entry.event for entry in store.log()],
    }
    (folder / f"{family}.json").write_text(json.dumps(answers, indent=1) + "\n")


def known(store: Store) -> list[str]:
    """Every belief that was acknowledged."""
    return [entry.belief for entry in store.log() if entry.belief]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in FAMILIES:
        make(Path(sys.argv[1]), each)
