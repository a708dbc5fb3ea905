"""The results as tables, drawn from the files alone: Markdown to read, CSV to compute with."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from postprior.paper import records
from postprior.paper.configs import LABELS
from postprior.paper.records import Result
from postprior.paper.summary import Cell, Interval, Section, sections

NUMBERS: dict[str, tuple[Callable[[Result], float], str]] = {
    "accuracy": (lambda result: 100 * result.final.accuracy, ".2f"),
    "nll": (lambda result: result.final.nll, ".3f"),
    "ece": (lambda result: result.final.ece, ".3f"),
}
TITLES = {"accuracy": "accuracy %", "nll": "NLL", "ece": "ECE"}


def write(folder: Path) -> tuple[Path, Path]:
    """Write table.md and table.csv beside the runs."""
    results = records.read_all(folder)
    paths = folder / "table.md", folder / "table.csv"
    records.write_text(paths[0], markdown(results))
    records.write_text(paths[1], as_csv(results))
    return paths


def markdown(results: Sequence[Result]) -> str:
    """A table for each task and variant, with T=1 beside T=10, and what is missing under it."""
    blocks = [_markdown_section(section) for section in sections(results)]
    commits = sorted({result.commit or "no checkout" for result in results})
    devices = sorted({result.device for result in results})
    note = (
        "Mean over seeds ± the 95% interval of Student's t, and in brackets the number of seeds. "
        f"Commit {', '.join(commits)}; on {'; '.join(devices)}."
    )
    return "\n".join([*blocks, note]) + "\n"


def as_csv(results: Sequence[Result]) -> str:
    """A line for each configuration."""
    ends = [f"{name}_{end}" for name in NUMBERS for end in ("mean", "half_width")]
    header = ["task", "variant", "approach", "parts", "seeds", *ends, "seconds_mean", "hash"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for section in sections(results):
        for num_parts in section.parts:
            for approach in section.approaches:
                if cell := section.cell(approach, num_parts):
                    writer.writerow(_csv_row(section, cell))
    return text.getvalue()


def _markdown_section(section: Section) -> str:
    columns = [(name, num_parts) for name in NUMBERS for num_parts in section.parts]
    header = ["", *(f"{TITLES[name]}, T={num_parts}" for name, num_parts in columns), "minutes a run"]
    lines = [f"### {section.task}, {section.variant}", "", _row(header), _row(["---"] * len(header))]
    for approach in section.approaches:
        cells = {num_parts: section.cell(approach, num_parts) for num_parts in section.parts}
        numbers = [_shown(cells[num_parts], name) for name, num_parts in columns]
        minutes = [f"{c.over(lambda r: r.seconds / 60).mean:.1f}" if c else "-" for c in cells.values()]
        lines.append(_row([LABELS.get(approach, approach), *numbers, " / ".join(minutes)]))
    lines.append("")
    if section.missing:
        lines += ["Not there:", "", *(f"- {sentence}" for sentence in section.missing), ""]
    return "\n".join(lines)


def _shown(cell: Cell | None, name: str) -> str:
    if cell is None:
        return "-"
    value, form = NUMBERS[name]
    found = cell.over(value)
    spread = "" if found.half_width is None else f" ± {found.half_width:{form}}"
    return f"{found.mean:{form}}{spread} ({len(cell.results)})"


def _row(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |"


def _csv_row(section: Section, cell: Cell) -> list[str | int]:
    numbers = [end for value, _ in NUMBERS.values() for end in _ends(cell.over(value))]
    first: list[str | int] = [section.task, section.variant, cell.approach, cell.num_parts, len(cell.results)]
    seconds = cell.over(lambda result: result.seconds).mean
    return [*first, *numbers, f"{seconds:.1f}", cell.results[0].experiment.hash]


def _ends(found: Interval) -> tuple[str, str]:
    return f"{found.mean:.6g}", "" if found.half_width is None else f"{found.half_width:.6g}"
