"""Runs in other processes give what they give here, and one that fails takes no other with it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_experiments import experiment, images

from postprior.data import datasets
from postprior.errors import FailedRunsError
from postprior.paper import records
from postprior.paper.runs import run_all


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny images where other processes look for MNIST."""
    tiny, path = images(), tmp_path / "data" / datasets.DATASETS["mnist"].stored_as
    path.parent.mkdir()
    splits = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(path, **{name: getattr(tiny, name) for name in splits})
    path.with_suffix(".json").write_text(json.dumps({"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}))
    monkeypatch.setenv("POSTPRIOR_DATA", str(path.parent))


@pytest.mark.parametrize("how", [{"jobs": 2}, {"jobs": 2, "parallel": "ray"}], ids=["processes", "ray"])
def test_runs_elsewhere_are_the_runs_here(how: dict[str, Any], mnist: None, tmp_path: Path) -> None:
    if "parallel" in how:
        pytest.importorskip("ray", reason="needs the extra parallel")
    good, other = experiment(), experiment("ft", "point")
    here = run_all([good, other], 1, tmp_path / "here")
    bad = replace(good, name="mnist-bad-t2-quick", settings=replace(good.settings, learning_rate=1e30))
    with pytest.raises(FailedRunsError, match=r"1 of 3 runs failed; the others are kept\. .*became"):
        run_all([good, bad, other], 1, tmp_path / "elsewhere", **how)
    kept = [records.read(records.path_of(tmp_path / "elsewhere", each, 0)) for each in (good, other)]
    assert [result.by_part for result in kept] == [result.by_part for result in here]
    again = run_all([good, other], 1, tmp_path / "elsewhere", load=lambda name: pytest.fail(f"{name} is not needed"))
    assert [result.by_part for result in again] == [result.by_part for result in here]
