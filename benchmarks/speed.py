"""Ours beside plain PyTorch and beside the peers, interleaved in one run: ratios of time, and memory.

    build/peers/bin/python benchmarks/speed.py [--rounds 15] [--threads 1] [--out results/speed-cpu.json]

``make bench`` makes the environment with the peers and runs this. With one thread the process's own time is measured,
which other processes on the machine do not add to (they do take cache and memory bandwidth); with more, wall time.
Every ratio is the median over rounds of a case over the plain case of the same round, with a 95% interval.

"plain" is what anyone writes: torch's default memory order, ReLU before pooling, ``torch.optim.Adam(parameters)``.
"alike" is the plain network treated as ours is: channels_last, pooling before ReLU (and bf16 where ours has it), with
torch's default Adam; "alike, fused Adam" has the optimizer's fused kernel too, which ours uses.
"""

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ours
import torch
from peers import LAPLACE, PEERS, laplace
from timing import Case, about, interleaved, peak_bytes, ratio, say

warnings.filterwarnings("ignore")
NUM_SAMPLES = 20
"""Weight samples of our timed prediction; what is done once for all of them weighs more here than in a hundred."""
NUM_FORWARDS = 2
"""Forward passes of every other case of that table, each of which costs the same."""
LAPLACE_IMAGES = 1280

Built = dict[str, Callable[[], Case]]


def training(name: str) -> Built:
    """Cases of a training step, the plain one first."""
    x, y = ours.data(name, ours.BATCH)
    made: Built = {
        "plain": lambda: ours.plain_step(ours.as_written(ours.NETWORKS[name][0]()), x, y),
        "alike": lambda: ours.plain_step(ours.NETWORKS[name][0](), x, y),
        "alike, fused Adam": lambda: ours.plain_step(ours.NETWORKS[name][0](), x, y, fused=True),
        "alike, bf16": lambda: ours.plain_step(ours.NETWORKS[name][0](), x, y, bf16=True),
        "factorized": lambda: ours.our_step(name, "factorized", x, y),
        "factorized, bf16": lambda: ours.our_step(name, "factorized", x, y, precision="bfloat16"),
        "factorized, local": lambda: ours.our_step(name, "factorized", x, y, local_reparameterization=True),
        "channelwise": lambda: ours.our_step(name, "channelwise", x, y),
        "multiplicative": lambda: ours.our_step(name, "multiplicative", x, y),
        "multiplicative, local": lambda: ours.our_step(name, "multiplicative", x, y, local_reparameterization=True),
    }
    return {**made, **{peer: lambda peer=peer: _peer(name, peer)[0] for peer in PEERS}}


def prediction(name: str) -> Built:
    """Cases of one weight sample's forward pass over a thousand images, the plain one first."""
    x, _ = ours.data(name, ours.MANY)

    def sampled(**options: Any) -> Callable[[], Case]:
        return lambda: ours.our_prediction(name, "factorized", x, NUM_SAMPLES, **options)

    def repeated(make: Callable[[], Case]) -> Callable[[], Case]:
        def built() -> Case:
            case = make()
            return lambda: [case() for _ in range(NUM_FORWARDS)]

        return built

    made: Built = {
        "plain": repeated(lambda: ours.plain_forward(ours.as_written(ours.NETWORKS[name][0]()), x)),
        "alike": repeated(lambda: ours.plain_forward(ours.NETWORKS[name][0](), x)),
        "factorized": sampled(),
        "factorized, compiled": sampled(compiled=True),
        "factorized, bf16": sampled(precision="bfloat16"),
        "factorized, compiled, bf16": sampled(compiled=True, precision="bfloat16"),
    }
    return {**made, **{peer: repeated(lambda peer=peer: _peer(name, peer)[1]) for peer in PEERS}}


def laplace_fits(name: str) -> Built:
    """Cases of a diagonal Laplace fit; the first is one training epoch over the same images."""
    x, y = ours.data(name, LAPLACE_IMAGES)
    made: Built = {
        "plain": lambda: ours.plain_epoch(ours.as_written(ours.NETWORKS[name][0]()), x, y),
        "alike": lambda: ours.plain_epoch(ours.NETWORKS[name][0](), x, y),
        "empirical": lambda: ours.our_laplace(name, x, y, "empirical"),
        "monte_carlo": lambda: ours.our_laplace(name, x, y, "monte_carlo"),
    }
    fits = {t: lambda b=b: laplace(ours.as_written(ours.NETWORKS[name][0]()), x, y, b) for t, b in LAPLACE.items()}
    return {**made, **fits}


TABLES: dict[str, Callable[[str], Built]] = {
    "training step": training,
    "prediction, per weight sample": prediction,
    "diagonal Laplace, over a training epoch": laplace_fits,
}
BASES = ("plain", "alike", "alike, fused Adam", "alike, bf16")


def passes(table: str, case: str) -> int:
    """How many of what the table is about one call of the case does."""
    if not table.startswith("prediction"):
        return 1
    return NUM_SAMPLES if case.startswith("factorized") else NUM_FORWARDS


def measured(table: str, built: Mapping[str, Callable[[], Case]], rounds: int, threads: int) -> dict[str, Any]:
    """Every case that can be made and runs, over each base there is."""
    cases: dict[str, Case] = {}
    left_out: dict[str, str] = {}
    for name, make in built.items():
        try:
            cases[name] = make()
            cases[name]()
        except Exception as error:  # a peer that is missing or broken must not cost the others
            cases.pop(name, None)
            left_out[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if name not in PEERS and name not in LAPLACE:
                raise
    times = interleaved(cases, rounds, threads)
    seconds = {name: [second / passes(table, name) for second in found] for name, found in times.items()}
    rows = {
        name: {"seconds": sorted(found)[len(found) // 2]}
        | {f"over {base}": ratio(found, seconds[base]) for base in BASES if base in seconds and base != name}
        for name, found in seconds.items()
    }
    return {"rows": rows, "left out": left_out}


def memory(table: str, network: str, case: str) -> int | None:
    """Peak memory above what was there before the case was made, in a process of its own; in bytes."""
    words = [sys.executable, __file__, "--memory", table, network, case]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else None


def print_memory(table: str, network: str, case: str) -> None:
    """Run the case a few times, and print how far memory rose."""
    torch.set_num_threads(1)
    make = TABLES[table](network)[case]
    before = peak_bytes()
    run = make()
    for _ in range(3):
        run()
    print(peak_bytes() - before)


MEMORY = {
    "training step": ("plain", "alike, fused Adam", "factorized", *PEERS),
    "prediction, per weight sample": ("plain", "factorized"),
}


def show(title: str, found: dict[str, Any]) -> None:
    """One table as text."""
    bases = [base for base in BASES if base in found["rows"]]
    say(f"\n{title}\n{'':<34}" + "".join(f"{'over ' + base:>26}" for base in bases))
    for name, row in found["rows"].items():
        cells = [row.get(f"over {base}") for base in bases]
        texts = [f"{c['ratio']:.2f} [{c['low']:.2f}, {c['high']:.2f}]" if c else "1" for c in cells]
        say(f"{name:<34}" + "".join(f"{text:>26}" for text in texts))
    for name, reason in found["left out"].items():
        say(f"{name:<34}left out: {reason}")


def _peer(name: str, peer: str) -> tuple[Case, Case]:
    x, y = ours.data(name, ours.BATCH)
    many, _ = ours.data(name, ours.MANY)
    torch.manual_seed(0)
    return PEERS[peer][1](ours.as_written(ours.NETWORKS[name][0]()), x, y, many)


def main() -> None:
    """Measure, print the tables, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="a word of the tables to measure")
    parser.add_argument("--cases", default="", help="words of the cases to measure, separated by a slash")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory", nargs=3, metavar=("TABLE", "NETWORK", "CASE"))
    chosen = parser.parse_args()
    if chosen.memory:
        print_memory(*chosen.memory)
        return
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    tables: dict[str, Any] = {}
    for table, build in TABLES.items():
        for network in ours.NETWORKS if chosen.only in table else ():
            built = build(network)
            wanted = {n: m for n, m in built.items() if n in BASES or any(w in n for w in chosen.cases.split("/"))}
            tables[f"{table}, {network}"] = measured(table, wanted, chosen.rounds, chosen.threads)
            show(f"{table}, {network}", tables[f"{table}, {network}"])
    if chosen.out is None:
        return
    rises = {
        f"{table}, {network}": {case: memory(table, network, case) for case in cases}
        for table, cases in MEMORY.items()
        for network in ours.NETWORKS
    }
    for title, found in rises.items():
        say(f"\npeak memory, {title}")
        for case, size in found.items():
            base = found["plain"]
            over = f"{size / base:6.2f} x plain" if size and base else ""
            say(f"{case:<34}{'not measured' if size is None else f'{size / 1e6:8.0f} MB'}{over:>20}")
    packages = [package for package, _ in PEERS.values()] + ["laplace-torch"]
    kept = {**about(packages), "rounds": chosen.rounds}
    clock = "process time" if chosen.threads == 1 else "wall time"
    kept |= {"threads": chosen.threads, "clock": clock, "tables": tables, "peak_bytes": rises}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
