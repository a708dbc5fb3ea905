"""Bad input ends in its documented status and a sentence that helps, and loses nothing."""

import shlex
import sys
from pathlib import Path

import pytest
from bad_inputs import CASES
from bad_makers import MODULES, MOST_BYTES, Bad
from prepared_store import Run, content

FEWEST = 60


def test_there_are_enough() -> None:
    assert len(CASES) >= FEWEST


@pytest.mark.parametrize("bad", CASES.values(), ids=CASES)
def test_bad_input(bad: Bad, place: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("POSTPRIOR_MAX_BYTES", str(MOST_BYTES))
    for module in MODULES:
        monkeypatch.delitem(sys.modules, module, raising=False)
    if bad.prepare is not None:
        bad.prepare(place)
    before = content(place)
    ran = run(*shlex.split(bad.line))
    said = ran.out + ran.err
    assert ran.code == bad.code, said
    assert [word for word in bad.words if word not in said] == [], said
    assert "Traceback" not in said
    assert ran.out == "" or ran.code == 7, "nothing but results goes to stdout"
    assert content(place) == before
