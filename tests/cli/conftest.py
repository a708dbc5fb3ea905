import shutil
from pathlib import Path

import pytest
from prepared_store import Run, prepare, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, monkeypatch)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the store is made once; filled by the first test that asks for a copy."""
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture
def place(prepared: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with a copy of the prepared stores and data."""
    if not (prepared / "named").exists():
        prepare(prepared, run)
    folder = tmp_path / "place"
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    return folder
