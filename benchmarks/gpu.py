"""Ours beside plain PyTorch on one GPU: ratios of time, gaps between kernels, averaging, growth, and the floor.

    PYTHONPATH=src python3 benchmarks/gpu.py --out results/speed-gpu.json
    python benchmarks/gpu.py --device cpu --small --rounds 2 --span 0.01   # to try the program

Every table is measured in a process of its own, and the file is written anew after every row: what breaks costs no
more than itself. Cases of a table take turns; a ratio is the median over rounds, with a 95% interval. Time is that on
the wall until the GPU has finished. "alike, fused Adam" is the plain network treated as ours: channels_last, pooling
before ReLU, the fused optimizer, and where ours is recorded (CUDA graph) it is too. float32 means TF32 in matrix
products and convolutions, for both.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_tables
import ours
import torch
from timing import about, say

MORE_BYTES_A_WEIGHT = {
    "width: exp": 8,
    "normal number": 4,
    "shift = width x number": 12,
    "weight = mean + shift": 12,
    "KL: ratio of widths, and its slope": 20,
    "KL: distance, twice scaled": 36,
    "KL: three sums": 12,
    "slopes of the KL, scaled": 16,
    "slopes of the weights, added": 28,
    "Adam over one vector more": 28,
}
"""Read and written in float32, beyond the plain step, as the passes are written (``networks/gathered.py``)."""

LEAST_MORE_BYTES = 52
"""The same if every number were moved once: before the network the mean, the log sd and the prior's two are read and
the weight written (20); after it the slope and those four are read, moments read and written, mean and log sd written
(60, the noise made again from its seed); Adam on a plain weight moves 28."""

LEAST_MORE_LAUNCHES = 2
"""The draw with its KL, and the sum of the KL; the slopes can go with Adam."""


def main() -> None:
    """Measure, print the tables, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--span", type=float, default=0.04, help="seconds of a case's turn")
    parser.add_argument("--small", action="store_true", help="everything smaller, to try the program")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a table is given up")
    parser.add_argument("--only", default="", help="a word of the tables to measure")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", choices=gpu_tables.TABLES, help="measure one here, and print its rows as JSON")
    asked = parser.parse_args()
    if asked.table:
        measure(asked)
        return
    tables: dict[str, dict[str, Any]] = {}
    found = {**about([]), "clock": "time on the wall", "rounds": asked.rounds, "batch": ours.BATCH}
    found |= {
        "tables": tables,
        "more_bytes_a_weight": MORE_BYTES_A_WEIGHT,
        "least_more_bytes_a_weight": LEAST_MORE_BYTES,
    }
    for table in (table for table in gpu_tables.TABLES if asked.only in table):
        say(f"\n{table}")
        tables[table] = {}
        for name, row in rows_of(table, asked.limit):
            tables[table][name] = row
            say(f"{name:<58}{shown(row)}")
            keep(asked.out, found)
        found |= {**about([]), "floor": dict(floor(tables))}
        keep(asked.out, found)
    say("\nthe floor of a factorized step, recorded")
    for name, row in dict(floor(tables)).items():
        say(f"{name:<58}{shown(row)}")


def keep(path: Path | None, found: dict[str, Any]) -> None:
    """What there is so far."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure(asked: argparse.Namespace) -> None:
    """One table, in this process."""
    torch.set_float32_matmul_precision("high")
    device = torch.empty(0, device=asked.device).device  # with its number
    wanted = gpu_tables.Asked(device, asked.rounds, asked.span, asked.small)
    for name, row in gpu_tables.TABLES[asked.table](wanted):
        say(json.dumps([name, row]))


def rows_of(table: str, limit: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those of a table, as another process finds them; and how it ended, if not well."""
    with tempfile.TemporaryFile("w+") as errors:
        words = [sys.executable, __file__, *sys.argv[1:], "--table", table]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
        late = threading.Timer(limit, process.kill)
        late.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('["'):
                yield tuple(json.loads(line))
        status = process.wait()
        late.cancel()
        if status:
            errors.seek(0)
            # Without the places in the code, which are indented.
            said = [line.strip() for line in errors if line[0].strip()]
            yield "the rest of the table", {"failed": f"status {status}: {' '.join(said[-4:])[-600:]}"}


def floor(tables: dict[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """How near a recorded factorized step is to the plain one with the least that a belief adds to it."""
    machine, kernels = tables.get("ceilings", {}), tables.get("without a kernel", {})
    speed = machine.get("copy", {}).get("bytes_a_second")
    launch = machine.get("launch, recorded", {}).get("seconds_a_launch")
    for precision in ("float32", "bfloat16"):
        for name, (make, _) in ours.NETWORKS.items():
            rows = tables.get(f"step, {precision}", {})
            plain, own = (rows.get(f"{name}, recorded, {case}", {}) for case in (gpu_tables.PLAIN, "factorized"))
            if not (speed and launch and "seconds" in plain and "seconds" in own):
                continue
            weights = sum(parameter.numel() for parameter in make().parameters())
            least = LEAST_MORE_BYTES * weights / speed + LEAST_MORE_LAUNCHES * launch
            lowest = 1 + least / plain["seconds"]
            measured = own[f"over {gpu_tables.PLAIN}"]["ratio"]
            row = {
                "weights": weights,
                "plain_seconds": plain["seconds"],
                "more_seconds": own["seconds"] - plain["seconds"],
                "least_more_seconds": least,
                "passes_as_written_seconds": sum(MORE_BYTES_A_WEIGHT.values()) * weights / speed,
                "ratio": measured,
                "floor": lowest,
                "ratio_over_floor": measured / lowest,
            }
            seen = [
                kernels.get(f"{name}, {precision}, recorded, {case}", {}) for case in (gpu_tables.PLAIN, "factorized")
            ]
            if all("kernels_a_step" in each for each in seen):
                launches = seen[1]["kernels_a_step"] - seen[0]["kernels_a_step"]
                row |= {"more_kernels": launches, "launches_of_these_seconds": launches * launch}
                row["more_kernel_seconds"] = seen[1]["seconds_in_kernels"] - seen[0]["seconds_in_kernels"]
            yield f"{name}, {precision}", row


def shown(row: dict[str, Any]) -> str:
    """A row as text; what has no place in a line stays in the file."""
    texts: list[str] = []
    for key, value in row.items():
        if isinstance(value, dict) and "ratio" in value:
            texts.append(f"{key} {value['ratio']:.2f} [{value['low']:.2f}, {value['high']:.2f}]")
        elif key.endswith("seconds") or key.startswith(("seconds", "median")):
            texts.append(f"{key} {value * 1e3:.4g} ms")
        elif not isinstance(value, dict):
            texts.append(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}")
    return "; ".join(texts)


if __name__ == "__main__":
    main()
