"""Ratios measured in one run: cases take turns, so that whatever else the machine does falls on all of them alike."""

import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

Case = Callable[[], object]


def clock(threads: int) -> Callable[[], float]:
    """With one thread the process's own time, which other processes do not add to; else time on the wall.

    0 threads stand for a GPU, for which the process only waits.
    """
    return time.process_time if threads == 1 else time.perf_counter


def interleaved(cases: Mapping[str, Case], rounds: int, threads: int) -> dict[str, list[float]]:
    """Seconds of each case in every round; a first round is not counted."""
    now = clock(threads)
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            began = now()
            case()
            if number:
                seconds[name].append(now() - began)
    return seconds


def ratio(seconds: list[float], base: list[float]) -> dict[str, float]:
    """The median over rounds of the ratio, and an interval for it (order statistics, 95%)."""
    found = sorted(a / b for a, b in zip(seconds, base, strict=True))
    reach = 0.98 * math.sqrt(len(found))
    low = max(0, math.floor(len(found) / 2 - reach))
    high = min(len(found) - 1, math.ceil(len(found) / 2 + reach) - 1)
    return {"ratio": statistics.median(found), "low": found[low], "high": found[high]}


def about(packages: list[str]) -> dict[str, Any]:
    """Where, when and with what it was measured."""
    return {
        "command": command(),
        "commit": commit(),
        "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "device": processor(),
        "cores": os.cpu_count(),
        "load_average_at_the_end": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "versions": {name: found for name in packages if (found := installed(name))},
    }


def command() -> str:
    """What was asked for, but for the file to write: where it lay on some machine is nobody else's."""
    words = sys.argv[1:]
    if "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def installed(package: str) -> str | None:
    """Its version, if it is there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str:
    """The commit measured, and whether the code of the package or of the benchmarks differs from it.

    A machine that was given the files alone has no git to ask: there the variable COMMIT says it.
    """
    if said := os.environ.get("COMMIT"):
        return said
    if shutil.which("git") is None:
        return "unknown"

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "src/postprior/learning", "src/postprior/networks", "benchmarks/*.py")
    return (git("rev-parse", "HEAD") or "unknown") + (" with changes" if changed else "")


def processor() -> str:
    """The processor's name."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def peak_bytes() -> int:
    """The most memory that this process has had in use."""
    with Path("/proc/self/status").open(encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def say(text: str = "") -> None:
    """A line, at once."""
    print(text, flush=True)
    sys.stdout.flush()
