"""From runs to numbers with intervals: a mean over seeds for every cell of the tables, and what is not there."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from postprior.paper.configs import CONFIGURATIONS, LABELS, choose
from postprior.paper.experiment import Variant
from postprior.paper.records import Result

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and how far the 95% interval of Student's t reaches to either side."""

    mean: float
    half_width: float | None
    """None for a single seed, which says nothing of its own spread."""


@dataclass(frozen=True)
class Cell:
    """All seeds of one configuration."""

    results: tuple[Result, ...]

    def over(self, value: Callable[[Result], float]) -> Interval:
        """Some number of a run, over the seeds."""
        return interval([value(result) for result in self.results])

    @property
    def name(self) -> str:
        """The configuration's."""
        return self.results[0].experiment.name

    @property
    def approach(self) -> str:
        """What it is a row or a bar of."""
        return self.results[0].experiment.approach

    @property
    def num_parts(self) -> int:
        """T."""
        return self.results[0].experiment.num_parts


@dataclass(frozen=True)
class Section:
    """The cells of one task in one variant: a table, or a panel of the figure."""

    task: str
    variant: Variant
    cells: tuple[Cell, ...]
    missing: tuple[str, ...]
    """A sentence for each cell, or some of its seeds, that is not there; and for what was left out."""

    @property
    def approaches(self) -> list[str]:
        """Those that have a cell, in the order of ``LABELS``, others after them."""
        present = dict.fromkeys(cell.approach for cell in self.cells)
        return sorted(present, key=lambda name: list(LABELS).index(name) if name in LABELS else len(LABELS))

    @property
    def parts(self) -> list[int]:
        """Every T that has a cell."""
        return sorted({cell.num_parts for cell in self.cells})

    def cell(self, approach: str, num_parts: int) -> Cell | None:
        """The one of this approach at this T."""
        found = (cell for cell in self.cells if (cell.approach, cell.num_parts) == (approach, num_parts))
        return next(found, None)


def sections(results: Iterable[Result]) -> list[Section]:
    """All that the results have to show, by variant and task."""
    grouped: dict[tuple[Variant, str], list[Result]] = {}
    for result in results:
        grouped.setdefault((result.experiment.variant, result.experiment.dataset), []).append(result)
    order = list(CONFIGURATIONS)
    keys = sorted(grouped, key=lambda key: (key[0], order.index(key[1])))
    return [_section(task, variant, grouped[variant, task]) for variant, task in keys]


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of independent values."""
    if len(values) < 2:
        return Interval(values[0], None)
    error = stdev(values) / math.sqrt(len(values))
    return Interval(fmean(values), student_t(len(values) - 1) * error)


def student_t(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t with P(|T| <= t) = confidence, by bisection."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """P(|T| <= t): Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _section(task: str, variant: Variant, results: list[Result]) -> Section:
    expected = {experiment.name: experiment.hash for experiment in choose([task], variant=variant)}
    on_test = [result for result in results if not result.experiment.num_validation]
    missing: list[str] = []
    if len(on_test) < len(results):
        missing.append(f"{len(results) - len(on_test)} runs were scored on training images set aside: left out")
    by_name: dict[str, dict[str, list[Result]]] = {}
    for result in on_test:
        by_name.setdefault(result.experiment.name, {}).setdefault(result.experiment.hash, []).append(result)
    cells: list[Cell] = []
    for name, by_hash in by_name.items():
        # Numbers of different settings must not be averaged: those that the code has now count, or the most.
        ranked = sorted(by_hash, key=lambda key: (key != expected.get(name), -len(by_hash[key])))
        cells.append(Cell(tuple(sorted(by_hash[ranked[0]], key=lambda result: result.seed))))
        others = sum(len(by_hash[key]) for key in ranked[1:])
        missing += [f"{name}: {others} runs with other settings: left out"] if others else []
    missing += [f"{name}: no run" for name in expected if name not in by_name]
    seeds = {result.seed for result in on_test}
    for cell in cells:
        if lacking := sorted(seeds - {result.seed for result in cell.results}):
            missing.append(f"{cell.name}: no run with seed {', '.join(map(str, lacking))}")
    return Section(task, variant, tuple(cells), tuple(missing))
