"""What it costs to learn one part in several processes: seconds and bytes a step, memory a process, files.

    .venv/bin/python benchmarks/ranks.py [--out results/ranks-cpu.json]

Every case is as many processes, started as torchrun would; all of them share this machine's cores and its memory.
"""

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from timing import about, peak_bytes, say
from torch import nn

import postprior
from postprior import Checkpointing, Settings, distributed
from postprior.data.parts import as_part
from postprior.errors import StoppedError
from postprior.learning.training import Progress
from postprior.store.manifest import to_plain

FEATURES, CLASSES = 1000, 10
STEPS, BATCH = 12, 64

BYTES_A_WEIGHT = {
    "the user's network": 4,
    "prior: mean, log sd": 8,
    "posterior: mean, log sd": 8,
    "prior as the KL uses it": 8,
    "slopes of mean and log sd": 8,
    "weights drawn, and their shifts": 8,
    "slopes of the weights drawn": 4,
    "Adam: two moments each": 16,
}
"""Factorised Gaussians in float32, one weight sample a step; activations and the libraries come on top."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--weights", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if "POSTPRIOR_CASE" in os.environ:
        be_one(round(asked.weights[0]))
        return
    cases: list[dict[str, Any]] = []
    for weights in asked.weights:
        for processes in asked.processes:
            cases.append(case(processes, weights))
            say(json.dumps(cases[-1]))
    found = {
        **about("python benchmarks/ranks.py " + " ".join(sys.argv[1:]), ["safetensors"]),
        "what": f"one hidden layer, {FEATURES} inputs, {BATCH} examples a step over all processes, {STEPS} steps",
        "bytes_a_weight_computed": {**BYTES_A_WEIGHT, "together": sum(BYTES_A_WEIGHT.values())},
        "cases": cases,
    }
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


def case(processes: int, weights: float) -> dict[str, Any]:
    """Measured by all processes at once; the slowest counts, and the one with the most memory."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    command = [sys.executable, __file__, "--weights", str(weights)]
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    started = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **together, "RANK": str(rank), "POSTPRIOR_CASE": "1", "OMP_NUM_THREADS": "1"},
        )
        for rank in range(processes)
    ]
    each = [json.loads(process.communicate()[0]) for process in started]
    return {
        "processes": processes,
        "weights": each[0]["weights"],
        "seconds_a_step": max(one["step"] for one in each),
        "of_these_averaging": max(one["averaging"] for one in each),
        "bytes_sent_a_step_computed": round(2 * 8 * each[0]["weights"] * (processes - 1) / processes),
        "memory_bytes_a_weight": max(one["memory"] for one in each) / each[0]["weights"],
        "belief_bytes": each[0]["belief_bytes"],
        "checkpoint_bytes": each[0]["checkpoint_bytes"],
    }


def be_one(weights: int) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    with distributed.joined(timeout=300):
        # What the first use of everything takes is not counted.
        learn(1000)
        before = peak_bytes()
        found = learn(weights)
        found["memory"] = found["most"] - before
        vectors = [torch.zeros(found["weights"]) for _ in range(2)]
        seconds: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            distributed.average(vectors)
            seconds.append(time.perf_counter() - began)
        found["averaging"] = statistics.median(seconds)
    print(json.dumps(found))


def learn(weights: int) -> dict[str, Any]:
    """A part of so many steps."""
    torch.manual_seed(0)
    hidden = max(1, round(weights / (FEATURES + CLASSES + 1)))
    network = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
    prior = postprior.first_belief(network, "factorized", prior_sd=1.0)
    part = as_part((torch.randn(BATCH * STEPS, FEATURES), torch.randint(CLASSES, (BATCH * STEPS,))))
    times: list[float] = []

    def tell(_: Progress) -> None:
        times.append(time.perf_counter())

    sizes: list[int] = []

    def keep(tensors: Any, _: Any) -> None:
        sizes.append(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))

    settings = Settings(epochs=1, batch_size=BATCH, score_samples=0)
    given: dict[str, Any] = {"prior": prior, "part": part, "likelihood": postprior.Categorical(), "settings": settings}
    belief, _ = postprior.absorb(network, progress=tell, **given)
    most = peak_bytes()
    gaps = [after - before for before, after in pairwise(times)]
    # Afterwards, since the copies in a checkpoint take memory of their own.
    with suppress(StoppedError):
        postprior.absorb(network, checkpointing=Checkpointing(keep, math.inf, None, lambda: True), **given)
    return {
        "weights": sum(parameter.numel() for parameter in network.parameters()),
        "step": statistics.median(gaps),
        "most": most,
        "belief_bytes": sum(tensor.numel() * tensor.element_size() for tensor in to_plain(belief)[0].values()),
        "checkpoint_bytes": sum(sizes),
    }


if __name__ == "__main__":
    main()
