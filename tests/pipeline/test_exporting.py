"""A belief leaves the store: raw data in, the store's own answers out."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from small_store import part, small_store

from postprior import Store
from postprior.errors import SettingError, StoreError
from postprior.pipeline import exporting

SAMPLES = 3


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers are given as few as will do here."""
    monkeypatch.setattr(exporting, "SERVED_SAMPLES", 2)


def pictures(size: int, channels: int, count: int = 12) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (count, channels, size, size), np.uint8), np.arange(count) % 10


@pytest.mark.parametrize(("network", "size", "channels"), [("lenet5", 28, 1), ("3conv3fc", 32, 3)])
def test_onnx_of_the_papers_networks_answers_as_predict_does(
    tmp_path: Path, network: str, size: int, channels: int
) -> None:
    store = Store.create(tmp_path / "store", network, epochs=1, batch_size=12)
    x, y = pictures(size, channels)
    store.absorb((x, y), part="a")
    path = store.export(tmp_path / "model.onnx", num_samples=SAMPLES, seed=4)
    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"input": x}), strict=True))
    expected = store.predict(x, num_samples=SAMPLES, seed=4)
    for name in ("mean", "entropy", "mutual_information"):
        np.testing.assert_allclose(found[name], getattr(expected, name).numpy(), atol=1e-5, rtol=1e-5)
    assert found["mutual_information"].max() > 1e-6


def test_torch_export_answers_as_predict_does(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    x, y = part(0)
    store.absorb((7 + 100 * x, y), part="a")
    raw = 7 + 100 * part(1)[0]
    program = torch.export.load(store.export(tmp_path / "model.pt2", num_samples=SAMPLES, seed=2))
    expected = store.predict(raw, num_samples=SAMPLES, seed=2)
    torch.testing.assert_close(program.module()(raw)["mean"], expected.mean, atol=1e-5, rtol=1e-5)
    mean = torch.export.load(store.export(tmp_path / "mean.pt2", at_mean=True))
    expected = store.predict(raw, at_mean=True)
    torch.testing.assert_close(mean.module()(raw)["mean"], expected.mean, atol=1e-5, rtol=1e-5)


def test_the_champion_is_what_is_exported(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    champion = store.absorb(part(0), part="a").belief
    store.absorb(part(1), part="b", promote=False)
    session: Any = onnxruntime.InferenceSession(store.export(tmp_path / "m.onnx", num_samples=2))
    assert session.get_modelmeta().custom_metadata_map["postprior.belief"] == champion


def test_what_cannot_be_exported_says_what_is_missing(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    with pytest.raises(SettingError, match=r"expected one of \.onnx, \.pt2"):
        store.export(tmp_path / "model.pkl")
    with pytest.raises(StoreError, match=r"has seen no data.*--like"):
        store.export(tmp_path / "model.onnx")
    assert store.export(tmp_path / "model.onnx", like=part(0)[0], num_samples=1).exists()


class Tokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(11, 4), torch.nn.Linear(4, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(words).mean(1))


def test_tokens_are_exported_by_an_example(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", Tokens(), epochs=1)
    words = torch.randint(0, 11, (20, 5), generator=torch.Generator().manual_seed(0))
    store.absorb((words, words[:, 0] % 2), part="a")
    with pytest.raises(SettingError, match=r"whole numbers.*--like"):
        store.export(tmp_path / "model.onnx", num_samples=2)
    session: Any = onnxruntime.InferenceSession(store.export(tmp_path / "m.onnx", num_samples=2, like=words))
    found = session.run(["mean"], {"input": words.numpy()})[0]
    np.testing.assert_allclose(found, store.predict(words, num_samples=2).mean.numpy(), atol=1e-5)


class Remembering:
    """A tracker that keeps what it is told."""

    takes_models = True

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, Any], dict[str, float], bool]] = []

    def log(self, step: int, params: Any, metrics: Any, *, model: Path | None = None) -> None:
        self.told.append((step, dict(params), dict(metrics), model is not None and model.exists()))


class Broken(Remembering):
    takes_models = False

    def log(self, step: int, params: Any, metrics: Any, *, model: Path | None = None) -> None:
        raise ConnectionError("no server there")


def test_trackers_are_told_of_every_part(tmp_path: Path) -> None:
    store, tracker = small_store(tmp_path), Remembering()
    store.absorb(part(0), part="a", evaluate=part(9), trackers=[tracker])
    bad = store.absorb(part(1), part="b", evaluate=part(9), gate="nll<=0", trackers=[tracker])
    assert [(step, params["part"], has_model) for step, params, _, has_model in tracker.told] == [
        (1, "a", True),
        (2, "b", False),
    ]
    _, params, metrics, _ = tracker.told[1]
    assert (params["gate_passed"], params["belief"], params["epochs"]) == (False, bad.belief, 3)
    assert metrics["held_out.nll"] == (bad.after or {})["nll"]
    assert metrics["new_part_before.nll"] == bad.before["nll"]
    assert metrics["update.kl"] > 0


def test_a_broken_tracker_is_a_warning_and_the_part_is_learned(tmp_path: Path) -> None:
    store, tracker = small_store(tmp_path), Remembering()
    with pytest.warns(UserWarning, match="part a was absorbed, but not tracked: ConnectionError: no server there"):
        store.absorb(part(0), part="a", trackers=[Broken(), tracker])
    assert len(tracker.told) == 1
    assert [record["id"] for record in store.parts()] == ["a"]
