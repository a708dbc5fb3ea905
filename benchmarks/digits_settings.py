"""Settings of the digits demo compared in ten parts, on training images set aside: the test images have no say.

python benchmarks/digits_settings.py METHOD [--seeds 4] [--out results/digits]
"""

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from postprior.paper import digits

SET_ASIDE, NUM_PARTS = 297, 10
HELD = [{"function_space": weight} for weight in (0.3, 1.0, 3.0)]
"""Both sides may hold their predictions to the old ones."""
FINE_TUNING: list[dict[str, Any]] = [
    {},
    *({"epochs": epochs, "learning_rate": rate} for epochs in (10, 20) for rate in (2e-3, 5e-3)),
    {"epochs": 20, "schedule": "linear"},
    *HELD,
    {"epochs": 20, "schedule": "linear", "function_space": 0.3},
]
BAYES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.003},
    {"temperature": 0.01},
    {"temperature": 0.03},
    {"epochs": 30},
    {"prior_sd": 0.1},
    *({"temperature": 0.003, **held} for held in HELD),
    {"temperature": 0.003, "epochs": 30, "function_space": 0.3},
]
"""What is changed in the settings that the demo has now."""


def main() -> None:
    """Run all candidates of one method, print each as it is done, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=digits.METHODS)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("results/digits"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    about = {"command": f"python benchmarks/digits_settings.py {asked.method} --seeds {asked.seeds}"}
    about |= {**digits.provenance(), "seeds": list(range(asked.seeds)), "set_aside": SET_ASIDE, "candidates": []}
    asked.out.mkdir(parents=True, exist_ok=True)
    for changed in FINE_TUNING if asked.method == "FT" else BAYES:
        prior_sd = changed.get("prior_sd", digits.PRIOR_SD)
        own = {name: value for name, value in changed.items() if name != "prior_sd"}
        settings = replace(digits.METHODS[asked.method].settings, **own)
        options: dict[str, Any] = {"settings": settings, "prior_sd": prior_sd, "set_aside": SET_ASIDE}
        runs = [digits.run(asked.method, NUM_PARTS, seed, **options) for seed in range(asked.seeds)]
        (end,) = digits.endings(runs)
        print(changed or "as in the demo", *digits.row(end)[2:], sep="  ", flush=True)
        about["candidates"].append({"changed": changed, "each_nll": [r.nll[-1] for r in runs], **asdict(end)})
        (asked.out / f"settings-{asked.method}.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
