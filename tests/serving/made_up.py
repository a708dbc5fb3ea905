"""A report about nothing, for tests of the page alone."""

import io
import math
from dataclasses import replace
from typing import Any

import pytest

from postprior.serving.report import Bin, Detail, Event, Example, HeldOut, Layer, Learned, Report

Image = pytest.importorskip("PIL.Image", reason="needs the extra report")


def learned(number: int, name: str | None = None, **changes: Any) -> Learned:
    before = {"nll": 0.4 + 2 / number, "accuracy": 1 - 0.8 / number, "ece": 0.05 / number, "epistemic_share": 0.3}
    after = {"nll": 0.3 + 1 / number, "accuracy": 1 - 0.5 / number, "ece": 0.03 / number}
    surprise = {"nll": 5 * math.sin(number), "epistemic_share": math.cos(number)} if number > 3 else {}
    part = Learned(
        name=name or f"day-{number}", num_examples=100, before=before, after=after, surprise=surprise, kl=900 / number
    )
    return replace(part, **changes)


def event(number: int, **changes: Any) -> Event:
    moved = Detail("moved", f"head from part day-{number - 1} (0a1b2c3d) to part day-{number} (4e5f6a7b)")
    details = (Detail("learned", "100 examples, KL 90 nats"), moved)
    told = Event(
        sequence=number,
        time=f"2026-03-01T{number // 60 % 24:02}:{number % 60:02}:00",
        title=f"Part day-{number} learned",
        tone="good",
        belief=f"{number:064x}",
        details=details,
    )
    return replace(told, **changes)


def png(level: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 8), level).save(file, "PNG")
    return file.getvalue()


def held_out(pictures: bool = True) -> HeldOut:
    examples = [
        Example(
            number=7 * i,
            truth=f"class {i % 3}",
            guesses=((f"class {i % 2}", 0.41), ("class 2", 0.38)),
            right=i % 2 == i % 3,
            doubt=1.6 - 0.02 * i,
            share=0.4,
            picture=png(6 * i) if pictures else None,
            values=() if pictures else (str(i), f"{i / 7:.5g}"),
        )
        for i in range(40)
    ]
    bins = [Bin((i + 0.4) / 15, min(1.0, (i + 0.4) / 15 * 0.9), 3 * i * i) for i in range(3, 15)]
    measures = {"num_examples": 1234.0, "nll": 0.31, "accuracy": 0.912, "ece": 0.021}
    return HeldOut(
        measures=measures,
        bins=tuple(bins),
        examples=tuple(examples),
        doubt="the entropy of the prediction, in nats",
        columns=() if pictures else ("age", "height"),
    )


def report(num_parts: int = 6, **changes: Any) -> Report:
    failed = event(
        num_parts + 1,
        title="Part odd stopped by its gate",
        tone="bad",
        marks=("candidate",),
        details=(Detail("gate failed", "nll<=champion+0.01: nll 2.1 is not <= 0.31", "bad"),),
    )
    whole = Report(
        title="digits",
        as_of="2026-03-01T12:00:00.000000+00:00",
        belief="ab" * 32,
        marks=("head", "champion"),
        facts=[("Parts", str(num_parts)), ("Examples", "600"), ("Accuracy, held out", "0.912")],
        parts=[learned(i) for i in range(1, num_parts + 1)],
        threshold=4.0,
        layers=[Layer("features.0", 420.0, 320), Layer("classifier", 81.5, 650)],
        layers_about="part day-5 (01234567)",
        events=[failed, *(event(i) for i in range(num_parts, 0, -1))],
        held_out=held_out(),
    )
    return replace(whole, **changes)
