"""Whether a new belief may take the champion's place: comparisons of its measures with numbers or the champion's."""

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from postprior.errors import SettingError
from postprior.pipeline.measures import NAMES, Measures

NUMBER = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?"
CONDITION = re.compile(
    rf"\s*(?P<name>[a-z_]+)\s*(?P<compare><=|>=|<|>)\s*"
    rf"(?:(?P<champion>champion)\s*(?:(?P<sign>[+-])\s*(?P<margin>{NUMBER}))?|(?P<number>-?(?:{NUMBER})))\s*"
)
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
EXAMPLE = "'nll<=champion+0.01' or 'accuracy>=0.9 and nll<champion'"


@dataclass(frozen=True)
class Condition:
    """One comparison."""

    name: str
    compare: str
    relative: bool
    """Whether the bound is counted from the champion's own measure."""
    bound: float

    def limit(self, champion: Measures) -> float:
        """What the candidate is compared with."""
        return self.bound + (champion[self.name] if self.relative else 0.0)


@dataclass(frozen=True)
class Verdict:
    """What came of a gate."""

    gate: str
    passed: bool
    reason: str
    """Every comparison with its numbers."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"gate": self.gate, "passed": self.passed, "reason": self.reason}


def parse(gate: str) -> list[Condition]:
    """The conditions of a gate, all of which must hold; a SettingError where it cannot be read."""
    return [_condition(gate, text) for text in re.split(r"\band\b", gate)]


def judge(gate: str, candidate: Measures, champion: Measures) -> Verdict:
    """Whether every condition holds; a measure that is not there, or not a number, never passes."""
    passed, reasons = True, list[str]()
    for condition in parse(gate):
        known = condition.name in candidate and (not condition.relative or condition.name in champion)
        if not known:
            either = sorted(candidate.keys() & champion.keys() if condition.relative else candidate)
            passed = False
            reasons.append(f"{condition.name} was not measured, or was not finite (there are {', '.join(either)})")
            continue
        value, limit = candidate[condition.name], condition.limit(champion)
        holds = math.isfinite(value) and COMPARISONS[condition.compare](value, limit)
        passed = passed and holds
        reasons.append(f"{condition.name} {value:.5g} is {'' if holds else 'not '}{condition.compare} {limit:.5g}")
    return Verdict(gate, passed, "; ".join(reasons))


def _condition(gate: str, text: str) -> Condition:
    match = CONDITION.fullmatch(text)
    if match is None:
        raise SettingError(f"gate {gate!r}: {text.strip()!r} is no comparison; expected such as {EXAMPLE}")
    if match["name"] not in NAMES:
        raise SettingError(f"gate {gate!r}: nothing measures {match['name']}: expected one of {', '.join(NAMES)}")
    relative = match["champion"] is not None
    bound = float(match["number"] or match["margin"] or 0) * (-1 if match["sign"] == "-" else 1)
    return Condition(match["name"], match["compare"], relative, bound)
