"""MNIST in ten parts: absorbed one after another, or apart and merged, or all at once; what merging costs.

    postprior data fetch mnist
    python benchmarks/merging.py --seeds 3 --out results/merging.json

LeNet5, factorised Gaussians. "Apart" means that every part is absorbed by a worker of its own from one base, and the
beliefs are multiplied: product over base^(K - 1), with 0, 1 and 5 rounds of refinement, by as many workers as there
are cores. The base is either the first belief, or the belief after part 1.
Every run is kept as soon as it is done; what is in the file already is not run again.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from postprior import Store
from postprior.data import datasets

PARTS = 10
PLAN: dict[str, Any] = {
    "family": "factorized",
    "prior_sd": 0.1,
    "temperature": 0.2,
    "schedule": "linear",
    "spread_rate": 5.0,
    "batch_size": 128,
}


def run(seed: int, folder: Path, steps: int, asked_rounds: list[int], say: Any) -> dict[str, Any]:
    """All ways of learning the same parts, measured on the test images."""
    data = datasets.load("mnist")
    order = np.random.default_rng(seed).permutation(len(data.train_images))
    train, tested = (images.transpose(0, 3, 1, 2) for images in (data.train_images, data.test_images))
    parts = [(train[rows], data.train_labels[rows]) for rows in np.array_split(order, PARTS)]
    test = (tested, data.test_labels)
    store = Store.create(folder / "store", "lenet5", like=parts[0], seed=seed, steps=steps, **PLAN)
    first, found = store.aliases["head"], dict[str, Any]()

    def absorb(number: int, branch: str, onto: str | None = None, **changes: Any) -> float:
        began = time.perf_counter()
        store.absorb(parts[number], part=f"part {number}", branch=branch, onto=onto, **changes)
        say(f"seed {seed}: part {number} on {branch}, {time.perf_counter() - began:.0f} s")
        return time.perf_counter() - began

    def measured(at: str, seconds: list[float], **about: Any) -> dict[str, Any]:
        measures = store.evaluate(test, at=at, num_samples=10)
        shown = {name: measures[name] for name in ("accuracy", "nll", "ece")}
        return {**shown, "seconds": sum(seconds), **about}

    sequence = [absorb(number, "sequence", first if number == 0 else None) for number in range(PARTS)]
    found["sequence"] = measured("sequence", sequence)
    after_one = store.archive.resolve(f"sequence~{PARTS - 1}")
    for name, base, numbers in (
        ("apart from the first belief", first, range(PARTS)),
        ("apart after part 1", after_one, range(1, PARTS)),
    ):
        alone = absorb(numbers[0], f"alone-{numbers[0]}", base)
        found[f"one part alone, {name}"] = measured(f"alone-{numbers[0]}", [alone])
        for rounds in asked_rounds:
            branch = f"{name.replace(' ', '-')}-{rounds}"
            said = store.absorb_together([parts[n] for n in numbers], rounds=rounds, branch=branch, onto=base)
            say(f"seed {seed}: {name}, {rounds} rounds, {said.seconds:.0f} s")
            about = {"set_back": said.set_back, "weights": sum(w.numel() for w in store.belief(branch).mean().values())}
            found[f"{name}, {rounds} rounds"] = measured(branch, [said.seconds], **about)
    everything = (train, data.train_labels)
    began = time.perf_counter()
    store.absorb(everything, part="all", branch="joint", onto=first, steps=PARTS * steps)
    found["joint"] = measured("joint", [time.perf_counter() - began])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="a part; the joint run takes ten times as many")
    parser.add_argument("--out", type=Path, default=Path("results/merging.json"))
    parser.add_argument("--rounds", type=int, nargs="+", default=[0, 1, 5], help="of refinement")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    about = {
        "command": f"python benchmarks/merging.py --seeds {asked.seeds} --steps {asked.steps}",
        "plan": {**PLAN, "network": "lenet5", "steps": asked.steps, "parts": PARTS},
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip() or None,
        "device": f"{os.cpu_count()} cores of {platform.machine()}, 1 thread a worker",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    kept: dict[str, Any] = json.loads(asked.out.read_text())["seeds"] if asked.out.exists() else {}
    for seed in range(asked.seeds):
        if str(seed) not in kept:
            with tempfile.TemporaryDirectory() as folder:
                kept[str(seed)] = run(
                    seed, Path(folder), asked.steps, asked.rounds, lambda line: print(line, flush=True)
                )
            asked.out.write_text(json.dumps({**about, "seeds": kept}, indent=2) + "\n")
    for way in next(iter(kept.values())):
        runs = [found[way] for found in kept.values() if "accuracy" in found[way]]
        shown = [f"{name} {mean(each[name] for each in runs):.4f}" for name in ("accuracy", "nll", "ece") if runs]
        print(f"{way:<45}{'  '.join(shown) or 'refused'}")


if __name__ == "__main__":
    main()
