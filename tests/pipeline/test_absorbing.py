"""A part on its way into a store: recognised, scored, learned, judged, recorded; or refused, and nothing changed."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_store import ARGUMENTS, arrays, content, part, part_file, small_store

import postprior
from postprior import Store
from postprior.errors import (
    BusyError,
    DataError,
    DivergedError,
    PartError,
    RepeatedPartError,
    SettingError,
    StoppedError,
    StoreError,
    UnfinishedError,
)
from postprior.networks.belief import digest


def stopping_after(steps: int) -> Callable[[], bool]:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked >= steps

    return stop


def test_a_store_learns_what_the_functions_under_it_learn(tmp_path: Path) -> None:
    store = small_store(tmp_path, normalise="none", seed=3)
    outcomes = [store.absorb(part(seed), part=f"day {seed}") for seed in range(2)]
    torch.manual_seed(0)
    network = store._network()
    belief = postprior.first_belief(network, "factorized")
    settings = postprior.Settings(epochs=3, batch_size=20, learning_rate=0.01, score_samples=0)
    for seed in range(2):
        data, likelihood = postprior.as_part(part(seed)), postprior.Categorical()
        belief, _ = postprior.absorb(network, prior=belief, part=data, likelihood=likelihood, settings=settings, seed=3)
    assert digest(store.belief()) == digest(belief)
    assert store.aliases == dict.fromkeys(("head", "champion", "candidate"), outcomes[1].belief)


def test_a_manifest_tells_all_that_is_to_be_known(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    first = store.aliases["head"]
    outcome = store.absorb(part(0), part="monday", evaluate=part(9), gate="nll<1e6", epochs=2)
    manifest = store.show()
    assert manifest["id"] == outcome.belief
    assert (manifest["parent"], manifest["parents"], manifest["kind"]) == (first, [first], "absorb")
    assert (manifest["family"], manifest["likelihood"], manifest["seed"]) == ("factorized", {"name": "categorical"}, 0)
    assert manifest["network"] == {"address": "mlp", "arguments": ARGUMENTS}
    assert (manifest["part"]["id"], manifest["part"]["num_examples"]) == ("monday", 60)
    assert len(manifest["part"]["fingerprint"]) == 64
    assert (manifest["configuration"]["epochs"], manifest["configuration"]["batch_size"]) == (2, 20)
    assert manifest["metrics"] == {"before": dict(outcome.before), "after": dict(outcome.after or {})}
    assert {"nll", "accuracy", "ece", "brier", "epistemic_share"} <= manifest["metrics"]["after"].keys()
    assert manifest["gate"]["passed"] is True
    assert {"torch", "postprior", "python"} <= manifest["versions"].keys()
    assert store.parts() == [manifest["part"]]
    card = (tmp_path / "store" / "beliefs" / outcome.belief / "README.md").read_text()
    assert "part `monday` of 60 examples" in card


def test_the_new_part_is_scored_under_the_old_belief(tmp_path: Path) -> None:
    store = small_store(tmp_path, like=part(50))
    store.absorb(part(0), part="a")
    expected = store.evaluate(part(1), at="head", num_samples=10)
    assert store.absorb(part(1), part="b").before == expected


def test_a_part_counts_once(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.absorb(part(0), part="monday")
    before = content(tmp_path)
    x, y = part(0)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RepeatedPartError, match=r"part tuesday holds exactly the examples of part monday.*too sure"):
        store.absorb((x[order], y[order]), part="tuesday")
    with pytest.raises(RepeatedPartError, match=r"part monday has a used name, with other data.*--part"):
        store.absorb(part(1), part="monday")
    assert content(tmp_path) == before
    outcome = store.absorb(part(0), part="tuesday", allow_repeat=True)
    assert store.show()["forced"] is True
    assert [(each.part, each.share) for each in outcome.overlaps] == [("monday", 1.0)]
    assert store.show()["overlaps"] == [{"part": "monday", "share": 1.0}]


def test_a_part_that_overlaps_an_earlier_one_is_reported(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    (x, y), (other, labels) = part(0, 2000), part(1, 1000)
    store.absorb((x, y), part="monday")
    mixed = store.absorb((torch.cat([x[:1000], other]), torch.cat([y[:1000], labels])), part="tuesday")
    assert [each.part for each in mixed.overlaps] == ["monday"]
    assert mixed.overlaps[0].share == pytest.approx(0.5, abs=0.1)
    assert "% of its examples were in part monday already" in mixed.overlaps[0].sentence
    assert store.absorb(part(2, 2000), part="wednesday").overlaps == ()


def test_what_was_rolled_back_may_be_absorbed_anew(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    first = store.absorb(part(0), part="monday")
    store.rollback()
    assert store.parts() == []
    assert store.absorb(part(0), part="monday").belief == first.belief


def test_a_failed_gate_keeps_the_candidate_and_moves_nothing_else(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    good = store.absorb(part(0), part="good", evaluate=part(9))
    x, y = part(1)
    bad = store.absorb((x, 1 - y), part="bad", evaluate=part(9), gate="nll<=champion+0.01", epochs=30, temperature=0.01)
    assert bad.passed is False
    assert bad.promoted is False
    assert bad.verdict is not None
    assert "is not <=" in bad.verdict.reason
    assert store.aliases == {"head": good.belief, "champion": good.belief, "candidate": bad.belief}
    again = store.absorb(part(2), part="next", evaluate=part(9), gate="nll<=champion+1")
    assert store.show(again.belief)["parent"] == good.belief
    store.promote(bad.belief)
    assert store.aliases["champion"] == bad.belief


def test_a_part_can_be_learned_without_serving_it_yet(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    first = store.aliases["head"]
    outcome = store.absorb(part(0), part="a", promote=False)
    assert outcome.promoted is False
    assert store.aliases == {"head": outcome.belief, "champion": first, "candidate": outcome.belief}
    assert store.promote().aliases["champion"] == outcome.belief


def test_a_branch_leaves_head_alone(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    head = store.absorb(part(0), part="a").belief
    one = store.absorb(part(1), part="b", branch="trial")
    two = store.absorb(part(2), part="c", branch="trial")
    assert store.show(two.belief)["parent"] == one.belief
    assert store.show(one.belief)["parent"] == head
    assert (store.aliases["head"], store.aliases["champion"], store.aliases["trial"]) == (head, head, two.belief)
    other = store.absorb(part(1), part="b", branch="other", onto="head~1")
    assert store.show(other.belief)["parent"] == store.show(head)["parent"]


BAD_PARTS: dict[str, tuple[Any, str, type[Exception]]] = {
    "a NaN": ((torch.full((5, 3), math.nan), torch.zeros(5).long()), "nan", PartError),
    "a label out of range": ((torch.zeros(5, 3), torch.full((5,), 7)), "7", PartError),
    "another shape": ((torch.zeros(5, 4), torch.zeros(5).long()), "shape", PartError),
    "no example": ((torch.zeros(0, 3), torch.zeros(0).long()), "empty|no example", PartError),
    "no file": ("nowhere.npz", "nowhere.npz", DataError),
}


@pytest.mark.parametrize("bad", BAD_PARTS)
def test_a_bad_part_is_refused_and_leaves_no_trace(tmp_path: Path, bad: str) -> None:
    store = small_store(tmp_path)
    store.absorb(part(0), part="a")
    before = content(tmp_path)
    data, message, kind = BAD_PARTS[bad]
    with pytest.raises((kind, PartError), match=message):
        store.absorb(data, part="bad")
    assert content(tmp_path) == before
    assert store.absorb(part(1), part="b").promoted


def test_held_out_data_that_is_missing_costs_no_learning(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    before = content(tmp_path)
    heard: list[Any] = []
    with pytest.raises(DataError, match=r"missing\.npz"):
        store.absorb(part(0), part="a", evaluate=tmp_path / "missing.npz", progress=heard.append)
    assert heard == []
    assert content(tmp_path) == before


def test_a_gate_needs_something_to_judge_by(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    with pytest.raises(SettingError, match="needs data to judge by"):
        store.absorb(part(0), gate="nll<1")
    with pytest.raises(SettingError, match="is no comparison"):
        store.absorb(part(0), evaluate=part(1), gate="better, please")
    with pytest.raises(SettingError, match="epoch"):
        store.absorb(part(0), epoch=3)
    with pytest.raises(SettingError, match="name of 1 to 200 printable characters"):
        store.absorb(part(0), part="a\nb")


def test_what_diverges_is_no_belief(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    before = content(tmp_path)
    with pytest.raises(DivergedError):
        store.absorb(part(0), part="a", learning_rate=1e30)
    assert content(tmp_path) == before


def test_an_absorption_that_was_stopped_ends_at_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    file = part_file(tmp_path, 0)
    held = part_file(tmp_path, 9)
    asked: dict[str, Any] = {"evaluate": held, "gate": "nll<=champion+9", "epochs": 4}
    whole = small_store(tmp_path / "whole").absorb(file, **asked)
    store = small_store(tmp_path / "stopped")
    with pytest.raises(StoppedError):
        store.absorb(file, stop=stopping_after(5), **asked)
    with pytest.raises(UnfinishedError, match=r"part part-0 was begun and not finished.*resume.*--discard"):
        store.absorb(part(1), part="other")
    with pytest.raises(StoppedError):
        Store.open(tmp_path / "stopped" / "store").resume(stop=stopping_after(3))
    resumed = Store.open(tmp_path / "stopped" / "store").resume()
    assert resumed.belief == whole.belief
    assert resumed.promoted
    folders = [tmp_path / name / "store" / "beliefs" / whole.belief for name in ("whole", "stopped")]
    tensors = [(folder / "belief.safetensors").read_bytes() for folder in folders]
    assert tensors[0] == tensors[1]
    with pytest.raises(StoreError, match="nothing to resume"):
        store.resume()


def test_resuming_needs_the_same_data(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    file = part_file(tmp_path, 0)
    with pytest.raises(StoppedError):
        store.absorb(file, stop=stopping_after(2))
    x, y = arrays(5)
    np.savez(file, x=x, y=y)
    with pytest.raises(StoreError, match="holds other examples than when part part-0 was begun"):
        store.resume()
    x, y = arrays(0)
    np.savez(file, x=x, y=y)
    assert store.resume().part == "part-0"


def test_arrays_are_handed_over_again_to_resume(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    with pytest.raises(StoppedError):
        store.absorb(part(0), part="a", evaluate=part(1), stop=stopping_after(2))
    with pytest.raises(SettingError, match="hand it over again"):
        store.resume()
    with pytest.raises(SettingError, match="hand it over again"):
        store.resume(part(0))
    assert store.resume(part(0), evaluate=part(1)).part == "a"


def test_an_interrupted_absorption_can_be_given_up(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    before = content(tmp_path)
    with pytest.raises(StoppedError):
        store.absorb(part(0), part="a", stop=stopping_after(2))
    with pytest.raises(UnfinishedError):
        store.forget("a")
    assert store.discard() == "a"
    assert content(tmp_path) == before
    with pytest.raises(StoreError, match="nothing to discard"):
        store.discard()


def test_damaged_notes_of_an_interrupted_absorption_are_said_and_given_up(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    with pytest.raises(StoppedError):
        store.absorb(part(0), part="a", stop=stopping_after(2))
    intent = tmp_path / "store" / "draft" / "intent.json"
    intent.write_bytes(intent.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"intent\.json"):
        store.resume()
    store.discard()
    assert store.absorb(part(0), part="a").promoted


def test_one_process_absorbs_at_a_time(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    with Store.open(tmp_path / "store").archive.locked(), pytest.raises(BusyError, match="process"):
        store.absorb(part(0), part="a")
    assert store.absorb(part(0), part="a").promoted


def test_a_network_that_was_handed_over_is_handed_over_again(tmp_path: Path) -> None:
    network = torch.nn.Linear(3, 2)
    store = Store.create(tmp_path / "store", network, epochs=1)
    store.absorb(part(0), part="a")
    with pytest.raises(SettingError, match="hand it over again"):
        Store.open(tmp_path / "store").evaluate(part(1))
    again = Store.open(tmp_path / "store", torch.nn.Linear(3, 2))
    assert again.evaluate(part(1)) == store.evaluate(part(1))


def test_a_first_belief_can_be_pretrained(tmp_path: Path) -> None:
    import safetensors.torch

    network = torch.nn.Linear(3, 2)
    safetensors.torch.save_file({k: v.clone() for k, v in network.state_dict().items()}, tmp_path / "w.safetensors")
    fixed = Store.create(
        tmp_path / "fixed", torch.nn.Linear(3, 2), pretrained=tmp_path / "w.safetensors", pretrained_sd=0.02
    )
    belief = fixed.belief()
    assert torch.equal(belief.mean()["weight"], network.weight.detach())
    torch.testing.assert_close(belief.sd()["weight"], torch.full((2, 3), 0.02))
    laplace = Store.create(tmp_path / "laplace", network, pretrained=network.state_dict(), old_data=part(0))
    sd = laplace.belief().sd()["weight"]
    assert sd.std() > 0
    assert (sd < 1).all()
    with pytest.raises(SettingError, match="pretrained weights need a width"):
        Store.create(tmp_path / "neither", network, pretrained=network.state_dict())
    assert not (tmp_path / "neither").exists()


def test_predictions_are_of_raw_data(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    x, y = part(0)
    scaled = 100 * x + 7
    store.absorb((scaled, y), part="a")
    plain = small_store(tmp_path / "plain", normalise="none")
    plain.absorb(((scaled - scaled.mean(0)) / scaled.std(0, correction=0), y), part="a")
    found = store.predict(scaled[:9]).mean
    expected = plain.predict(((scaled - scaled.mean(0)) / scaled.std(0, correction=0))[:9]).mean
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert store.show()["encoding"]["inputs"]["input"]["mean"] == pytest.approx(scaled.double().mean(0).tolist())
