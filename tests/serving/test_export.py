"""Exported files: what other runtimes answer, what is written beside the weights, and what is never kept."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import postprior
from postprior.errors import MissingExtraError, NetworkError, SettingError, StoreError
from postprior.networks.zoo import LeNet5, ThreeConvThreeFC
from postprior.serving import export
from postprior.serving.baked import Baked, baked
from postprior.serving.export import to_onnx, to_torch_export

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra export")

CATEGORICAL = postprior.Categorical()
GENERATOR = torch.Generator().manual_seed(0)


def small(module: nn.Module | None = None, **options: Any) -> Baked:
    module = module or nn.Linear(3, 4)
    belief = postprior.first_belief(module)
    return baked(module, belief, CATEGORICAL, **{"num_samples": 2, **options})


def ask_onnx(path: Path, *inputs: Tensor) -> dict[str, Tensor]:
    session = onnxruntime.InferenceSession(path)
    fed = {node.name: value.numpy() for node, value in zip(session.get_inputs(), inputs, strict=True)}
    outputs = [node.name for node in session.get_outputs()]
    return {name: torch.from_numpy(value) for name, value in zip(outputs, session.run(None, fed), strict=True)}


def ask_torch(path: Path, *inputs: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return torch.export.load(path).module()(*inputs)


@pytest.mark.parametrize(
    ("network", "shape"), [(LeNet5, (1, 28, 28)), (ThreeConvThreeFC, (3, 32, 32))], ids=["lenet5", "3conv3fc"]
)
def test_onnxruntime_agrees_with_predict(
    network: Callable[[], nn.Module], shape: tuple[int, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = network()
    belief = postprior.first_belief(plain, "channelwise", prior_sd=0.05)
    x = torch.randn(7, *shape, generator=GENERATOR)
    expected = postprior.predict(plain, belief, postprior.as_inputs(x), CATEGORICAL, num_samples=3, seed=4)
    module = baked(plain, belief, CATEGORICAL, num_samples=3, seed=4)
    found = ask_onnx(to_onnx(module, tmp_path / "model.onnx", x[:1], about={}), x)
    assert list(found) == ["mean", "entropy", "mutual_information"]
    for name, value in found.items():
        torch.testing.assert_close(value, getattr(expected, name), atol=1e-5, rtol=1e-5)
    assert expected.mutual_information is not None
    assert float(expected.mutual_information.mean()) > 1e-3  # the samples do disagree
    assert capfd.readouterr().out == ""


def test_torch_export_agrees_with_predict(tmp_path: Path) -> None:
    plain = LeNet5()
    belief = postprior.first_belief(plain, prior_sd=0.05)
    x = torch.randn(5, 1, 28, 28, generator=GENERATOR)
    expected = postprior.predict(plain, belief, postprior.as_inputs(x), CATEGORICAL, num_samples=2)
    path = to_torch_export(baked(plain, belief, CATEGORICAL, num_samples=2), tmp_path / "m.pt2", x, about={})
    for name, value in ask_torch(path, x).items():
        torch.testing.assert_close(value, getattr(expected, name), atol=1e-5, rtol=1e-5)


class Translator(nn.Module):
    """Tokens and lengths by name, through attention and recurrence; its shapes are read with len()."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(10, 8), nn.GRU(8, 8, batch_first=True)
        self.attention, self.last = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(9, 3)

    def forward(self, *, tokens: Tensor, extra: Tensor) -> Tensor:
        hidden = self.recurrent(self.attention(self.embedding(tokens)))[0].mean(1)
        return self.last(torch.cat([hidden, extra.reshape(len(extra), 1)], 1))


@pytest.mark.parametrize(("write", "ask"), [(to_onnx, ask_onnx), (to_torch_export, ask_torch)], ids=["onnx", "pt2"])
def test_tokens_attention_recurrence_and_inputs_by_name(write: Any, ask: Any, tmp_path: Path) -> None:
    module = small(Translator(), at_mean=True, by_name=("tokens", "extra"))
    tokens, extra = torch.randint(10, (6, 5), generator=GENERATOR), torch.rand(6, generator=GENERATOR)
    path = write(module, tmp_path / "translator.pt2", (tokens, extra), about={})
    with torch.no_grad():
        expected = module(tokens, extra)
    for name, value in ask(path, tokens, extra).items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-5)


def test_raw_pixels_go_in_and_metadata_comes_out(tmp_path: Path) -> None:
    module = small(mean=torch.full((3,), 100.0), sd=torch.full((3,), 50.0), at_mean=True)
    raw = torch.randint(256, (4, 3), dtype=torch.uint8, generator=GENERATOR)
    path = to_onnx(module, tmp_path / "model.onnx", raw, about={"belief": "ab12", "family": "factorized"})
    session = onnxruntime.InferenceSession(path)
    (entry,) = session.get_inputs()
    assert (entry.name, entry.type, entry.shape[1:]) == ("input", "tensor(uint8)", [3])
    assert [node.name for node in session.get_outputs()] == ["mean", "entropy"]
    known = session.get_modelmeta().custom_metadata_map
    expected = {"belief": "ab12", "family": "factorized", "likelihood": "categorical", "weights": "mean"}
    expected["version"] = postprior.__version__
    assert known == {f"postprior.{key}": value for key, value in expected.items()}
    with torch.no_grad():
        torch.testing.assert_close(ask_onnx(path, raw)["mean"], module(raw)["mean"])


@pytest.mark.parametrize("write", [to_onnx, to_torch_export])
def test_files_hold_neither_examples_nor_paths_of_the_machine(write: Any, tmp_path: Path) -> None:
    secret = torch.full((2, 3), 1234.56789)
    path = write(small(), tmp_path / "model.pt2", secret, about={"belief": "ab12"})
    written = path.read_bytes()
    assert secret.numpy().tobytes() not in written
    assert str(Path(__file__).parents[2]).encode() not in written
    assert str(Path(torch.__file__).parent).encode() not in written


def test_torch_export_tells_what_it_is(tmp_path: Path) -> None:
    path = to_torch_export(small(), tmp_path / "model.pt2", torch.zeros(1, 3), about={"belief": "ab12"})
    extra = {"postprior.json": ""}
    torch.export.load(path, extra_files=extra)
    known = json.loads(extra["postprior.json"])
    assert (known["belief"], known["weights"], known["likelihood"]) == ("ab12", "2 samples", "categorical")


class Restless(nn.Module):
    """Answers anew every time."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + torch.rand_like(x))


class Branching(nn.Module):
    """Asks the data which way to go."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) if float(x.sum()) > 0 else self.last(-x)


@pytest.mark.parametrize("write", [to_onnx, to_torch_export])
@pytest.mark.parametrize(
    ("network", "message"),
    [(Restless, "does not answer as the belief does.*mean of a batch of 1"), (Branching, "cannot be exported to")],
)
def test_what_does_not_agree_or_cannot_be_traced_is_not_kept(
    write: Any, network: type[nn.Module], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"what stood there")
    with pytest.raises(NetworkError, match=message):
        write(small(network()), path, torch.ones(2, 3), about={})
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]
    assert path.read_bytes() == b"what stood there"


def test_other_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, 3)
    with pytest.raises(SettingError, match="the example to export with is empty"):
        to_onnx(small(), tmp_path / "m.onnx", x[:0], about={})
    with pytest.raises(StoreError, match=r"nowhere.m\.pt2 cannot be written"):
        to_torch_export(small(), tmp_path / "nowhere" / "m.pt2", x, about={})
    monkeypatch.setattr(export, "ONNX_LIMIT", 100)
    with pytest.raises(NetworkError, match=r"2 weight samples hold .* bake fewer samples, or write a \.pt2"):
        to_onnx(small(), tmp_path / "m.onnx", x, about={})
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'postprior\[export\]'"):
        to_onnx(small(), tmp_path / "m.onnx", x, about={})
    assert list(tmp_path.iterdir()) == []
