"""Several parts at once from the command line, and beliefs merged though one came out less sure."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from prepared_store import NETWORK, QUICK, Run, content, write_npz

from postprior.pipeline import combining, together
from postprior.pipeline.store import Store
from postprior.store.journal import Entry


class Here:
    """What stands for workers in other processes."""

    def map(self, tasks: Sequence[Callable[[], Any]], done: Callable[[int], None] | None = None) -> list[Any]:
        return [task() for task in tasks]


@pytest.fixture
def store(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A new one in the folder where one stands, with three parts and held-out data beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(together, "workers", lambda *_, **__: nullcontext(Here()))
    for seed in range(4):
        write_npz(tmp_path / f"p{seed}.npz", seed)
    assert run("init", "store", *NETWORK, *QUICK, "--like", "p3.npz").code == 0
    return Store.open(tmp_path / "store")


def test_parts_are_learned_at_once_and_told(store: Store, run: Run) -> None:
    judged = ("--evaluate", "p3.npz", "--gate", "nll<=champion+9")
    ran = run("absorb", "store", "p0.npz", "p1.npz", "--parallel", "local", "--rounds", "1", *judged, "--json")
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert (said["parts"], said["passed"], said["belief"]) == (["p0", "p1"], True, store.aliases["head"])
    assert said["aliases"] == store.aliases
    ran = run("absorb", "store", "p2.npz", "p0.npz", "--parallel", "local")
    assert ran.code == 4
    assert "p0" in ran.err


def test_a_failed_gate_of_many_parts_is_told_as_that_of_one(store: Store, run: Run) -> None:
    head = store.aliases["head"]
    ran = run("absorb", "store", "p0.npz", "p1.npz", "--parallel", "local", "--evaluate", "p3.npz", "--gate", "nll<=0")
    assert ran.code == 3
    assert "FAILED: nll" in ran.out
    assert "as candidate alone" in ran.out
    assert store.aliases["head"] == head
    assert store.show("candidate")["rounds"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("p0.npz", "p1.npz"), "--parallel local"),
        (("p0.npz", "p1.npz", "--parallel", "local", "--part", "a"), "--part is of one part"),
        (("p0.npz", "p1.npz", "--parallel", "local", "--allow-repeat"), "--allow-repeat is of one part"),
        (("p0.npz", "--parallel", "local"), "give two or more"),
    ],
)
def test_what_makes_no_sense_for_many_parts_is_refused(
    store: Store, run: Run, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    before = content(tmp_path / "store")
    ran = run("absorb", "store", *options)
    assert ran.code == 2
    assert words in ran.err
    assert content(tmp_path / "store") == before


def test_what_came_out_less_sure_is_dropped_on_request_alone(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, merge = list[bool](), combining.merge

    def spy(*arguments: Any, drop_negative: bool) -> Entry:
        asked.append(drop_negative)
        return merge(*arguments, drop_negative=drop_negative)

    monkeypatch.setattr(combining, "merge", spy)
    for name in ("p0", "p1"):
        assert run("absorb", "store", f"{name}.npz", "--branch", name, "--onto", "champion").code == 0
    asking = ("merge", "store", "p0", "p1", "--base", "champion", "--into")
    assert run(*asking, "all").code == 0
    assert run(*asking, "most", "--drop-negative").code == 0
    assert asked == [False, True]
    assert [record["id"] for record in store.parts("most")] == ["p0", "p1"]
