"""Gates: what may stand in one, and what passes."""

import math

import pytest

from postprior.errors import SettingError
from postprior.pipeline.gate import judge, parse

CHAMPION = {"nll": 0.5, "accuracy": 0.9}
CASES = {
    ("nll<=champion+0.01", 0.51): True,
    ("nll<=champion+0.01", 0.5101): False,
    ("nll < champion", 0.5): False,
    ("nll<champion - 1e-3", 0.4989): True,
    ("nll<=0.6", 0.6): True,
    ("nll>=.5", 0.4): False,
    ("nll>-1", 0.0): True,
    ("nll<=champion+0.01 and nll>=0.1", 0.05): False,
    ("nll<=champion+0.01 and nll>=0.1", 0.15): True,
    ("nll<9", math.nan): False,
    ("nll<9", math.inf): False,
}


@pytest.mark.parametrize(("gate", "value"), CASES)
def test_a_gate_compares_with_numbers_and_the_champion(gate: str, value: float) -> None:
    verdict = judge(gate, {"nll": value}, CHAMPION)
    assert verdict.passed is CASES[gate, value]
    assert ("not" in verdict.reason) is not verdict.passed
    assert verdict.to_json() == {"gate": gate, "passed": verdict.passed, "reason": verdict.reason}


def test_what_was_not_measured_never_passes() -> None:
    verdict = judge("rmse<champion", {"nll": 0.1, "rmse": 0.1}, CHAMPION)
    assert not verdict.passed
    assert "rmse was not measured, or was not finite (there are nll)" in verdict.reason
    assert not judge("brier>0", {"nll": 0.1}, {}).passed


@pytest.mark.parametrize(
    "gate",
    ["", "nll", "nll=0.3", "nll<", "nll<=champion*2", "nll<=champion+x", "nll<1 or ece<1", "nll<1 and", "NLL<1", "<1"],
)
def test_what_cannot_be_read_is_no_gate(gate: str) -> None:
    with pytest.raises(SettingError, match=r"is no comparison; expected such as 'nll<=champion\+0\.01'"):
        parse(gate)


def test_a_measure_that_nothing_measures_is_said_at_once() -> None:
    with pytest.raises(SettingError, match=r"nothing measures accurracy: expected one of .*accuracy"):
        parse("nll<1 and accurracy>0.9")
