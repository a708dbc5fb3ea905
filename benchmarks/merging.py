"""MNIST in ten parts: absorbed one after another, or apart and merged, or all at once; what merging costs.

    postprior data fetch mnist
    python benchmarks/merging.py --seeds 5 --out results/merging.json
    python benchmarks/merging.py --seeds 5 --device cuda --out results/merging-gpu.json

LeNet5, factorised Gaussians. "Apart" means that every part is absorbed from one base, and the beliefs are multiplied:
product over base^(K - 1), looked at after some rounds of refinement. The base is either the first belief, or the belief
after part 1. On the CPU the parts are shared out over as many workers as there are cores; a GPU takes them in turn,
each with its step recorded. Every seed is kept as soon as it is done; what is in the file already is not run again.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from timing import about, say
from torch import Tensor, nn

from postprior import Belief, Categorical, Settings, absorb, as_part, first_belief
from postprior.data import datasets
from postprior.learning.apart import Together, absorb_apart
from postprior.maths import seeds
from postprior.networks.zoo import LeNet5
from postprior.parallel import LOCAL, workers
from postprior.pipeline.measures import measure

PARTS = 10
PRIOR_SD = 0.1
PLAN: dict[str, Any] = {"temperature": 0.2, "schedule": "linear", "spread_rate": 5.0, "batch_size": 128}
SHOWN = ("accuracy", "nll", "ece")


@dataclass(frozen=True)
class Task:
    """A part to be learned from a prior."""

    network: nn.Module
    prior: Belief
    part: tuple[Tensor, Tensor]
    settings: Settings
    seed: int


Learn = Callable[[Sequence[Task]], Sequence[Belief]]


def learned(task: Task) -> Belief:
    """The belief after it."""
    known: dict[str, Any] = {"part": as_part(task.part), "likelihood": Categorical(), "settings": task.settings}
    return absorb(task.network, prior=task.prior, seed=task.seed, **known)[0]


@contextmanager
def crowd(device: str) -> Generator[Learn]:
    """Whatever learns several parts."""
    if device == "cpu":
        with workers(LOCAL, learned) as pool:
            yield pool.map
    else:
        yield lambda tasks: [learned(task) for task in tasks]


@dataclass(frozen=True)
class Trial:
    """All ways of learning the same parts, measured on the test images."""

    seed: int
    steps: int
    device: str
    learn: Learn

    def results(self, asked_rounds: Sequence[int]) -> dict[str, Any]:
        """Measures of each way, and the seconds it took."""
        torch.manual_seed(self.seed)
        network = LeNet5().to(self.device)
        parts, test = self._data()
        first, found = first_belief(network, "factorized", prior_sd=PRIOR_SD), dict[str, Any]()

        def task(prior: Belief, part: tuple[Tensor, Tensor], own: int, steps: int = self.steps) -> Task:
            recorded = self.device != "cpu"
            settings = Settings(**PLAN, steps=steps, score_samples=0, cuda_graph=recorded)
            return Task(network, prior, part, settings, own)

        def measured(belief: Belief, seconds: float, **more: Any) -> dict[str, Any]:
            measures = measure(network, belief, as_part(test), Categorical(), num_samples=10, seed=self.seed)
            return {**{name: measures[name] for name in SHOWN}, "seconds": seconds, **more}

        after, seconds = [first], [0.0]
        for number, part in enumerate(parts):
            began = time.perf_counter()
            after.append(learned(task(after[-1], part, self.seed)))
            seconds.append(time.perf_counter() - began)
            self._say(f"part {number}", seconds[-1])
        found["sequence"] = measured(after[-1], sum(seconds))
        for name, done in (("apart from the first belief", 0), ("apart after part 1", 1)):
            found[f"one part alone, {name}"] = measured(after[done + 1], seconds[done + 1])

            def tasks(jobs: Sequence[tuple[int, Belief]], own: Sequence[Any] = parts[done:]) -> list[Task]:
                # Noise of its own, or what chance does to one worker it would do to all.
                return [task(prior, own[n], seeds.number(self.seed, "worker", n)) for n, prior in jobs]

            for rounds, together, took in self._apart(network, after[done], PARTS - done, tasks, asked_rounds):
                count = sum(value.numel() for value in together.belief.mean().values())
                more = {"set_back": together.set_back, "weights": count}
                found[f"{name}, {rounds} rounds"] = measured(together.belief, took, **more)
        whole = (torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
        began = time.perf_counter()
        joint = learned(task(first, whole, self.seed, PARTS * self.steps))
        found["joint"] = measured(joint, time.perf_counter() - began)
        self._say("all at once", found["joint"]["seconds"])
        return found

    def _data(self) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
        """Parts at random, and the test images; normalised by the first part."""
        data = datasets.load("mnist")
        order = np.random.default_rng(self.seed).permutation(len(data.train_images))
        rows = [torch.from_numpy(some) for some in np.array_split(order, PARTS)]
        train, test = (
            (torch.from_numpy(images).permute(0, 3, 1, 2).float(), torch.from_numpy(labels).long())
            for images, labels in ((data.train_images, data.train_labels), (data.test_images, data.test_labels))
        )
        centre, width = train[0][rows[0]].mean(), train[0][rows[0]].std()

        def placed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return ((x - centre) / width).to(self.device), y.to(self.device)

        return [placed(train[0][some], train[1][some]) for some in rows], placed(*test)

    def _apart(
        self,
        network: nn.Module,
        base: Belief,
        num_parts: int,
        tasks: Callable[[Sequence[tuple[int, Belief]]], list[Task]],
        asked_rounds: Sequence[int],
    ) -> Iterator[tuple[int, Together, float]]:
        """After so many rounds, and so many seconds; a round that is part of several answers is learned once."""
        known: list[Sequence[Belief]] = []
        seconds: list[float] = []
        for rounds in sorted(asked_rounds):
            asked = 0

            def learn(jobs: Sequence[tuple[int, Belief]]) -> Sequence[Belief]:
                nonlocal asked
                if asked == len(known):
                    began = time.perf_counter()
                    known.append(self.learn(tasks(jobs)))
                    seconds.append(time.perf_counter() - began)
                    self._say(f"{num_parts} parts apart, round {asked}", seconds[-1])
                asked += 1
                return known[asked - 1]

            yield rounds, absorb_apart(network, base, num_parts, learn, rounds=rounds), sum(seconds)

    def _say(self, what: str, seconds: float) -> None:
        say(f"seed {self.seed}: {what}, {seconds:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="a part; the joint run takes ten times as many")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results/merging.json"))
    parser.add_argument("--rounds", type=int, nargs="+", default=[0, 1, 5], help="of refinement")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    alone = asked.device != "cpu"
    plan = {**PLAN, "prior_sd": PRIOR_SD, "family": "factorized", "network": "lenet5", "parts": PARTS}
    plan |= {"steps": asked.steps, "rounds": sorted(asked.rounds)}
    cores = f"{os.cpu_count()} cores of {platform.machine()}, 1 thread a worker"
    fixed = {"plan": plan, "device": torch.cuda.get_device_name() if alone else cores}
    kept: dict[str, Any] = {}
    if asked.out.exists():
        before = json.loads(asked.out.read_text())
        if odd := [name for name, value in fixed.items() if before.get(name) != value]:
            parser.error(f"{asked.out} was measured with another {odd[0]}: give --out another file")
        kept = before["seeds"]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with crowd(asked.device) as learn:
        for seed in range(asked.seeds):
            if str(seed) not in kept:
                kept[str(seed)] = Trial(seed, asked.steps, asked.device, learn).results(asked.rounds)
                written = {**about(["ray"]), **fixed, "seeds": kept}
                asked.out.write_text(json.dumps(written, indent=2) + "\n")
    for way in next(iter(kept.values())):
        shown = [f"{name} {mean(found[way][name] for found in kept.values()):.4f}" for name in SHOWN]
        say(f"{way:<45}{'  '.join(shown)}")


if __name__ == "__main__":
    main()
