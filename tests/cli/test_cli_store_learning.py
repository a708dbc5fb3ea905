"""init, absorb and resume from the command line: what is printed, and how they end."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bad_makers import flipped, interrupted
from prepared_store import NETWORK, Run, content, write_csv, write_npz

from postprior.cli import screen
from postprior.pipeline.store import Store


def document(out: str) -> dict[str, object]:
    """The one JSON document that stdout holds."""
    return json.loads(out)


def test_init_says_what_it_made(tmp_path: Path, run: Run) -> None:
    ran = run("init", tmp_path / "new", *NETWORK, "--epochs", "7", "--set", "steps=none", "--json")
    assert (ran.code, ran.err) == (0, "")
    said = document(ran.out)
    store = Store.open(tmp_path / "new")
    assert said == {"store": store.address, "belief": store.aliases["head"], "aliases": store.aliases}
    assert store.recipe.settings == {"epochs": 7, "steps": None}
    assert store.recipe.arguments == {"in_features": 3, "num_outputs": 2, "hidden": [8]}


def test_init_takes_all_that_a_plan_has(place: Path, run: Run) -> None:
    options = [
        "--family",
        "channelwise",
        "--prior-sd",
        "fan_in",
        "--point",
        "*.bias",
        "--seed",
        "3",
        "--inputs",
        "a, b,c",
    ]
    options += ["--target", "label", "--normalise", "0.5,2", "--classes", "no,yes", "--temperature", "0.5"]
    ran = run("init", "new", *NETWORK, *options, "--set", "local_reparameterization=true", "--set", "clip_norm=1")
    assert ran.code == 0, ran.err
    recipe = Store.open("new").recipe
    assert (recipe.family, recipe.prior_sd, recipe.point, recipe.seed) == ("channelwise", "fan_in", ("*.bias",), 3)
    assert (recipe.inputs, recipe.target, recipe.classes) == (("a", "b", "c"), "label", ("no", "yes"))
    assert recipe.settings == {"temperature": 0.5, "local_reparameterization": True, "clip_norm": 1}
    assert list(recipe.normalise) == [0.5, 2]
    assert run("absorb", "new", "rows-0.csv", "--epochs", "1").code == 0
    assert Store.open("new").show()["encoding"]["inputs"]["input"]["mean"] == [0.5]


def test_init_carries_pretrained_weights_over(place: Path, run: Run) -> None:
    import safetensors.torch
    import torch

    weights = {"features.1.weight": torch.ones(8, 3), "features.1.bias": torch.zeros(8)}
    safetensors.torch.save_file(weights, "w.safetensors")
    ran = run(
        "init", "new", *NETWORK, "--pretrained", "w.safetensors", "--carry", "features.*", "--pretrained-sd", "0.1"
    )
    assert ran.code == 0, ran.err
    belief = Store.open("new").belief()
    assert torch.equal(belief.mean()["features.1.weight"], torch.ones(8, 3))
    assert belief.sd()["features.1.weight"].max() == pytest.approx(0.1)


def test_init_takes_the_width_of_pretrained_weights_from_old_data(place: Path, run: Run) -> None:
    import safetensors.torch
    import torch

    safetensors.torch.save_file({"classifier.weight": torch.ones(2, 8)}, "w.safetensors")
    carried = ["--pretrained", "w.safetensors", "--carry", "classifier.weight", "--old-data", "part-0.npz"]
    ran = run("init", "new", *NETWORK, *carried, "--json")
    assert ran.code == 0, ran.err
    store = Store.open("new")
    assert torch.equal(store.belief().mean()["classifier.weight"], torch.ones(2, 8))
    assert store.belief().sd()["classifier.weight"].max() < 1.0, "narrower than what nothing is known of"
    assert store.show()["encoding"] is not None


def test_absorb_tells_its_whole_story(place: Path, run: Run) -> None:
    ran = run("absorb", "store", "part-4.npz", "--evaluate", "part-5.npz", "--gate", "nll<=champion+9")
    assert ran.code == 0, ran.err
    said = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    store = Store.open("store")
    manifest, head = store.show(), store.aliases["head"]
    before = manifest["metrics"]["before"]
    assert said["part"] == "part-4, 40 examples"
    assert said["before"].startswith(f"NLL {before['nll']:.4f}, accuracy {before['accuracy']:.2%}, epistemic share")
    assert f"KL {manifest['update']['kl']:,.1f} nats" in said["learned"]
    assert f"NLL {manifest['metrics']['after']['nll']:.4f}" in ran.out
    assert said["gate"] == f"passed: {manifest['gate']['reason']}"
    assert said["belief"] == f"{head[:8]}, now candidate, champion, head"


def test_absorb_as_json(place: Path, run: Run) -> None:
    ran = run("absorb", "store", "part-4.npz", "--part", "tuesday", "--evaluate", "part-5.npz", "--json")
    said = document(ran.out)
    store = Store.open("store")
    manifest = store.show()
    assert said.keys() == {
        *(
            "belief",
            "part",
            "passed",
            "promoted",
            "before",
            "after",
            "gate",
            "surprises",
            "overlaps",
            "update",
            "aliases",
        )
    }
    assert (said["belief"], said["part"], said["passed"], said["promoted"]) == (manifest["id"], "tuesday", True, True)
    assert (said["before"], said["after"]) == (manifest["metrics"]["before"], manifest["metrics"]["after"])
    assert said["aliases"] == store.aliases
    assert said["gate"] is None


def test_a_gate_that_fails_keeps_the_belief_and_ends_in_3(place: Path, run: Run) -> None:
    before = Store.open("store").aliases
    ran = run("absorb", "store", "part-4.npz", "--evaluate", "part-5.npz", "--gate", "accuracy>=1.1")
    assert ran.code == 3
    assert "FAILED: accuracy" in ran.out
    assert "`postprior promote`" in ran.out
    after = Store.open("store").aliases
    assert after["candidate"] != before["candidate"]
    assert {**after, "candidate": 0} == {**before, "candidate": 0}
    ran = run("absorb", "store", "part-4.npz", "--evaluate", "part-5.npz", "--gate", "accuracy>=1.1", "--json")
    assert ran.code == 3
    assert document(ran.out)["passed"] is False


def test_a_repeat_is_forced_and_reported(place: Path, run: Run) -> None:
    ran = run("absorb", "store", "part-1.npz", "--allow-repeat")
    assert ran.code == 0
    assert "about 100% of its examples were in part part-1 already" in ran.out
    assert Store.open("store").show()["forced"] is True


def test_an_overlap_is_reported(place: Path, run: Run) -> None:
    old, new = np.load("part-0.npz"), np.load("part-4.npz")
    np.savez("mixed.npz", **{name: np.concatenate([old[name][:20], new[name][:20]]) for name in ("x", "y")})
    ran = run("absorb", "store", "mixed.npz", "--json")
    assert ran.code == 0
    overlaps = document(ran.out)["overlaps"]
    assert overlaps == [{"part": "part-0", "share": pytest.approx(0.5, abs=0.05)}]


def test_data_unlike_all_before_are_a_surprise(place: Path, run: Run) -> None:
    for number in (4, 5):
        assert run("absorb", "store", f"part-{number}.npz").code == 0
    x, y = np.load("part-3.npz")["x"], np.load("part-3.npz")["y"]
    np.savez("odd.npz", x=x * 30, y=1 - y)
    assert "the data may have changed" in run("absorb", "store", "odd.npz").out


def test_branches_and_settings_of_one_part(place: Path, run: Run) -> None:
    head = Store.open("store").aliases["head"]
    ran = run(
        "absorb", "store", "part-4.npz", "--branch", "paris", "--onto", "head~1", "--set", "epochs=5", "--seed", "0"
    )
    assert ran.code == 2, "the seed is the store's"
    ran = run("absorb", "store", "part-4.npz", "--branch", "paris", "--onto", "head~1", "--set", "epochs=5")
    assert ran.code == 0, ran.err
    store = Store.open("store")
    assert store.aliases["head"] == head
    assert store.show("paris")["configuration"]["epochs"] == 5
    assert store.show("paris")["parent"] == store.show("head")["parent"]
    assert run("absorb", "store", "part-4.npz", "--no-promote").code == 0
    assert Store.open("store").aliases["champion"] == head


def test_a_store_that_is_in_use_ends_in_5(place: Path, run: Run) -> None:
    with Store.open("store").archive.locked():
        before = content(place)
        ran = run("absorb", "store", "part-4.npz")
    assert ran.code == 5
    assert "in use by process" in ran.err
    assert content(place) == before


@pytest.fixture
def uninterrupted(place: Path) -> str:
    """The id that part-4 leads to where nothing comes between."""
    import shutil

    shutil.copytree("store", "other")
    return Store.open("other").absorb("part-4.npz").belief


def test_resume_goes_on_to_the_same_belief(place: Path, run: Run, uninterrupted: str) -> None:
    interrupted(place)
    assert run("absorb", "store", "part-5.npz").code == 6
    ran = run("resume", "store", "--json")
    assert ran.code == 0, ran.err
    assert document(ran.out)["belief"] == uninterrupted
    assert run("resume", "store").code == 1, "it is no other way to absorb"


def test_resume_gives_up(place: Path, run: Run) -> None:
    before = content(place)
    interrupted(place)
    assert run("resume", "store", "--discard").out == "Part part-4 is given up.\n"
    assert content(place) == before
    interrupted(place)
    assert document(run("resume", "store", "--discard", "--json").out) == {"discarded": "part-4"}


@pytest.mark.parametrize("file", ["intent.json", "checkpoint.safetensors"])
def test_what_is_damaged_can_be_given_up(place: Path, run: Run, file: str) -> None:
    before = content(place)
    interrupted(place)
    flipped(place / "store/draft" / file)
    assert run("resume", "store").code == 1
    assert run("resume", "store", "--discard").code == 0
    assert content(place) == before


def test_tensorboard_is_told(place: Path, run: Run) -> None:
    pytest.importorskip("tensorboard")
    assert run("absorb", "store", "part-4.npz", "--tensorboard", "runs").code == 0
    assert len(list((place / "runs").iterdir())) == 1


@pytest.mark.filterwarnings("default")
def test_a_tracker_that_fails_is_a_warning_in_a_sentence(place: Path, run: Run) -> None:
    pytest.importorskip("tensorboard")
    (place / "runs").write_text("a file where the folder should be")
    ran = run("absorb", "store", "part-4.npz", "--tensorboard", "runs", "--json")
    assert ran.code == 0
    assert document(ran.out)["promoted"] is True
    assert ran.err.startswith("warning: part part-4 was absorbed, but not tracked: ")
    assert len(ran.err.splitlines()) == 1


def test_a_tracker_that_is_not_here_is_an_error_before_anything_is_learned(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    before = content(place)
    ran = run("absorb", "store", "part-4.npz", "--mlflow", "sqlite:///mlflow.db")
    assert ran.code == 1
    assert "pip install 'postprior[mlflow]'" in ran.err
    assert content(place) == before


def fails_with(error: OSError) -> Callable[..., object]:
    def fails(*_: object, **__: object) -> object:
        raise error

    return fails


def test_what_the_system_refuses_is_a_sentence(place: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "absorb", fails_with(OSError(28, "No space left on device", "/full/disk")))
    ran = run("absorb", "store", "part-4.npz")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: /full/disk: No space left on device")
    assert "Traceback" not in ran.err


def test_nothing_but_text_goes_to_a_log(place: Path, run: Run) -> None:
    for line in (
        ["absorb", "store", "part-4.npz"],
        ["log", "store"],
        ["diff", "store", "head", "head~1"],
        ["show", "store"],
    ):
        ran = run(*line)
        assert (ran.out + ran.err).replace("\n", "").isprintable(), line


def test_measures_are_written_in_one_order() -> None:
    text = screen.measures({"zeta": 1.0, "accuracy": 0.5, "nll": 0.25})
    assert text == "NLL 0.2500, accuracy 50.00%, zeta 1"


def test_classes_by_name(place: Path, run: Run) -> None:
    write_csv(place / "rows-2.csv", 2)
    ran = run("absorb", "named", "rows-1.csv", "--evaluate", "rows-2.csv", "--json")
    assert ran.code == 0, ran.err
    assert document(ran.out)["after"]["accuracy"] > 0  # pyright: ignore
    write_npz(place / "more.npz", 7)
    assert run("absorb", "named", "more.npz").code == 1
