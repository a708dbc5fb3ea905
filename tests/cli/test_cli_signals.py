"""SIGINT and SIGTERM: what was learned is put away, the status says which it was, and resume ends at the same bytes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import typer
from bad_makers import interrupted
from prepared_store import Run, content

from postprior.cli.stopping import stoppable
from postprior.errors import StoppedError
from postprior.pipeline.store import Store

SLOWLY = ("--set", "steps=300", "--every", "0")
PATIENCE = 120.0


def begun(folder: Path, *line: str) -> "subprocess.Popen[str]":
    """A process that is learning: its first checkpoint is there."""
    asked = [sys.executable, "-m", "postprior", *line]
    process = subprocess.Popen(asked, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ends = time.monotonic() + PATIENCE
    while not (folder / "store/draft/checkpoint.safetensors").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < ends
        time.sleep(0.005)
    return process


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_then_resume_ends_at_the_same_belief(
    place: Path, run: Run, number: signal.Signals, status: int
) -> None:
    shutil.copytree("store", "other")
    expected = Store.open("other").absorb("part-4.npz", steps=300).belief
    before = content(place / "store")
    process = begun(place, "absorb", "store", "part-4.npz", "--json", *SLOWLY)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (status, ""), err
    assert "stopped on request at step" in err
    assert "postprior resume store" in err
    assert "Traceback" not in err
    after = content(place / "store")
    assert {name: data for name, data in after.items() if not name.startswith("draft/")} == before
    ran = run("resume", "store", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["belief"] == expected


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_waiting_for_the_store_ends_at_once(
    place: Path, run: Run, number: signal.Signals, status: int
) -> None:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), number))
    with Store.open("store").archive.locked():
        before = content(place)
        timer.start()
        ran = run("absorb", "store", "part-4.npz", "--wait")
        timer.join()
    assert ran.code == status
    assert "nothing of the part was begun" in ran.err
    assert content(place) == before


def test_wait_waits(place: Path, run: Run) -> None:
    released = threading.Event()

    def hold() -> None:
        with Store.open("store").archive.locked():
            held.set()
            time.sleep(0.3)
            released.set()

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert run("promote", "store").code == 0, "moves need no lock"
    ran = run("absorb", "store", "part-4.npz", "--wait")
    thread.join()
    assert ran.code == 0, ran.err
    assert released.is_set()


def test_a_second_signal_does_not_wait_for_the_step(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted(place)

    def learn() -> None:
        with stoppable("store") as stop:
            assert stop() is False
            signal.raise_signal(signal.SIGINT)
            assert stop() is True
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("the second signal ends it")

    with pytest.raises(typer.Exit) as left:
        learn()
    assert left.value.exit_code == 143
    said = capsys.readouterr().err
    assert "a second signal stops at once" in said
    assert "go on with `postprior resume store`" in said


def test_handlers_are_put_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def learn() -> None:
        with stoppable(str(tmp_path)) as stop:
            stop()
            signal.raise_signal(signal.SIGINT)
            raise StoppedError("stopped at step 3")

    with pytest.raises(typer.Exit) as left:
        learn()
    assert left.value.exit_code == 130
    assert "stopped at step 3" in capsys.readouterr().err
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
