"""The README's tour of a store runs as it stands, in an empty folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from postprior.pipeline.store import Store

README = Path(__file__).parents[2] / "README.md"
TOUR = re.compile(r"^## Your own data, every night$.*?^```bash\n(?P<block>.*?)^```$", re.M | re.S)
NIGHTS = [f"night-{night}" for night in range(10)]


@pytest.fixture
def block() -> str:
    found = TOUR.search(README.read_text(encoding="utf-8"))
    assert found is not None, "the README has no tour"
    return found["block"]


def test_the_tour(block: str, tmp_path: Path) -> None:
    for package in ("sklearn", "onnxscript", "onnxruntime", "jinja2"):
        pytest.importorskip(package)
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # With -e every command must end in 0, but for the one whose status the block itself prints.
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": places, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("gate      passed") == len(NIGHTS)
    assert ran.stdout.count("exit status 3\n") == 1
    assert "\x1b" not in ran.stdout + ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["bad.npz", "digits", "digits.onnx", "heldout.npz", "report.html"]
    )
    store = Store.open(tmp_path / "digits")
    assert [record["id"] for record in store.parts("head")] == NIGHTS[:-2]
    assert [record["id"] for record in store.parts("candidate")] == [*NIGHTS, "bad"]
    assert store.aliases["champion"] == store.aliases["head"]
    assert [entry.event for entry in store.log()] == ["rollback", *["absorb"] * 11, "init"]
    assert json.loads((tmp_path / "digits/store.json").read_text())["recipe"]["network"] == "mlp"
    assert store.show("candidate")["gate"]["passed"] is False
    assert store.show("head~0")["metrics"]["after"]["accuracy"] > 0.8
