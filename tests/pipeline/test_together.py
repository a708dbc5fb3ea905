"""Parts absorbed at once by workers in other processes: each counts once, whoever dies."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from small_store import content, part, part_file, small_store

from postprior.errors import BeliefError, PartError, RepeatedPartError, SettingError, StoreError, WorkersError
from postprior.pipeline import together

pytest.importorskip("ray", reason="needs the extra parallel")

CROWD: dict[str, Any] = {"parallel": "local", "workers": 2}


DEADLY = """
import os, signal
from pathlib import Path
import numpy as np

def make():
    here = Path(__file__).parent
    if not (here / "died").exists():
        (here / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with np.load(here / "part-9.npz") as file:
        return file["x"], file["y"]
"""


def test_parts_absorbed_at_once_each_count_once_though_a_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small_store(tmp_path, normalise="none", epochs=10)
    first = store.aliases["head"]
    files: list[Any] = [part_file(tmp_path, seed) for seed in range(3)]
    part_file(tmp_path, 9)
    (tmp_path / "deadly_part.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    files.append("deadly_part:make")
    heard: list[tuple[int, int]] = []
    found = store.absorb_together(files, evaluate=part(60), rounds=1, progress=lambda *n: heard.append(n), **CROWD)
    assert (tmp_path / "died").exists()
    manifest = store.show(found.belief)
    fingerprints = [record["fingerprint"] for record in manifest["parts"]]
    assert len(set(fingerprints)) == 4
    assert [record["id"] for record in store.parts()] == list(found.parts)
    assert (manifest["kind"], manifest["rounds"], manifest["parent"]) == ("absorb-together", 1, first)
    assert store.aliases == dict.fromkeys(("head", "champion", "candidate"), found.belief)
    belief = store.belief()
    assert (belief.num_parts, belief.num_examples) == (4, 240)
    assert heard[-1] == (12, 12)
    assert found.after is not None
    assert found.after["nll"] < store.evaluate(part(60), at=first)["nll"]
    assert store.verify() == []
    with pytest.raises(RepeatedPartError, match=r"part-1"):
        store.absorb(files[1], part="again")
    with pytest.raises(StoreError, match="was absorbed together with others"):
        store.forget("part-1")
    assert store.absorb(part(70), part="next").promoted


def test_what_cannot_be_absorbed_at_once_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path, like=part(50))
    before = content(tmp_path)
    bad, labels = part(3)
    refused: list[tuple[list[Any], dict[str, Any], type[Exception], str]] = [
        ([part(1)], CROWD, SettingError, "give two or more"),
        ([part(1), part(2)], {"parallel": "slurm"}, SettingError, "expected 'local'"),
        ([part(1), part(2)], {**CROWD, "workers": 0}, SettingError, "workers=0"),
        ([part(1), part(2)], {**CROWD, "gate": "nll<1"}, SettingError, "needs data to judge by"),
        ([part(1), part(2)], {**CROWD, "rounds": -1}, SettingError, "rounds=-1"),
        ([part(1), (bad * float("nan"), labels)], CROWD, PartError, "nan"),
    ]
    for data, options, kind, message in refused:
        with pytest.raises(kind, match=message):
            store.absorb_together(data, **options)
    assert content(tmp_path) == before


class Here:
    """What stands for workers in other processes."""

    def map(self, tasks: Sequence[Callable[[], Any]], done: Callable[[int], None] | None = None) -> list[Any]:
        return [task() for task in tasks]


def test_a_part_counts_once_among_those_absorbed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "workers", lambda *_, **__: nullcontext(Here()))
    store = small_store(tmp_path, like=part(50))
    store.absorb(part(0), part="known")
    with pytest.raises(RepeatedPartError, match="holds exactly the examples of part known"):
        store.absorb_together([part(1), part(0)])
    with pytest.raises(RepeatedPartError, match="holds exactly the examples of part"):
        store.absorb_together([part(1), part(2), part(1)])
    found = store.absorb_together([part(1), part(2)], evaluate=part(3), gate="nll<=0")
    assert not found.passed
    assert len(store.parts()) == 1
    assert len(store.parts("candidate")) == 3
    page = store.report(tmp_path / "report.html", at="candidate").read_text()
    assert all(record["id"] in page for record in store.parts("candidate"))


def test_flows_and_learning_points_are_refused_before_anything_is_learned(tmp_path: Path) -> None:
    for folder, plan in (("flow", {"family": "multiplicative"}), ("point", {"family": "point"})):
        store = small_store(tmp_path / folder, like=part(50), **plan)
        with pytest.raises(BeliefError, match="no product"):
            store.absorb_together([part(1), part(2)], **CROWD)


def test_a_cluster_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("ray client connection timeout")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(WorkersError, match="no cluster answers at ray://nowhere:10001"):
        small_store(tmp_path).absorb_together([part(1), part(2)], parallel="ray://nowhere:10001")
