"""Committing and opening a belief, over writing and reading its tensors with safetensors and hashing the file.

    python benchmarks/store.py [--weights 10000000] [--rounds 25] [--folder .] [--out results/store-cpu.json]

Both sides write the same tensors (a factorised Gaussian: two numbers a weight) and end with them on the disk: plain
safetensors writes the file, takes its SHA-256, and syncs the file and its folder; the archive does that, and writes and
syncs a card, a manifest, an entry of the journal and the hint at it. Both sides read the file once for its SHA-256 and
then map its tensors; it was just written, so the pages are in memory. The sides take turns, and turns at being first;
wall time is measured, and the median of the rounds' ratios is given, with an interval that holds the true median 19
times in 20 whatever the noise is like (order statistics).
"""

import argparse
import hashlib
import json
import math
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from postprior.families import Factorized
from postprior.networks.belief import Belief, digest
from postprior.paper.records import commit
from postprior.store import Archive
from postprior.store.files import digest_of, sync
from postprior.store.manifest import to_plain

NUM_TENSORS = 10


def belief_of(num_weights: int) -> Belief:
    """Independent Gaussians in tensors of one size."""
    g = torch.Generator().manual_seed(0)
    size = num_weights // NUM_TENSORS
    made = {
        f"{i}.weight": Factorized(torch.randn(size, generator=g), torch.randn(size, generator=g))
        for i in range(NUM_TENSORS)
    }
    return Belief(made, frozenset(), {}, {}, num_parts=1, num_examples=60_000)


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Round:
    """One belief written and read in both ways, in a folder of its own."""

    def __init__(self, folder: Path, belief: Belief) -> None:
        self.file, self.belief = folder / "plain" / "belief.safetensors", belief
        self.file.parent.mkdir()
        self.tensors, _ = to_plain(belief)
        self.archive, self.id, self.checksum = Archive.create(folder / "archive", {}), "", ""

    def write_plain(self) -> None:
        """The tensors, their checksum, and both surely on the disk."""
        save_file(self.tensors, self.file)
        self.checksum = digest_of(self.file)
        sync(self.file)
        sync(self.file.parent)

    def write_ours(self) -> None:
        """The belief, acknowledged."""
        self.id = self.archive.put(self.belief, {"parent": None, "part": {"id": "part 1"}}, "# A belief\n")
        self.archive.append("absorb", belief=self.id, moves={"head": self.id}, expect={"head": None})

    def read_plain(self) -> None:
        """The tensors of a file with the right checksum."""
        with self.file.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == self.checksum
        load_file(self.file)

    def read_ours(self) -> None:
        """The belief that head points to."""
        archive = Archive.open(self.archive.address)
        archive.belief(archive.resolve("head"))


def interval(values: list[float]) -> tuple[float, float]:
    """Two of the values, between which the true median lies with 95 % or more."""
    ordered, n = sorted(values), len(values)
    below, skipped = 0.0, 0
    while (below := below + math.comb(n, skipped) / 2**n) <= 0.025:
        skipped += 1
    return ordered[max(skipped - 1, 0)], ordered[min(n - skipped, n - 1)]


def measure(belief: Belief, folder: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of every round; the first is warming up and not among them."""
    times = {what: {"plain": list[float](), "ours": list[float]()} for what in ("commit", "open")}
    for number in range(-1, rounds):
        with tempfile.TemporaryDirectory(dir=folder) as own:
            this = Round(Path(own), belief)
            ways = {
                "commit": {"plain": this.write_plain, "ours": this.write_ours},
                "open": {"plain": this.read_plain, "ours": this.read_ours},
            }
            for what, sides in ways.items():
                for side in sorted(sides, reverse=number % 2 == 0):
                    # What is still on its way to the disk from before is nobody's doing here.
                    os.sync()
                    took = seconds(sides[side])
                    if number >= 0:
                        times[what][side].append(took)
            if number < 0:
                assert digest(this.archive.belief(this.id)) == digest(belief)
                assert this.archive.verify() == []
    return times


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to be measured")
    parser.add_argument("--out", type=Path, default=Path("results/store-cpu.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    belief = belief_of(asked.weights)
    times, found = measure(belief, asked.folder, asked.rounds), dict[str, Any]()
    for what, sides in times.items():
        ratios = [ours / plain for ours, plain in zip(sides["ours"], sides["plain"], strict=True)]
        low, high = interval(ratios)
        found[what] = {
            "ratio": round(statistics.median(ratios), 3),
            "interval": [round(low, 3), round(high, 3)],
            "seconds": {side: round(statistics.median(all_of), 4) for side, all_of in sides.items()},
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
        took = found[what]["seconds"]
        print(
            f"{what:<8}{found[what]['ratio']:6.3f} x  [{low:.3f}, {high:.3f}]  "
            f"{took['ours']:.3f} s over {took['plain']:.3f} s"
        )
    about = {
        "command": f"python benchmarks/store.py --weights {asked.weights} --rounds {asked.rounds}",
        "commit": commit(),
        "device": f"{platform.machine()} {platform.system()}, 1 thread, {os.cpu_count()} cores shared with other work",
        "disk": f"{shutil.disk_usage(asked.folder).total // 2**30} GiB, files in the page cache when read",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("torch", "safetensors")}},
        "weights": asked.weights,
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in to_plain(belief)[0].values()),
        "rounds": asked.rounds,
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps({**about, "over_plain_safetensors": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
