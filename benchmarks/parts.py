"""What a night costs in a store that has learned many parts before: time, and bytes besides the belief itself.

    .venv/bin/python benchmarks/parts.py [--parts 400] [--out results/parts-cpu.json]

Parts of 40 examples, a network of 58 weights: nearly all of it is the store's own work. Process time, one thread.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from timing import about, say

from postprior import Store

WINDOW = 20
"""Nights that a median is taken of."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=400)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        seconds, num_bytes = nights(Path(folder) / "store", asked.parts)
    found = {
        **about(["safetensors"]),
        "seconds_a_night_after": {
            str(end): statistics.median(seconds[end - WINDOW : end]) for end in range(100, asked.parts + 1, 100)
        },
        "bytes_a_part_besides_the_tensors": num_bytes,
    }
    say(json.dumps(found, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


def nights(place: Path, count: int) -> tuple[list[float], float]:
    """Seconds of each night, and the bytes that each adds besides its belief's tensors."""
    arguments = {"in_features": 3, "num_outputs": 2, "hidden": [8]}
    Store.create(place, "mlp", arguments=arguments, epochs=1, batch_size=40, score_samples=1)
    generator = torch.Generator().manual_seed(0)
    seconds: list[float] = []
    for number in range(count):
        x = torch.randn(40, 3, generator=generator)
        began = time.process_time()
        Store.open(place).absorb((x, (x.sum(1) > 0).long()), part=f"night {number}")
        seconds.append(time.process_time() - began)
    files = [path for path in place.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    return seconds, sum(path.stat().st_size for path in files) / count


if __name__ == "__main__":
    main()
