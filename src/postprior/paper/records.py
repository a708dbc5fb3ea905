"""What a run leaves behind: one JSON file, which appears whole or not at all."""

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from postprior.errors import DataError, StoreError
from postprior.paper.experiment import Experiment

RUNS = "runs"
"""The folder within a folder of results that holds the files."""


@dataclass(frozen=True)
class PartScore:
    """How the belief met the test set."""

    accuracy: float
    nll: float
    """Per image, in nats, of the averaged prediction."""
    ece: float
    num_samples: int


@dataclass(frozen=True)
class Result:
    """One run."""

    experiment: Experiment
    seed: int
    by_part: tuple[PartScore, ...]
    """After each part, with ``samples_by_part`` weight samples."""
    final: PartScore
    """After the last part, with ``samples_at_end``."""
    prior_sd_found: float | None
    """What the grid search chose, where there was one."""
    seconds: float
    device: str
    commit: str | None
    """Of the code; "+changes" follows where it was not committed, None where nothing tells."""
    versions: dict[str, str]

    @property
    def title(self) -> str:
        """For people."""
        return title(self.experiment, self.seed)


def title(experiment: Experiment, seed: int) -> str:
    """A run's name for people."""
    return f"{experiment.name}, seed {seed}"


def path_of(folder: Path, experiment: Experiment, seed: int) -> Path:
    """Where the result of a run stands, or will."""
    return folder / RUNS / f"{experiment.name}-{experiment.hash[:16]}-seed{seed}.json"


def write(folder: Path, result: Result) -> Path:
    """Write the result; once this returns it survives a crash, and until then there is no such file."""
    path = path_of(folder, result.experiment, result.seed)
    plain = asdict(result) | {"experiment": result.experiment.to_plain(), "hash": result.experiment.hash}
    write_text(path, json.dumps(plain, indent=1) + "\n")
    return path


def write_text(path: Path, text: str) -> None:
    """The same for any text."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be written: {error}; choose another folder, or free some space") from error


def read(path: Path) -> Result:
    """The result in a file, or a StoreError that says what is wrong with it."""
    try:
        plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written_hash = plain.pop("hash")
        experiment = Experiment.from_plain(plain["experiment"])
        by_part = tuple(PartScore(**score) for score in plain["by_part"])
        plain |= {"experiment": experiment, "by_part": by_part, "final": PartScore(**plain["final"])}
        result = Result(**plain)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} is no result that this version can read ({error}): move it away, and run again"
        ) from error
    if experiment.hash != written_hash:
        raise StoreError(f"{path}: its configuration is not the one it was written with: move it away, and run again")
    return result


def read_all(folder: Path) -> list[Result]:
    """All results in a folder, by name; a DataError where there is none."""
    results = [read(path) for path in sorted((folder / RUNS).glob("[!.]*.json"))]
    if not results:
        raise DataError(f"{folder / RUNS} holds no results: run `postprior reproduce mnist --quick --out {folder}`")
    return results


def device_name(device: torch.device | str) -> str:
    """A device as people know it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.device(device).type}, {platform.machine()}"


def versions() -> dict[str, str]:
    """Of what a result depends on."""
    return {
        "postprior": _own_version(),
        "torch": torch.__version__,
        "numpy": importlib.metadata.version("numpy"),
        "python": platform.python_version(),
        "float32": "TF32 on GPUs" if torch.backends.cuda.matmul.allow_tf32 else "as it is",
    }


def _own_version() -> str:
    try:
        return importlib.metadata.version("postprior")
    except importlib.metadata.PackageNotFoundError:  # run from a folder of sources
        return "not installed"


@functools.cache
def commit() -> str | None:
    """The commit that this code was checked out from; asked once, since running code does not change.

    POSTPRIOR_COMMIT says it on machines that were given the code without its history.
    """
    if told := os.environ.get("POSTPRIOR_COMMIT"):
        return told
    here = Path(__file__).parent
    # A package that was installed inside someone's checkout is not of that checkout's commit.
    if _git(here, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    changes = _git(here, "--no-optional-locks", "status", "--porcelain", "--", "..")
    return f"{_git(here, 'rev-parse', 'HEAD')}{'+changes' if changes else ''}"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
