import os
import subprocess
import sys

import pytest

from postprior.cli import app
from postprior.data import datasets
from postprior.errors import MissingExtraError

HEAVY = {"torch", "numpy", "matplotlib", "sklearn", "torchmetrics", "PIL"}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `postprior ARGUMENTS`, run in this process."""
    monkeypatch.setattr(sys, "argv", ["postprior", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as left:
        app.main()
    return int(left.value.code or 0)


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"], ["data", "fetch", "--help"], ["--version"]])
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
