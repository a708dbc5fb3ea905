"""The paper's figure and the curves by part, drawn from the files alone."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postprior.errors import MissingExtraError, StoreError
from postprior.paper import records
from postprior.paper.configs import LABELS
from postprior.paper.experiment import Variant
from postprior.paper.records import PartScore
from postprior.paper.summary import Cell, Section, sections

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {
    "mnist": ("MNIST", ("ft", "ffg", "cfg", "mnf")),
    "cifar10": ("CIFAR-10", ("ft", "ffg", "cfg", "mnf")),
    "cifar5+5": ("CIFAR(5+5)", ("ft", "ft-pretrained", "ffg", "ffg-fixed", "ffg-laplace")),
}
"""The panels of the paper's Figure 1, and the bars it has; the tables have the other baselines too."""

BY_PART: dict[str, Callable[[PartScore], float]] = {
    "accuracy, %": lambda score: 100 * score.accuracy,
    "NLL, nats": lambda score: score.nll,
}
COLORS = {1: "#b8c4d6", 10: "#2f5d94"}
OTHER_COLOR = "#6f8fb8"


def write(folder: Path) -> tuple[list[Path], list[str]]:
    """Draw both figures for every variant, as PNG and SVG beside the runs; returns the paths, and what is missing."""
    by_variant: dict[Variant, dict[str, Section]] = {}
    for section in sections(records.read_all(folder)):
        by_variant.setdefault(section.variant, {})[section.task] = section
    paths: list[Path] = []
    missing: list[str] = []
    for variant, by_task in by_variant.items():
        paths += _save(bars(by_task, variant), folder / f"figure-{variant}")
        paths += _save(curves(by_task, variant), folder / f"by-part-{variant}")
        missing += [f"{task}, {variant}: no run" for task in PANELS if task not in by_task]
        missing += [sentence for section in by_task.values() for sentence in section.missing]
    return paths, missing


def bars(by_task: dict[str, Section], variant: str) -> "Figure":
    """Figure 1: accuracy at the end with its interval over seeds, T=1 beside T=10, a panel for each task."""
    figure = _figure(11, 3.6)
    axes: Sequence[Axes] = figure.subplots(1, len(PANELS), width_ratios=[len(names) for _, names in PANELS.values()])
    for ax, (task, (title, names)) in zip(axes, PANELS.items(), strict=True):
        ax.set_title(title)
        ax.set_ylabel("test accuracy, %")
        if task in by_task:
            _draw_bars(ax, by_task[task], names)
        else:
            _say_nothing(ax)
    figure.suptitle(_caption(by_task, variant, "accuracy after the last part"), fontsize=9)
    return figure


def curves(by_task: dict[str, Section], variant: str) -> "Figure":
    """Accuracy and NLL after each part, at the largest T there is."""
    figure = _figure(11, 6)
    grid: Any = figure.subplots(len(BY_PART), len(PANELS), squeeze=False)
    for column, (task, (title, _)) in enumerate(PANELS.items()):
        for row, (quantity, value) in enumerate(BY_PART.items()):
            ax: Axes = grid[row, column]
            ax.set_title(title)
            ax.set_xlabel("parts learned")
            ax.set_ylabel(quantity)
            section = by_task.get(task)
            if section is None or section.parts[-1] == 1:
                _say_nothing(ax)
            else:
                _draw_curves(ax, section, value)
    figure.suptitle(_caption(by_task, variant, "on the test set after each part"), fontsize=9)
    return figure


def _draw_bars(ax: "Axes", section: Section, names: Sequence[str]) -> None:
    present = [name for name in names if name in section.approaches]
    width = 0.8 / len(section.parts)
    ends: list[float] = []
    for i, num_parts in enumerate(section.parts):
        cells = {x: cell for x, name in enumerate(present) if (cell := section.cell(name, num_parts))}
        found = [cell.over(lambda result: 100 * result.final.accuracy) for cell in cells.values()]
        places = [x + (i - (len(section.parts) - 1) / 2) * width for x in cells]
        # A single seed has no interval, and a bar without one must not look like one with none to speak of.
        errors = [math.nan if interval.half_width is None else interval.half_width for interval in found]
        color = COLORS.get(num_parts, OTHER_COLOR)
        heights = [interval.mean for interval in found]
        ax.bar(places, heights, width, yerr=errors, capsize=3, color=color, label=f"T={num_parts}")
        ends += [i.mean + sign * (i.half_width or 0.0) for i in found for sign in (-1, 1)]
    ax.set_xticks(range(len(present)), [_broken(LABELS[name]) for name in present], fontsize=8)
    ax.legend(loc="upper right", ncols=len(section.parts), fontsize=8)
    if ends:
        # Bars from zero would hide differences of tenths; the axis says where it begins.
        margin = 0.25 * (max(ends) - min(ends)) + 0.1
        ax.set_ylim(max(0.0, min(ends) - 2 * margin), max(ends) + 2 * margin)


def _draw_curves(ax: "Axes", section: Section, value: Callable[[PartScore], float]) -> None:
    for name in section.approaches:
        if cell := section.cell(name, section.parts[-1]):
            xs, means, lows, highs = _curve(cell, value)
            (line,) = ax.plot(xs, means, marker=".", label=LABELS.get(name, name))
            ax.fill_between(xs, lows, highs, color=line.get_color(), alpha=0.15, linewidth=0)
    ax.legend(fontsize=7)


def _curve(cell: Cell, value: Callable[[PartScore], float]) -> tuple[list[int], list[float], list[float], list[float]]:
    numbers = range(cell.num_parts)
    found = [cell.over(lambda result, part=part: value(result.by_part[part])) for part in numbers]
    reach = [interval.half_width or 0.0 for interval in found]
    means = [interval.mean for interval in found]
    lows = [mean - half for mean, half in zip(means, reach, strict=True)]
    highs = [mean + half for mean, half in zip(means, reach, strict=True)]
    return [number + 1 for number in numbers], means, lows, highs


def _say_nothing(ax: "Axes") -> None:
    ax.text(0.5, 0.5, "no results yet", ha="center", va="center", transform=ax.transAxes, color="gray")
    ax.set_xticks([])
    ax.set_yticks([])


def _caption(by_task: dict[str, Section], variant: str, what: str) -> str:
    most = max(len(cell.results) for section in by_task.values() for cell in section.cells)
    intervals = f"mean and 95% interval of up to {most} seeds" if most > 1 else "one seed, so no interval"
    return f"{'the paper’s' if variant == 'paper' else variant} settings: {what}; {intervals}"


def _broken(label: str) -> str:
    return label.replace(", ", "\n")


def _figure(width: float, height: float) -> "Figure":
    try:
        # Not pyplot, which would keep the figure in a global list and choose a backend.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(f"figures need matplotlib ({error}): pip install 'postprior[figures]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: "Figure", stem: Path) -> list[Path]:
    from matplotlib import rc_context

    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    try:
        # Without a salt and with a date, the same results would give another file every time.
        with rc_context({"svg.hashsalt": "postprior"}):
            figure.savefig(paths[0], dpi=200)
            figure.savefig(paths[1], metadata={"Date": None})
    except OSError as error:
        raise StoreError(f"{stem} cannot be drawn: {error}; choose another folder, or free some space") from error
    return paths
