"""How cost grows: with the number of parts, of weights, of weight samples. One thread, process time, peak memory.

    .venv/bin/python benchmarks/scaling.py [--out results/scaling-cpu.json]

Every line is measured in a process of its own, so that its memory is its own. Parts share a constant total of examples.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import about, peak_bytes, say
from torch import Tensor, nn

import postprior

TOTAL_EXAMPLES = 8_000
FEATURES = 16
PARTS = (1, 10, 100, 1_000)
WEIGHTS = (10**4, 10**5, 10**6, 10**7, 10**8)
SAMPLES = (1, 10, 100, 1_000)


def mlp(hidden: int) -> nn.Module:
    """Two hidden layers."""
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 4)]
    return nn.Sequential(*layers)


def examples(size: int) -> tuple[Tensor, Tensor]:
    """Clusters of four classes."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(4, (size,), generator=g)
    return torch.randn(size, FEATURES, generator=g) + y.unsqueeze(1), y


def parts(count: int) -> dict[str, Any]:
    """The same examples in this many parts, one after another."""
    learner = postprior.Learner(mlp(64), epochs=2, batch_size=8, temperature=0.1, score_samples=1)
    x, y = examples(TOTAL_EXAMPLES)
    before, each = peak_bytes(), list[float]()
    for part in zip(x.chunk(count), y.chunk(count), strict=True):
        began = time.process_time()
        learner.absorb(part)
        each.append(time.process_time() - began)
    share = max(1, count // 20)
    ends = statistics.median(each[1 : 1 + share] or each), statistics.median(each[-share:])
    found = {"seconds": sum(each), "peak_bytes": peak_bytes() - before, "steps": learner.belief.num_examples // 8 * 2}
    return {
        **found,
        "median_of_first_parts": ends[0],
        "median_of_last_parts": ends[1],
        "last_over_first": ends[1] / ends[0],
    }


def weights(count: int) -> dict[str, Any]:
    """Five steps on a network of about this many weights."""
    network = mlp(round(math.sqrt(count)))
    number = sum(parameter.numel() for parameter in network.parameters())
    before = peak_bytes()
    learner = postprior.Learner(network, steps=1, batch_size=32, score_samples=0, prior_sd=0.1)
    x, y = examples(32)
    learner.absorb((x, y))
    one = _seconds(lambda: learner.absorb((x, y), steps=1))
    six = _seconds(lambda: learner.absorb((x, y), steps=6))
    return {
        "weights": number,
        "seconds_a_step": (six - one) / 5,
        "nanoseconds_a_weight_and_step": (six - one) / 5 / number * 1e9,
        "seconds_to_absorb_one_step": one,
        "peak_bytes": peak_bytes() - before,
        "peak_bytes_a_weight": (peak_bytes() - before) / number,
    }


def samples(count: int) -> dict[str, Any]:
    """A prediction for a thousand rows with this many weight samples."""
    learner = postprior.Learner(mlp(64))
    x, _ = examples(1_000)
    learner.predict(x, num_samples=1)
    before = peak_bytes()
    seconds = statistics.median(_seconds(lambda: learner.predict(x, num_samples=count)) for _ in range(3))
    return {"seconds": seconds, "milliseconds_a_sample": seconds / count * 1e3, "peak_bytes": peak_bytes() - before}


TABLES: dict[str, tuple[Callable[[int], dict[str, Any]], tuple[int, ...]]] = {
    "parts": (parts, PARTS),
    "weights": (weights, WEIGHTS),
    "samples": (samples, SAMPLES),
}


def _seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    """Measure, print the tables, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--line", nargs=2, metavar=("TABLE", "NUMBER"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.line:
        print(json.dumps(TABLES[chosen.line[0]][0](int(chosen.line[1]))))
        return
    tables: dict[str, dict[str, Any]] = {}
    for table, (_, numbers) in TABLES.items():
        tables[table] = {}
        for number in numbers:
            words = [sys.executable, __file__, "--line", table, str(number)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            found = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr.strip()[-300:]}
            tables[table][str(number)] = found
            cells = (f"{key} {value:.4g}" if isinstance(value, float | int) else value for key, value in found.items())
            say(f"{table:<8} {number:>11,}  " + "; ".join(cells))
    if chosen.out:
        kept = {**about([]), "threads": 1, "clock": "process time"}
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps({**kept, "tables": tables}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
