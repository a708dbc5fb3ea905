"""What it costs to learn one part in several processes: seconds and bytes a step, memory a process, files.

    .venv/bin/python benchmarks/ranks.py [--out results/ranks-cpu.json]
    .venv/bin/python benchmarks/ranks.py --sharded --weights 1e8 [--out results/sharded-cpu.json]

With --sharded the belief is cut among the processes, written as a belief of a store, and opened by fewer of them.
Every case is as many processes, started as torchrun would; all of them share this machine's cores and its memory.
"""

import argparse
import hashlib
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
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
from postprior.learning.sharded import absorb_sharded
from postprior.learning.training import Progress
from postprior.networks.sharded import ShardedBelief, first_share
from postprior.store import Archive
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

LAYERS = 4
"""Square matrices of a sharded case, so that the largest tensor is a fourth of all weights."""

SHARDED_BYTES_A_WEIGHT = {
    "prior: mean, log sd": 8,
    "posterior: mean, log sd": 8,
    "slopes of mean and log sd": 8,
    "Adam: two moments each": 16,
}
"""A process has 1/N of this."""

BYTES_A_WEIGHT_OF_THE_LARGEST_TENSOR = {
    "weights drawn, and their shifts": 8,
    "slopes of the weights drawn": 4,
    "slope in mean or log sd, on its way": 4,
    "the message as gloo keeps it": 4,
}
"""A process has this as it is, for one tensor at a time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--weights", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--place", type=Path)
    parser.add_argument("--opening", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if "POSTPRIOR_CASE" in os.environ:
        if asked.place is None:
            be_one(round(asked.weights[0]))
        else:
            be_one_share(round(asked.weights[0]), asked.place, asked.opening)
        return
    if asked.sharded:
        sharded_cases(asked.weights, asked.processes, asked.out)
        return
    cases: list[dict[str, Any]] = []
    for weights in asked.weights:
        for processes in asked.processes:
            cases.append(case(processes, weights))
            say(json.dumps(cases[-1]))
    found = {
        **about(["safetensors"]),
        "what": f"one hidden layer, {FEATURES} inputs, {BATCH} examples a step over all processes, {STEPS} steps",
        "bytes_a_weight_computed": {**BYTES_A_WEIGHT, "together": sum(BYTES_A_WEIGHT.values())},
        "cases": cases,
    }
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


def case(processes: int, weights: float) -> dict[str, Any]:
    """Measured by all processes at once; the slowest counts, and the one with the most memory."""
    each = ran_together(processes, ["--weights", str(weights)])
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


def ran_together(processes: int, options: list[str]) -> list[Any]:
    """What each of so many processes of this file says."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    command = [sys.executable, __file__, *options]
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
    return [json.loads(process.communicate()[0]) for process in started]


def sharded_cases(sizes: list[float], counts: list[int], out: Path | None) -> None:
    """A belief cut among processes: learned, written, and opened by others."""
    cases: list[dict[str, Any]] = []
    for weights in sizes:
        for processes in counts:
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / "store"
                Archive.create(place, {})
                options = ["--weights", str(weights), "--place", str(place)]
                learned = ran_together(processes, options)
                opened = {
                    f"opened_by_{fewer}": figures(ran_together(fewer, [*options, "--opening"]), processes, fewer)
                    for fewer in (1, 2, 4)
                }
            cases.append({**figures(learned, processes, 0), **opened})
            say(json.dumps(cases[-1]))
    found = {
        **about(["safetensors"]),
        "what": f"{LAYERS} square matrices and their biases, 8 examples a step over all processes, 3 steps",
        "bytes_a_weight_computed": SHARDED_BYTES_A_WEIGHT,
        "bytes_a_weight_of_the_largest_tensor_computed": BYTES_A_WEIGHT_OF_THE_LARGEST_TENSOR,
        "cases": cases,
    }
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")


def figures(each: list[Any], processes: int, opening: int) -> dict[str, Any]:
    """Peak memory beside what was computed: of learning, or of opening a share."""
    weights, largest = each[0]["weights"], each[0]["largest"]
    learning = sum(SHARDED_BYTES_A_WEIGHT.values()) * weights / processes
    computed = 8 * weights / opening if opening else learning + transient() * largest
    measured = max(one["memory"] for one in each)
    found = {"memory_measured": measured, "memory_computed": round(computed), "ratio": measured / computed}
    if opening:
        assert len({one["digest"] for one in each}) == 1
        return {**found, "seconds": max(one["seconds"] for one in each), "digest": each[0]["digest"]}
    found = {"processes": processes, "weights": weights, **found}
    files = {"belief_files": each[0]["files"], "belief_bytes": each[0]["bytes"], "digest": each[0]["digest"]}
    return {**found, "seconds_a_step": max(one["step"] for one in each), **files}


def transient() -> int:
    """Bytes a weight of the largest tensor."""
    return sum(BYTES_A_WEIGHT_OF_THE_LARGEST_TENSOR.values())


def be_one_share(weights: int, place: Path, opening: bool) -> None:
    """One of the processes that learn, and write what they learned; or that open it."""
    torch.set_num_threads(1)
    archive = Archive.open(place)
    with distributed.joined(timeout=600):
        if not opening:
            shared(1000)
        before = peak_bytes()
        if opening:
            began = time.perf_counter()
            share = archive.share(archive.resolve("head"))
            found: dict[str, Any] = {"seconds": time.perf_counter() - began}
        else:
            share, step = shared(weights)
            found = {"step": step}
            id = archive.put(share, {}, "")
            if distributed.is_first():
                archive.append("absorb", belief=id, moves={"head": id})
            files = [*(place / "beliefs" / id).glob("belief-*")]
            found |= {"files": len(files), "bytes": sum(file.stat().st_size for file in files)}
        sizes = [shape.numel() for shape in share.cut.shapes.values()]
        found |= {"memory": peak_bytes() - before, "weights": sum(sizes), "largest": max(sizes)}
        found["digest"] = content(share)
    print(json.dumps(found))


def content(share: ShardedBelief) -> str:
    """A hash of the whole belief that does not depend on how it is cut: tensor after tensor, in the first process."""
    found = hashlib.sha256()
    for name in sorted(share.cut.shapes):
        for vector in (share.mu, share.log_sd):
            whole = distributed.all_pieces(vector[share.cut.places[name]])[: share.cut.shapes[name].numel()]
            found.update(whole.numpy().data)
    return found.hexdigest()


def shared(weights: int) -> tuple[ShardedBelief, float]:
    """A part learned in shares, and the seconds of a step."""
    width = max(1, round(math.sqrt(weights / LAYERS)))
    with torch.device("meta"):
        network = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    examples = torch.randn(24, width, generator=torch.Generator().manual_seed(0))
    times: list[float] = []
    belief, _ = absorb_sharded(
        network,
        prior=first_share(network),
        part=as_part((examples, examples)),
        likelihood=postprior.Gaussian(sd=1.0),
        settings=Settings(epochs=1, batch_size=8, score_samples=0),
        progress=lambda _: times.append(time.perf_counter()),
    )
    return belief, statistics.median(after - before for before, after in pairwise(times))


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
