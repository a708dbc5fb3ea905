import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paper.tiny_experiments import experiment, images, write_result
from postprior.cli import app, reproduce
from postprior.data import datasets
from postprior.paper import configs, runs
from postprior.paper.experiment import Experiment


def postprior(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["postprior", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with pytest.raises(SystemExit) as left:
        app.main()
    return int(left.value.code or 0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `run_all` was asked for; two tiny experiments are run instead."""
    calls: list[Any] = []
    real = runs.run_all

    def instead(experiments: list[Experiment], num_seeds: int, folder: Path, **options: Any) -> Any:
        calls.append(([e.name for e in experiments], num_seeds, options["device"]))
        tiny = [experiment("ft", "point"), experiment("ffg")]
        return real(tiny, num_seeds, folder, load=lambda _: images(), **options)

    monkeypatch.setattr(runs, "run_all", instead)
    return calls


def test_it_runs_and_prints_the_table(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "mnist", "--quick", "--seeds", "2", "--out", str(tmp_path), "--device", "cpu"]
    assert postprior(monkeypatch, *arguments) == 0
    names = [e.name for e in configs.choose(["mnist"], variant="quick")]
    assert asked == [(names, 2, "cpu")]
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 4
    end = r"mnist-ft-t2-quick, seed 0: accuracy \d+\.\d\d%, NLL \d+\.\d{3}, \d s; 1 of 4 runs done, \d+ s left"
    assert re.fullmatch(end, lines[0])
    assert captured.out == (tmp_path / "table.md").read_text()
    assert captured.out.startswith("### mnist, quick\n")
    assert len(list((tmp_path / "runs").iterdir())) == 4


def test_a_bar_on_a_terminal(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["postprior", "reproduce", "mnist", "--quick", "--out", str(tmp_path)])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(SystemExit):
        app.main()
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "2 of 2 runs done, 0 s left" in said
    assert "━" in said


@pytest.mark.parametrize(
    ("arguments", "names", "num_seeds"),
    [
        (["mnist", "--families", "FFG", "--parts", "10"], ["mnist-ffg-t10-paper"], 5),
        (["mnist", "--families", "ffg,ewc", "--quick"], ["mnist-ffg-t1", "mnist-ffg-t10", "mnist-ewc-t10"], 1),
        (
            ["all", "--families", "ft", "--variant", "both", "--parts", "2"],
            [f"{task}-ft-t2-{kind}" for kind in ("paper", "tuned") for task in ("mnist", "cifar10", "cifar5+5")],
            5,
        ),
    ],
)
def test_choosing(
    arguments: list[str],
    names: list[str],
    num_seeds: int,
    asked: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert postprior(monkeypatch, "reproduce", *arguments, "--out", str(tmp_path)) == 0
    found, seeds, _ = asked[0]
    assert [name.removesuffix("-quick") for name in found] == names
    assert seeds == num_seeds


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["imagenet"], "'imagenet' is not known; choose among mnist, cifar10, cifar5+5, all."),
        (["mnist", "--variant", "best"], "'best' is not known; choose among paper, tuned, both."),
        (["mnist", "--families", "ffg,bbb"], "bbb: expected approaches among ft, ffg, cfg, mnf, ft-early, ft-fs, ewc"),
        (["mnist", "--parts", "ten"], "--parts ten: expected whole numbers such as 1,10."),
        (["mnist", "--parts", "0"], "--parts 0: expected whole numbers from 1."),
        (["mnist", "--seeds", "0"], "--seeds"),
        (["mnist", "--device", "abacus"], "--device abacus cannot be used: "),
    ],
)
def test_usage_errors(
    arguments: list[str],
    said: str,
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert postprior(monkeypatch, "reproduce", *arguments) == 2
    assert said in capsys.readouterr().err
    assert asked == []


def test_missing_images_are_noticed_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTPRIOR_DATA", str(tmp_path / "none"))
    assert postprior(monkeypatch, "reproduce", "all", "--quick", "--out", str(tmp_path / "out")) == 1
    assert re.match(r"error: cifar10 is not in .*; run `postprior data fetch cifar10`", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_table_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_result(tmp_path, experiment("ffg", num_parts=10), 0, 0.9)
    assert postprior(monkeypatch, "table", str(tmp_path)) == 0
    assert "| FFG | 90.00 (1) |" in capsys.readouterr().out
    assert postprior(monkeypatch, "figure", str(tmp_path)) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == str(tmp_path / "figure-quick.png")
    assert "not there: cifar10, quick: no run" in captured.err
    for verb in ("table", "figure"):
        assert postprior(monkeypatch, verb, str(tmp_path / "nothing")) == 1
        assert "holds no results: run `postprior reproduce mnist --quick" in capsys.readouterr().err


def test_help_teaches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert postprior(monkeypatch, "reproduce", "--help") == 0
    said = capsys.readouterr().out
    assert "postprior reproduce mnist --quick --out /tmp/quick" in said
    assert set(reproduce.TASKS) <= configs.CONFIGURATIONS.keys() == set(reproduce.TASKS)
    assert datasets.DATASETS.keys() >= {"mnist", "cifar10"}


@pytest.mark.parametrize("verb", ["reproduce", "table", "figure"])
def test_help_imports_nothing_heavy(verb: str) -> None:
    script = (
        "import sys\n"
        "from postprior.cli.app import main\n"
        f"sys.argv = ['postprior', {verb!r}, '--help']\n"
        "try:\n    main()\n"
        "finally:\n    print('heavy:', sorted({'torch', 'numpy', 'matplotlib'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"
