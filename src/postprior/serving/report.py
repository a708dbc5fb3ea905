"""The report of a store: one HTML file with all it shows inside, which asks nothing of the network."""

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from postprior.errors import MissingExtraError, StoreError
from postprior.store.files import naming, staged, sync

ASSETS = Path(__file__).with_name("assets")

Tone = Literal["plain", "good", "warning", "bad"]

MEASURES = {"accuracy": "Accuracy", "rmse": "RMSE", "nll": "NLL, nats an example", "ece": "ECE"}
"""What is drawn by part, and in the table, where any part has it."""

SURPRISES: tuple[tuple[str, str, Literal["before", "after"]], ...] = (
    ("nll", "NLL", "after"),
    ("epistemic_share", "epistemic share", "before"),
)
"""What parts are compared by, what it is called, and the color of its line."""

FULLY_SHOWN = 30
"""Events that are open to view; the rest unfolds."""

WIDE_RANGE = 50.0
"""Ratio of largest to least from which on values are drawn on a logarithmic axis, as the first part dwarfs the rest."""

LOOKS = 8
"""Warnings at the top; the lineage has them all."""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """One part that the belief, or one before it, has met."""

    name: str
    num_examples: int
    before: Mapping[str, float]
    """Measures of the part under the belief that had not seen it."""
    after: Mapping[str, float] = field(default_factory=dict[str, float])
    """Measures of held-out data under the belief that had; empty where there were none."""
    surprise: Mapping[str, float] = field(default_factory=dict[str, float])
    """How many robust deviations each watched measure lay above its usual value."""
    kl: float | None = None
    """From the belief before, in nats."""
    remarks: tuple[str, ...] = ()
    stopped: bool = False
    """Whether its gate stopped it: the belief went on without it."""


@dataclass(frozen=True)
class Detail:
    """Something to be said of an event; the badge says in a word or two what it is about."""

    badge: str
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One entry of the journal."""

    sequence: int
    time: str
    title: str
    tone: Tone
    belief: str | None = None
    """The one that it made."""
    marks: tuple[str, ...] = ()
    """The aliases that point there now."""
    details: tuple[Detail, ...] = ()


@dataclass(frozen=True)
class Layer:
    """How far the belief about one layer moved."""

    name: str
    nats: float
    num_weights: int


@dataclass(frozen=True)
class Bin:
    """Predictions of about the same confidence."""

    confidence: float
    accuracy: float
    count: int


@dataclass(frozen=True, kw_only=True)
class Example:
    """A prediction that the belief is in doubt about."""

    number: int
    """Its place in the data, from 0."""
    truth: str
    guesses: tuple[tuple[str, float | None], ...]
    """What was said, each with its probability where it has one; the most probable first."""
    right: bool | None
    """None where right and wrong mean nothing."""
    doubt: float
    """In the unit that ``HeldOut`` names."""
    share: float
    """How much of the doubt is about the weights, and would go with more data."""
    picture: bytes | None = None
    """A PNG."""
    values: tuple[str, ...] = ()
    """One for each of the columns that ``HeldOut`` names."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """How the belief meets data that it has not learned."""

    measures: Mapping[str, float]
    bins: tuple[Bin, ...]
    """Empty where predictions are not of classes."""
    examples: tuple[Example, ...]
    """The most doubtful first."""
    doubt: str
    """What their doubt is, and its unit."""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that the page shows."""

    title: str
    as_of: str
    """When the newest entry of the journal was written: the page of one store is the same whenever it is made."""
    belief: str
    marks: tuple[str, ...]
    facts: Sequence[tuple[str, str]]
    parts: Sequence[Learned]
    """In the order in which they were met."""
    threshold: float
    """The surprise above which someone should look."""
    layers: Sequence[Layer]
    layers_about: str
    """Which belief they moved from, or why there are none."""
    events: Sequence[Event]
    """The newest first."""
    held_out: HeldOut | None = None
    """None where no held-out data was given."""


def write(report: Report, path: str | os.PathLike[str]) -> Path:
    """Make the page and put it where ``path`` says, whole or not at all."""
    path = check_place(path)
    content = page(report).encode()
    with naming(path), staged(path.parent) as temporary:
        temporary.write_bytes(content)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    return path


def check_place(path: str | os.PathLike[str]) -> Path:
    """The path, or a StoreError where no file can be put there: to be asked before the long work."""
    path = Path(path)
    if not path.parent.is_dir():
        raise StoreError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise StoreError(f"{path} is a folder: give the name of a file in it, such as report.html")
    return path


def page(report: Report) -> str:
    """The whole HTML file."""
    markup, environment = _jinja()
    style = _asset("uPlot.min.css") + _asset("report.css")
    scripts = [_asset("uPlot.iife.min.js"), _asset("report.js")]
    template = environment.from_string(_asset("report.html.j2"))
    measures = [name for name in MEASURES if any(name in {**part.before, **part.after} for part in report.parts)]
    charts = _charts(report, measures)
    told = [(event, detail) for event in report.events for detail in event.details]
    return template.render(
        report=report,
        charts={chart.id: chart for chart in charts},
        data={"parts": [part.name for part in report.parts], "charts": {chart.id: asdict(chart) for chart in charts}},
        measures={name: MEASURES[name] for name in measures},
        surprises={name: label for name, label, _ in SURPRISES},
        looks=[(event, detail) for event, detail in told if detail.tone in ("warning", "bad")],
        num_looks=LOOKS,
        fully_shown=FULLY_SHOWN,
        policy=_policy([style], scripts),
        style=markup(style),
        scripts=[markup(script) for script in scripts],
        licence=_asset("uPlot.LICENSE.txt"),
        version=version("postprior"),
    )


@dataclass(frozen=True)
class _Line:
    label: str
    color: Literal["before", "after", "bad"]
    values: list[float | None]
    """One a part."""


@dataclass(frozen=True)
class _Chart:
    id: str
    title: str
    lines: list[_Line]
    limit: float | None = None
    logarithmic: bool = False

    @property
    def sentence(self) -> str:
        """For those who do not see it."""
        told: list[str] = []
        for line in self.lines:
            known = [(number, value) for number, value in enumerate(line.values, 1) if value is not None]
            (first, begin), (last, end) = known[0], known[-1]
            then = f", {_number(end)} at part {last}" if last > first else ""
            told.append(f"{line.label} {_number(begin)} at part {first}{then}")
        return f"{self.title}, by part: {'; '.join(told)}."


def _charts(report: Report, measures: Sequence[str]) -> list[_Chart]:
    parts = report.parts
    charts = [
        _Chart(
            name,
            MEASURES[name],
            [
                _Line("before", "before", [part.before.get(name) for part in parts]),
                _Line("after", "after", [None if part.stopped else part.after.get(name) for part in parts]),
                _Line("stopped", "bad", [part.after.get(name) if part.stopped else None for part in parts]),
            ],
        )
        for name in measures
    ]
    surprises = [_Line(label, color, [part.surprise.get(name) for part in parts]) for name, label, color in SURPRISES]
    charts.append(_Chart("surprise", "Surprise, deviations", surprises, report.threshold))
    charts.append(
        _Chart("kl", "KL by part, nats", [_Line("KL", "after", [None if p.stopped else p.kl for p in parts])])
    )
    return [drawn for chart in charts if (drawn := _drawn(chart)).lines]


def _drawn(chart: _Chart) -> _Chart:
    """The chart without lines that have no value, and on the axis that suits its values."""
    lines = [line for line in chart.lines if any(value is not None for value in line.values)]
    values = [value for line in lines for value in line.values if value is not None]
    wide = bool(values) and min(values) > 0 and max(values) / min(values) >= WIDE_RANGE
    title = f"{chart.title} (logarithmic)" if wide else chart.title
    return replace(chart, title=title, lines=lines, logarithmic=wide)


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Nothing is fetched, and only what stands here under its hash is run: a name that broke out would do nothing."""

    def hashed(texts: Sequence[str]) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return (
        f"default-src 'none'; img-src data:; style-src {hashed(styles)}; script-src {hashed(scripts)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    # HTML parsers turn every line ending into this one, which the hashes have to agree with.
    return (ASSETS / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _jinja() -> tuple[Callable[[str], str], Any]:
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtraError(f"the report needs jinja2 ({error}): pip install 'postprior[report]'") from error
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": _number,
        "short": _short,
        "png": _png,
        "percent": _percent,
        "day": _day,
        "said": _said,
    }
    return Markup, environment


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f}%"


def _short(id: str) -> str:
    return id[:8]


def _day(time: str) -> str:
    """To the minute, in the store's own clock, which is UTC."""
    return time[:16].replace("T", " ")


def _said(measure: str) -> str:
    """A measure's name within a sentence."""
    known = {"nll": "NLL", "ece": "ECE", "rmse": "RMSE", "brier": "Brier score", "num_examples": "examples"}
    return known.get(measure, measure.replace("_", " "))


def _png(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
