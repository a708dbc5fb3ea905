"""How the tuned settings were found: every setting tried, scored on training images that were set aside.

5,000 images are set aside before the parts are cut, and the test set is never looked at. What stands here is the whole
record: all candidates; fine-tuning has about as many as a family. All are tried with one seed, the best of each
approach with one more; the best of these by accuracy, averaged over the seeds, belong into ``recipes.TUNED``.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from postprior.errors import DataError
from postprior.paper import records
from postprior.paper.configs import CONFIGURATIONS, LABELS
from postprior.paper.experiment import Experiment
from postprior.paper.recipes import PARTS_OF_SEARCH, Candidate, adjusted
from postprior.paper.records import Result

NUM_HELD = 5_000
NUM_FINALISTS = 3
NUM_SEEDS = 2
"""Of finalists; the others get one."""

SLOW = frozenset({"mnf"})
"""A step of theirs takes several of the others': one seed has to do."""


def grid(**axes: Iterable[Any]) -> list[Candidate]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def around(start: Candidate, **axes: Iterable[Any]) -> list[Candidate]:
    """The start, and what differs from it in one place."""
    return [start, *({**start, name: value} for name, values in axes.items() for value in values)]


FINE_TUNING = {"learning_rate": (3e-4, 1e-3, 3e-3), "schedule": ("constant", "linear")}

MNIST_START: Candidate = {"temperature": 0.2, "prior_sd": 0.1, "steps": 1500}
CIFAR10_START: Candidate = {"temperature": 0.005, "prior_sd": 0.1, "steps": 1200}
CIFAR10_HELD: Candidate = {**CIFAR10_START, "function_space": 0.3, "local_reparameterization": True}
CIFAR5_START: Candidate = {"temperature": 0.005, "steps": 600}

CANDIDATES: dict[str, dict[str, list[Candidate]]] = {
    "mnist": {
        "ft": grid(**FINE_TUNING, steps=(500, 1500, 3000)),
        "ft-fs": grid(function_space=(0.3, 1.0, 3.0), steps=(1500, 3000)),
        "ewc": grid(ewc_strength=(0.1, 1.0, 10.0, 100.0), learning_rate=(3e-4, 1e-3), steps=(1500,)),
        "ffg": [
            *grid(temperature=(1.0, 0.2, 0.1, 0.05), prior_sd=(0.1, 1.0), steps=(1500,)),
            *grid(temperature=(0.2, 0.1), prior_sd=(0.1, 1.0), steps=(3000,)),
            *around(MNIST_START, learning_rate=(5e-4, 2e-3), spread_rate=(1.0,), function_space=(0.3,))[1:],
            *grid(temperature=(0.2, 0.1), prior_sd=(0.1, 1.0), steps=(1500,), local_reparameterization=(True,)),
            *grid(temperature=(0.05, 0.02), prior_sd=(1.0,), steps=(3000,)),
            *grid(temperature=(0.1, 0.05, 0.02), prior_sd=(1.0,), steps=(3000,), local_reparameterization=(True,)),
        ],
        "cfg": [
            *grid(temperature=(1.0, 0.5, 0.2, 0.1), prior_sd=(0.1, 1.0), steps=(1500,)),
            *grid(temperature=(0.2, 0.1, 0.05, 0.02), prior_sd=(1.0,), steps=(3000,)),
            *around(MNIST_START, function_space=(0.3,))[1:],
            *grid(temperature=(1.0, 0.1), prior_sd=(1.0,), steps=(3000,), schedule=("constant",), spread_rate=(1.0,)),
        ],
        "mnf": around(MNIST_START, temperature=(1.0, 0.05), prior_sd=(1.0,), learning_rate=(5e-4,)),
    },
    "cifar10": {
        "ft": [
            *grid(learning_rate=(1e-4, 3e-4, 1e-3), schedule=("constant", "linear"), steps=(200, 400, 1200)),
            *grid(learning_rate=(3e-3,), schedule=("constant", "linear"), steps=(1200,)),
        ],
        "ft-fs": grid(function_space=(0.3, 1.0, 3.0), learning_rate=(5e-4, 1e-3), steps=(1200,)),
        "ewc": grid(ewc_strength=(1.0, 10.0, 100.0, 1000.0), steps=(400, 1200)),
        "ffg": [
            *around(
                CIFAR10_HELD,
                function_space=(0.0, 1.0),
                temperature=(0.001, 0.002, 0.02),
                prior_sd=("fan_in", 1.0),
                learning_rate=(5e-4, 2e-3),
                steps=(2200,),
                local_reparameterization=(False,),
            ),
            # What would suit a part of all images: one of 5,000 is not learned so, the KL outweighs it.
            {**CIFAR10_HELD, "temperature": 0.2, "function_space": 0.0},
            {**CIFAR10_HELD, "temperature": 0.2, "steps": 2200},
            {**CIFAR10_START, "temperature": 0.2, "spread_rate": 10.0, "steps": 2200},
        ],
        "cfg": [
            *around(CIFAR10_START, temperature=(0.001, 0.02), function_space=(0.3, 1.0)),
            *around({**CIFAR10_START, "temperature": 0.2}, function_space=(0.3, 1.0)),
            *around({**CIFAR10_START, "temperature": 0.1}, function_space=(1.0,)),
        ],
    },
    "cifar5+5": {
        "ft": grid(learning_rate=(3e-4, 1e-3), schedule=("constant", "linear"), steps=(200, 600)),
        "ft-pretrained": grid(learning_rate=(3e-4, 1e-3), schedule=("constant", "linear"), steps=(200, 600)),
        "ffg": [
            *around(
                CIFAR5_START, temperature=(0.001, 0.02), prior_sd=("fan_in",), steps=(1200,), function_space=(0.3, 1.0)
            ),
            {**CIFAR5_START, "function_space": 0.3, "local_reparameterization": True},
        ],
        "ffg-laplace": [
            *around(CIFAR5_START, temperature=(0.001, 0.02), steps=(1200,), function_space=(0.3, 1.0)),
            {**CIFAR5_START, "function_space": 0.3, "local_reparameterization": True},
        ],
    },
}
"""By task and approach; what a candidate does not say is as ``recipes`` has it for the variant "search"."""


def candidates(task: str, approaches: Sequence[str] | None = None) -> list[Experiment]:
    """All that is tried for a task."""
    return [
        _experiment(task, approach, candidate)
        for approach, tried in CANDIDATES[task].items()
        for candidate in tried
        if approaches is None or approach in approaches
    ]


def approaches() -> list[str]:
    """Those with candidates."""
    return list(dict.fromkeys(approach for tried in CANDIDATES.values() for approach in tried))


def finalists(results: Sequence[Result]) -> list[Experiment]:
    """Of each task and approach, what did best with the first seed."""
    first = [result for result in results if result.seed == 0]
    return [
        result.experiment
        for (_, approach), group in _groups(first).items()
        if approach not in SLOW
        for result in sorted(group, key=lambda result: -result.final.accuracy)[:NUM_FINALISTS]
    ]


def chosen(results: Sequence[Result]) -> dict[str, dict[str, Candidate]]:
    """By task and approach, the candidate with the best accuracy over all seeds that finalists got."""
    by_hash: dict[str, list[Result]] = {}
    for result in results:
        by_hash.setdefault(result.experiment.hash, []).append(result)

    def rank(task: str, approach: str, candidate: Candidate) -> tuple[int, float]:
        found = by_hash.get(_experiment(task, approach, candidate).hash, [])
        return len(found), _accuracy(found) if found else 0.0

    best: dict[str, dict[str, Candidate]] = {}
    for task, tried in CANDIDATES.items():
        for approach, some in tried.items():
            winner = max(some, key=lambda candidate: rank(task, approach, candidate))
            if rank(task, approach, winner)[0]:
                best.setdefault(task, {})[approach] = winner
    return best


def _experiment(task: str, approach: str, candidate: Candidate) -> Experiment:
    start = CONFIGURATIONS[task][approach](PARTS_OF_SEARCH, "search")
    return adjusted(replace(start, num_validation=NUM_HELD, samples_by_part=1), candidate)


def write(folder: Path) -> Path:
    """Write search.md beside the runs: every candidate, the best first."""
    path = folder / "search.md"
    records.write_text(path, markdown(records.read_all(folder)))
    return path


def markdown(results: Sequence[Result]) -> str:
    """A table for each task and approach; columns for what its candidates differ in."""
    return "\n".join(_table(*key, group) for key, group in sorted(_groups(results).items()))


def _groups(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if not result.experiment.num_validation:
            raise DataError(f"{result.title} was scored on the test set, and is no part of a search: move it away")
        groups.setdefault((result.experiment.dataset, result.experiment.approach), []).append(result)
    return groups


def _table(task: str, approach: str, results: list[Result]) -> str:
    by_hash: dict[str, list[Result]] = {}
    for result in results:
        by_hash.setdefault(result.experiment.hash, []).append(result)
    fields = {key: _fields(some[0].experiment) for key, some in by_hash.items()}
    names = next(iter(fields.values()))
    varied = [name for name in names if len({str(each[name]) for each in fields.values()}) > 1]
    lines = [f"### {task}, {LABELS[approach]}: {len(by_hash)} tried", ""]
    header = [*varied, "seeds", "accuracy %", "NLL", "ECE"]
    lines += [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for key, some in sorted(by_hash.items(), key=lambda item: (-len(item[1]), -_accuracy(item[1]))):
        nll, ece = fmean(r.final.nll for r in some), fmean(r.final.ece for r in some)
        numbers = [str(len(some)), f"{100 * _accuracy(some):.2f}", f"{nll:.3f}", f"{ece:.3f}"]
        lines.append(f"| {' | '.join([*(str(fields[key][name]) for name in varied), *numbers])} |")
    return "\n".join([*lines, ""])


def _fields(experiment: Experiment) -> dict[str, Any]:
    own = {"prior_sd": experiment.prior_sd, "ewc_strength": experiment.ewc_strength}
    return {**asdict(experiment.settings), **own}


def _accuracy(results: Sequence[Result]) -> float:
    return fmean(result.final.accuracy for result in results)
