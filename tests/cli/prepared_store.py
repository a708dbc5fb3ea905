"""A store that learned a few tiny parts, to be copied by every test that asks something of it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from postprior.cli import app

NETWORK = ("--network", "mlp", "--argument", "in_features=3", "--argument", "num_outputs=2", "--argument", "hidden=[8]")
QUICK = ("--epochs", "2", "--batch-size", "20", "--learning-rate", "0.01")


@dataclass(frozen=True)
class Ran:
    """What came of a command line."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`postprior ARGUMENTS`, in this process."""
    monkeypatch.setenv("COLUMNS", "400")

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["postprior", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            app.main()
        said = capsys.readouterr()
        return Ran(int(left.value.code or 0), said.out, said.err)

    return run


def arrays(seed: int, count: int = 40) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows of three numbers, whose label is the sign of their sum."""
    x = np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)
    return x, (x.sum(1) > 0).astype(np.int64)


def write_npz(path: Path, seed: int, count: int = 40) -> Path:
    x, y = arrays(seed, count)
    np.savez(path, x=x, y=y)
    return path


def write_csv(path: Path, seed: int, count: int = 40) -> Path:
    """The same with columns a, b, c and the names of classes."""
    x, y = arrays(seed, count)
    rows = [
        ",".join((*(f"{value:.4f}" for value in row), "yes" if label else "no"))
        for row, label in zip(x, y, strict=True)
    ]
    path.write_text("\n".join(["a,b,c,label", *rows]) + "\n")
    return path


def prepare(folder: Path, run: Run) -> None:
    """Data files; `store`, where berlin and lisbon have grown from head; and `named`, whose data are a CSV's."""
    for seed in range(6):
        write_npz(folder / f"part-{seed}.npz", seed)
    for seed in range(2):
        write_csv(folder / f"rows-{seed}.csv", seed)
    store, named = folder / "store", folder / "named"
    steps: list[tuple[object, ...]] = [
        ("init", store, *NETWORK, *QUICK),
        ("absorb", store, folder / "part-0.npz"),
        ("absorb", store, folder / "part-1.npz"),
        ("absorb", store, folder / "part-2.npz", "--branch", "berlin", "--onto", "head"),
        ("absorb", store, folder / "part-3.npz", "--branch", "lisbon", "--onto", "head"),
        ("init", named, *NETWORK, *QUICK),
        ("absorb", named, folder / "rows-0.csv"),
    ]
    for step in steps:
        ran = run(*step)
        assert ran.code == 0, ran.err


def content(folder: Path) -> dict[str, bytes]:
    """Every file by its name, but the files whose lock is held, which say who held it last."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in files if path.name not in (".lock", ".writing")
    }
