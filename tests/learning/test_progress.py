"""What people see of an absorption: a bar on a terminal, a line now and then in a log, nothing unless they ask."""

import pytest
import torch
from torch import nn

import postprior
from postprior.learning import progress
from postprior.learning.training import Progress

PART = (torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3)


def absorbed(**options: bool) -> postprior.Learner:
    learner = postprior.Learner(nn.Linear(2, 3), epochs=2, batch_size=10, **options)
    learner.absorb(PART)
    return learner


def test_a_log_gets_a_line_when_one_is_due(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.shown("part 7") as tell:
        for step, now[0] in ((1, 5.0), (2, 10.0), (3, 11.0), (4, 20.5)):
            tell(Progress(step, 9, 0.5 / step))
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        "part 7: 0.2500 nats an example, step 2 of 9",
        "part 7: 0.1250 nats an example, step 4 of 9",
    ]
    assert shown.out == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # what rich takes for a terminal whatever standard error is
    monkeypatch.setenv("COLUMNS", "100")
    absorbed(progress=True)
    shown = capsys.readouterr()
    assert "part 1: " in shown.err
    assert "nats an example" in shown.err
    assert "4/4" in shown.err
    assert shown.out == ""


def test_nothing_is_shown_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    absorbed()
    assert capsys.readouterr() == ("", "")
