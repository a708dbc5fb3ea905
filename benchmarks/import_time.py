"""What importing postprior adds to importing torch: a ratio of medians, the two interleaved in new processes.

python benchmarks/import_time.py
"""

import statistics
import subprocess
import sys
import time

ROUNDS = 11
CASES = {
    "import torch": "import torch",
    "import torch, postprior": "import torch, postprior",
    "from postprior import Learner": "import torch; from postprior import Learner",
}


def seconds(code: str) -> float:
    """How long a new process takes to run the code."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print every case over the first."""
    times = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, code in CASES.items():
            times[name].append(seconds(code))
    base = times["import torch"]
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, base, strict=True))
        print(f"{name:<32}{statistics.median(found):6.2f} s{ratio:8.3f} x")


if __name__ == "__main__":
    main()
