"""How the tuned settings were found: every setting tried, scored on training images that were set aside.

5,000 images are set aside before the parts are cut, and the test set is never looked at. What stands here is the whole
record: all candidates of all rounds, fine-tuning with as many as the families. ``recipes.TUNED`` holds what was chosen.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from postprior.paper import recipes, records
from postprior.paper.configs import LABELS
from postprior.paper.experiment import Experiment
from postprior.paper.records import Result

NUM_HELD = 5_000

Candidate = dict[str, Any]
"""What differs from the common start: settings of ``Settings``, and ``prior_sd``."""


def grid(**axes: Iterable[Any]) -> list[Candidate]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def around(start: Candidate, **axes: Iterable[Any]) -> list[Candidate]:
    """The start, and what differs from it in one place."""
    return [start, *({**start, name: value} for name, values in axes.items() for value in values)]


FINE_TUNING = grid(learning_rate=(1e-4, 3e-4, 1e-3, 3e-3), schedule=("constant", "linear"))

MNIST_START: Candidate = {"temperature": 0.2, "prior_sd": 0.1, "steps": 1500}
CIFAR10_START: Candidate = {"temperature": 0.2, "prior_sd": 0.1, "steps": 1200}

CANDIDATES: dict[str, dict[str, list[Candidate]]] = {
    "mnist": {
        "ft": [{**each, "steps": steps} for each in FINE_TUNING for steps in (500, 1500, 3000)],
        "ffg": [
            *grid(temperature=(1.0, 0.2, 0.1, 0.05), prior_sd=(0.1, 1.0), steps=(1500,)),
            *grid(temperature=(0.2, 0.1), prior_sd=(0.1, 1.0), steps=(3000,)),
            *around(MNIST_START, learning_rate=(5e-4, 2e-3), spread_rate=(1.0,), num_samples=(2,))[1:],
            *grid(temperature=(0.2, 0.1), prior_sd=(0.1, 1.0), steps=(1500,), local_reparameterization=(True,)),
            *grid(temperature=(0.2,), prior_sd=(0.1, 1.0), steps=(1500,), function_space=(0.3,)),
        ],
        "cfg": [
            *grid(temperature=(1.0, 0.5, 0.2, 0.1), prior_sd=(0.1, 1.0), steps=(1500,)),
            *grid(temperature=(1.0, 0.2), prior_sd=("fan_in",), steps=(1500,)),
            *grid(temperature=(0.2, 0.1), prior_sd=(0.1, 1.0), steps=(3000,)),
            *around(MNIST_START, learning_rate=(5e-4, 2e-3), function_space=(0.3,), num_samples=(2,))[1:],
            *grid(temperature=(1.0, 0.1), prior_sd=(1.0,), steps=(3000,), schedule=("constant",)),
            {"temperature": 0.1, "prior_sd": 1.0, "steps": 3000, "spread_rate": 1.0},
        ],
        "mnf": around(MNIST_START, temperature=(1.0, 0.05), prior_sd=(1.0,), learning_rate=(5e-4,)),
    },
    "cifar10": {
        "ft": [{**each, "steps": steps} for each in FINE_TUNING for steps in (200, 400, 1200)],
        "ft-fs": grid(function_space=(0.3, 1.0, 3.0), learning_rate=(5e-4, 1e-3), steps=(1200,)),
        "ffg": [
            *around(
                CIFAR10_START,
                temperature=(0.1, 0.3),
                prior_sd=(0.05, "fan_in"),
                spread_rate=(1.0, 10.0),
                learning_rate=(5e-4, 2e-3),
                steps=(2200,),
                function_space=(0.3, 1.0),
                local_reparameterization=(True,),
                num_samples=(2,),
            ),
            *grid(temperature=(0.1, 0.2, 0.3), prior_sd=(0.1,), local_reparameterization=(True,), steps=(2200,)),
            *grid(temperature=(0.1,), prior_sd=(0.1,), function_space=(0.3, 1.0), steps=(1200, 2200)),
            *around(
                {**CIFAR10_START, "function_space": 0.3, "local_reparameterization": True},
                function_space=(1.0,),
                prior_sd=("fan_in",),
                spread_rate=(10.0,),
                temperature=(0.1,),
            ),
            *around({**CIFAR10_START, "spread_rate": 10.0, "steps": 2200}, learning_rate=(5e-4,), num_samples=(2,)),
        ],
        "cfg": [
            *around(CIFAR10_START, temperature=(0.1, 0.05), prior_sd=("fan_in",), function_space=(0.3, 1.0)),
            {**CIFAR10_START, "spread_rate": 10.0, "steps": 2200},
        ],
        "mnf": around(CIFAR10_START, temperature=(0.1, 0.05), learning_rate=(5e-4,), function_space=(0.3,)),
    },
}


def candidates(task: str, approaches: Sequence[str] | None = None, num_parts: int = 10) -> list[Experiment]:
    """All that was tried for a task."""
    return [
        _experiment(task, approach, num_parts, candidate)
        for approach, tried in CANDIDATES[task].items()
        for candidate in tried
        if approaches is None or approach in approaches
    ]


def approaches() -> list[str]:
    """Those with candidates."""
    return list(dict.fromkeys(approach for tried in CANDIDATES.values() for approach in tried))


def _experiment(task: str, approach: str, num_parts: int, candidate: Candidate) -> Experiment:
    start = recipes.experiment(task, approach, num_parts, "search", num_validation=NUM_HELD)
    prior_sd = candidate.get("prior_sd", start.prior_sd)
    settings = {name: value for name, value in candidate.items() if name != "prior_sd"}
    return replace(start, prior_sd=prior_sd, settings=replace(start.settings, **settings), samples_by_part=1)


def write(folder: Path) -> Path:
    """Write search.md beside the runs: every candidate, the best first."""
    path = folder / "search.md"
    records.write_text(path, markdown(records.read_all(folder)))
    return path


def markdown(results: Sequence[Result]) -> str:
    """A table for each task and approach; columns for what its candidates differ in."""
    groups: dict[tuple[str, str, int], list[Result]] = {}
    for result in results:
        experiment = result.experiment
        groups.setdefault((experiment.dataset, experiment.approach, experiment.num_parts), []).append(result)
    return "\n".join(_table(*key, found) for key, found in sorted(groups.items()))


def _table(task: str, approach: str, num_parts: int, results: list[Result]) -> str:
    plain = [{**asdict(r.experiment.settings), "prior_sd": r.experiment.prior_sd, "seed": r.seed} for r in results]
    varied = [name for name in plain[0] if len({str(each[name]) for each in plain}) > 1]
    lines = [f"### {task}, {LABELS[approach]}, T={num_parts}: {len(results)} tried", ""]
    header = [*varied, "accuracy %", "NLL", "ECE"]
    lines += [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    ranked = sorted(zip(results, plain, strict=True), key=lambda pair: -pair[0].final.accuracy)
    for result, values in ranked:
        final = result.final
        numbers = [f"{100 * final.accuracy:.2f}", f"{final.nll:.3f}", f"{final.ece:.3f}"]
        lines.append(f"| {' | '.join([*(str(values[name]) for name in varied), *numbers])} |")
    return "\n".join([*lines, ""])
