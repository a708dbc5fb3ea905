import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from postprior.cli import app
from postprior.cli.exits import MEANINGS, Exit, exit_of
from postprior.data import datasets
from postprior.errors import (
    BusyError,
    MissingExtraError,
    RacedError,
    RepeatedPartError,
    SettingError,
    StoreError,
    UnfinishedError,
)

HEAVY = {"torch", "numpy", "matplotlib", "sklearn", "torchmetrics", "PIL", "safetensors", "jinja2", "fsspec", "pyarrow"}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `postprior ARGUMENTS`, run in this process."""
    monkeypatch.setattr(sys, "argv", ["postprior", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as left:
        app.main()
    return int(left.value.code or 0)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["data", "fetch", "--help"], ["absorb", "--help"], ["report", "--help"], ["--version"]]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from postprior.cli.app import main\n"
        f"sys.argv = ['postprior', *{arguments}]\n"
        "try:\n    main()\n"
        f"finally:\n    print('heavy:', sorted({HEAVY} & sys.modules.keys()))"
    )
    plain = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "GITHUB_ACTIONS")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=plain, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert "postprior" in done.stdout


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    name, version = capsys.readouterr().out.split()
    assert name == "postprior"
    assert version[0].isdigit()


def test_an_error_of_ours_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MissingExtraError("no [red]markup[/red] here: pip install 'postprior[data]'")

    monkeypatch.setattr(datasets, "fetch", fails)
    assert run(monkeypatch, "data", "fetch", "mnist") == 1
    captured = capsys.readouterr()
    assert captured.err == "error: no [red]markup[/red] here: pip install 'postprior[data]'\n"
    assert captured.out == ""


def test_an_error_that_is_not_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(datasets, "fetch", fails)
    monkeypatch.setattr(sys, "argv", ["postprior", "data", "fetch", "mnist"])
    with pytest.raises(ZeroDivisionError, match="a defect"):
        app.main()


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(datasets, "fetch", interrupted)
    assert run(monkeypatch, "data", "fetch", "mnist") == 130


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["data", "fetch"], ["data", "fetch", "mnist", "--nonsense"], ["data"]]
)
def test_usage_errors(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    assert run(monkeypatch, *arguments) == 2


def test_help_groups_the_verbs_and_tells_the_exit_statuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--help") == 0
    said = capsys.readouterr().out
    assert [panel for panel in app.PANELS if panel not in said] == []
    assert [meaning for meaning in MEANINGS.values() if meaning not in said] == []


@pytest.mark.parametrize(
    "verb", [verb for verbs in app.PANELS.values() for verb in verbs], ids=lambda verb: verb.__name__
)
def test_every_verb_teaches(
    verb: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, verb.__name__, "--help") == 0
    said = capsys.readouterr().out
    assert f"\n postprior {verb.__name__} " in said, "an example"


def test_every_status_says_what_it_means() -> None:
    assert set(MEANINGS) == set(Exit)
    documented = (Path(__file__).parents[2] / "docs/store.md").read_text(encoding="utf-8")
    assert [f"| {status.value} |" for status in Exit if f"| {status.value} |" not in documented] == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SettingError("a"), Exit.USAGE),
        (StoreError("a"), Exit.FAILED),
        (RacedError("a"), Exit.BUSY),
        (BusyError("a"), Exit.BUSY),
        (RepeatedPartError("a"), Exit.REPEATED),
        (UnfinishedError("a"), Exit.UNFINISHED),
        (OSError("a"), Exit.FAILED),
    ],
)
def test_the_status_of_an_error(error: Exception, status: Exit) -> None:
    assert exit_of(error) is status
