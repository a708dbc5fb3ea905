"""Trackers: scalars in TensorBoard's own files, and a belief that MLflow really serves."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import postprior
from postprior.errors import MissingExtraError, SettingError
from postprior.serving.baked import baked
from postprior.serving.export import to_onnx
from postprior.serving.trackers import MLflow, TensorBoard, Tracker

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


def told_of_two_parts(make: Any, **second: Any) -> None:
    """Two nights, each in a process of its own."""
    for step, epochs in ((1, 5), (2, 7)):
        tracker: Tracker = make()
        given = second if step == 2 else {}
        tracker.log(step, {"epochs": epochs, "note": "a|b"}, {"nll": 0.5 / step, "accuracy": 0.9}, **given)


def test_tensorboard_shows_metrics_by_part(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told_of_two_parts(lambda: TensorBoard(tmp_path))
    steps: dict[int, float] = {}
    for file in sorted(tmp_path.iterdir()):
        events = EventAccumulator(str(file))
        events.Reload()
        assert set(events.Tags()["scalars"]) == {"nll", "accuracy"}
        steps |= {event.step: event.value for event in events.Scalars("nll")}
        (text,) = events.Tensors("parameters/text_summary")
        assert b"| note | a\\|b |" in text.tensor_proto.string_val[0]
    assert steps == {1: 0.5, 2: 0.25}


@contextmanager
def served(uri: str, model: str) -> Generator[str]:
    """``mlflow models serve`` on a free port; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local", "-h", "127.0.0.1"]
    # MLflow starts the server by a name that it looks up on the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "DO_NOT_TRACK": "true", "PATH": path}
    process = subprocess.Popen(
        [*command, "-p", str(port), "-m", model],
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=20)


def asked(address: str, payload: Any, patience: float = 60.0) -> Any:
    request = urllib.request.Request(
        f"{address}/invocations", json.dumps(payload).encode(), {"Content-Type": "application/json"}
    )
    end = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(request) as reply:
                return json.loads(reply.read())
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")  # in MLflow's own tables
def test_mlflow_tracks_a_lineage_and_serves_its_beliefs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.chdir(tmp_path)  # where MLflow keeps what has no place in its tables
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    before, uri = mlflow.get_tracking_uri(), f"sqlite:///{tmp_path}/mlflow.db"
    network = nn.Linear(3, 4)
    module = baked(network, postprior.first_belief(network), postprior.Categorical(), num_samples=3)
    path = to_onnx(module, tmp_path / "model.onnx", X, about={"belief": "ab12"})
    told_of_two_parts(lambda: MLflow("the shop's", tracking_uri=uri, model_name="shop"), model=path)
    assert mlflow.get_tracking_uri() == before

    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("postprior").experiment_id])
    by_name = {run.info.run_name: run for run in runs}
    assert sorted(by_name) == ["part 1", "part 2", "the shop's"]
    whole = by_name["the shop's"].info.run_id
    assert [(m.step, m.value) for m in client.get_metric_history(whole, "nll")] == [(1, 0.5), (2, 0.25)]
    assert by_name["part 2"].data.params["epochs"] == "7"
    assert by_name["part 2"].data.tags["mlflow.parentRunId"] == whole
    assert {run.info.status for run in runs} == {"FINISHED"}
    kept = [file for file in (tmp_path / "mlruns").rglob("*") if file.is_file()]
    assert [file.name for file in kept if file.suffix in (".pkl", ".pickle")] == []

    with served(uri, "models:/shop/1") as address, torch.no_grad():
        found = asked(address, {"inputs": X.tolist()})["predictions"]
        for name, value in module(X).items():
            torch.testing.assert_close(torch.tensor(found[name]), value, atol=1e-5, rtol=1e-5)


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'postprior\[mlflow\]'"):
        MLflow("shop").log(1, {}, {})
    with pytest.raises(MissingExtraError, match=r"pip install 'postprior\[tensorboard\]'"):
        TensorBoard(tmp_path).log(1, {}, {})
    monkeypatch.undo()
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    with pytest.raises(SettingError, match=r"expected an \.onnx file"):
        MLflow("shop", tracking_uri="unused").log(1, {}, {}, model=tmp_path / "m.pt2")
