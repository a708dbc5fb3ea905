"""Merging and forgetting through the store: exact where Bayes' rule is, refused where evidence would count twice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_store import part, small_store
from torch import Tensor, nn

import postprior
from postprior import Store
from postprior.errors import BeliefError, StoreError
from postprior.families import Factorized
from postprior.learning.absorb import Update
from postprior.networks.belief import Belief
from postprior.pipeline import absorbing

NOISE_SD, COUNT = 0.7, 24


def design(seed: int) -> tuple[Tensor, Tensor]:
    """Linear data on an orthogonal design, where the factorised posterior is the true one."""
    g = torch.Generator().manual_seed(seed)
    x = COUNT**0.5 * torch.linalg.qr(torch.randn(COUNT, 3, generator=g).double())[0]
    return x, x @ torch.tensor([[0.8], [-1.5], [0.3]]).double() + NOISE_SD * torch.randn(COUNT, 1, generator=g).double()


def exact(network: nn.Module, *, prior: Belief, part: postprior.Part, **_: Any) -> tuple[Belief, Update]:
    """Bayes' rule in closed form, in the place of learning by gradients."""
    batch = next(iter(part.batches(COUNT)))
    x, y = batch.args[0], batch.targets
    assert y is not None
    old = prior.weights["weight"]
    precision = old.sd()[0] ** -2 + x.square().sum(0) / NOISE_SD**2
    mean = (old.mean()[0] * old.sd()[0] ** -2 + (x.T @ y)[:, 0] / NOISE_SD**2) / precision
    family = Factorized(mean[None], -0.5 * precision.log()[None])
    counts = {"num_parts": prior.num_parts + 1, "num_examples": prior.num_examples + len(x)}
    update = Update(None, 0.0, 0.0, 1.0, len(x), 0, 0.0, (), False)
    return replace(prior, weights={"weight": family}, **counts), update


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of exact beliefs about a line."""
    monkeypatch.setattr(absorbing, "absorb", exact)
    network = nn.Linear(3, 1, bias=False).double()
    noise = postprior.Gaussian(sd=NOISE_SD)
    return Store.create(tmp_path / "line", network, likelihood=noise, normalise="none", prior_sd=2.0)


def assert_same(one: Belief, other: Belief) -> None:
    torch.testing.assert_close(one.mean(), other.mean(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(one.sd(), other.sd(), rtol=1e-6, atol=1e-6)
    assert (one.num_parts, one.num_examples) == (other.num_parts, other.num_examples)


def test_four_workers_merged_are_the_sequence(line: Store) -> None:
    line.absorb(design(9), part="shared")
    base = line.aliases["head"]
    for worker in range(4):
        line.absorb(design(worker), part=f"part {worker}", branch=f"worker-{worker}", onto=base)
    entry = line.merge([f"worker-{worker}" for worker in range(4)], base=base)
    assert entry.belief == line.aliases["head"] == line.aliases["candidate"]
    assert line.aliases["champion"] == base
    merged = line.belief()
    line.rollback(base)
    for worker in range(4):
        line.absorb(design(worker), part=f"part {worker}")
    assert_same(merged, line.belief())
    assert merged.num_parts == 5
    manifest = line.show(entry.belief or "")
    assert manifest["kind"] == "merge"
    assert [record["id"] for record in line.parts(entry.belief or "")] == ["shared", *(f"part {w}" for w in range(4))]
    assert line.verify() == []


@pytest.mark.parametrize("forgotten", ["a", "b", "c"])
def test_a_part_forgotten_was_never_seen(line: Store, forgotten: str) -> None:
    first, names = line.aliases["head"], {"a": 0, "b": 1, "c": 2}
    for name, seed in names.items():
        line.absorb(design(seed), part=name)
    champion = line.aliases["champion"]
    line.forget(forgotten)
    without = line.belief()
    assert line.aliases["champion"] == champion
    assert line.show()["forgotten"]["approximate"] is True
    assert [record["id"] for record in line.parts()] == [name for name in names if name != forgotten]
    with pytest.raises(StoreError, match=f"no part '{forgotten}' is counted"):
        line.forget(forgotten)
    line.rollback(first)
    for name, seed in names.items():
        if name != forgotten:
            line.absorb(design(seed), part=name)
    assert_same(without, line.belief())


def test_a_forgotten_part_may_come_back(line: Store) -> None:
    line.absorb(design(0), part="a")
    line.absorb(design(1), part="b")
    whole = line.belief()
    line.forget("a")
    line.absorb(design(0), part="a")
    assert_same(whole, line.belief())


def test_merges_of_merges_count_every_part_once(line: Store) -> None:
    base = line.aliases["head"]
    for worker in range(4):
        line.absorb(design(worker), part=f"part {worker}", branch=f"w{worker}", onto=base)
    line.merge(["w0", "w1"], base=base, into="left")
    line.merge(["w2", "w3"], base=base, into="right")
    line.merge(["left", "right"], base=base)
    merged = line.belief()
    line.rollback(base)
    for worker in range(4):
        line.absorb(design(worker), part=f"part {worker}")
    assert_same(merged, line.belief())
    with pytest.raises(StoreError, match="part part 0 is in both left and w0, and would count twice"):
        line.merge(["left", "w0"], base=base, into="twice")


def test_what_cannot_be_merged_is_refused(tmp_path: Path) -> None:
    store = small_store(tmp_path, like=part(50))
    first = store.aliases["head"]
    base = store.absorb(part(0), part="a").belief
    for seed in (1, 2):
        store.absorb(part(seed), part=f"p{seed}", branch=f"w{seed}", onto=base)
    store.absorb(part(3), part="p3", branch="elsewhere", onto=first)
    store.absorb(part(1), part="p1 again", branch="same", onto=base)
    entries = len(store.log())
    refused = {
        (("w1",), base): "two beliefs or more, each once",
        (("w1", "w1"), base): "two beliefs or more, each once",
        (("w1", "w2"), first): "part a is in both w1 and w2",
        (
            ("w1", "elsewhere"),
            base,
        ): f"elsewhere did not grow from .*the last that all of them grew from is {first[:12]}",
        (("w1", base), base): "did not grow from",
        (("w1", "same"), base): "part p1 again is in both w1 and same",
        (("w1", "nobody"), base): "nobody names no belief",
    }
    for (refs, root), message in refused.items():
        with pytest.raises(StoreError, match=message):
            store.merge(refs, base=root)
    store.absorb(part(7), part="p7")
    with pytest.raises(StoreError, match=r"head has learned what these beliefs have not.*--into"):
        store.merge(["w1", "w2"], base=base)
    store.merge(["w1", "w2"], base=base, into="merged")
    assert len(store.log()) == entries + 2


def test_branches_that_normalise_differently_are_not_merged(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    for seed in (1, 2):
        store.absorb(part(seed), part=f"p{seed}", branch=f"w{seed}", onto="champion")
    with pytest.raises(StoreError, match=r"w1 and w2 normalised their data differently.*--like"):
        store.merge(["w1", "w2"], base="champion")


def test_flows_are_neither_merged_nor_forgotten(tmp_path: Path) -> None:
    store = small_store(tmp_path, family="multiplicative", like=part(50))
    for seed in (1, 2):
        store.absorb(part(seed), part=f"p{seed}", branch=f"w{seed}", onto="champion")
    with pytest.raises(BeliefError, match="Multiplicative beliefs have no product in closed form"):
        store.merge(["w1", "w2"], base="champion")
    store.absorb(part(3), part="p3")
    with pytest.raises(BeliefError, match=r"part p3 cannot be divided out: .*rollback"):
        store.forget("p3")


def test_more_evidence_than_there_is_cannot_be_forgotten(line: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    line.absorb(design(0), part="a")
    line.absorb(design(1), part="b")
    monkeypatch.setattr(absorbing, "absorb", _unlearning)
    line.absorb(design(2), part="c")
    with pytest.raises(
        BeliefError, match="part a cannot be divided out: weight: 3 of 3 weights would have no positive"
    ):
        line.forget("a")


def _unlearning(network: nn.Module, *, prior: Belief, **_: Any) -> tuple[Belief, Update]:
    """Learning by gradients may well end less sure than it began; this one ends far less sure."""
    wide = Factorized(prior.weights["weight"].mean(), torch.full((1, 3), 3.0).double())
    return replace(prior, weights={"weight": wide}), Update(None, 0.0, 0.0, 1.0, COUNT, 0, 0.0, (), False)


def test_what_a_worker_unlearned_is_refused_or_dropped(line: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    base = line.aliases["head"]
    line.absorb(design(0), part="a", branch="w0", onto=base)
    expected = line.belief("w0")
    monkeypatch.setattr(absorbing, "absorb", _unlearning)
    line.absorb(design(1), part="b", branch="w1", onto=base)
    line.absorb(design(2), part="c", branch="w2", onto=base)
    with pytest.raises(BeliefError, match=r"3 of 3 weights would have no positive precision\. .*--drop-negative"):
        line.merge(["w1", "w2"], base=base)
    entry = line.merge(["w0", "w1"], base=base, drop_negative=True)
    assert line.show(entry.belief or "")["set_back"] == 3
    torch.testing.assert_close(line.belief().sd(), expected.sd(), rtol=1e-9, atol=1e-9)


def test_learned_beliefs_merge_close_to_the_sequence(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 60, "temperature": 1.0, "like": part(50, 500), "schedule": "linear"}
    store = small_store(tmp_path, **options)
    base = store.absorb(part(0, 300), part="shared").belief
    for seed in (1, 2):
        store.absorb(part(seed, 300), part=f"p{seed}", branch=f"w{seed}", onto=base)
    store.merge(["w1", "w2"], base=base, into="merged")
    for seed in (1, 2):
        store.absorb(part(seed, 300), part=f"p{seed}")
    merged, sequence, alone = (store.evaluate(part(9, 1000), at=ref)["nll"] for ref in ("merged", "head", base))
    assert merged < alone
    assert merged == pytest.approx(sequence, abs=0.05)
