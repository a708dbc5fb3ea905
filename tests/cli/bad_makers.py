"""What makes the files, folders and stores that users' mistakes meet."""

import importlib
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from prepared_store import arrays

from postprior.errors import StoppedError
from postprior.pipeline.store import Store
from postprior.store.sealed import seal

MOST_BYTES = 2_000_000
"""What a part may hold while the table is gone through."""


@dataclass(frozen=True)
class Bad:
    """A command line, the status it ends in, and words that its message must hold."""

    line: str
    code: int
    words: tuple[str, ...]
    prepare: Callable[[Path], object] | None = None
    """Makes what the line needs, in the folder where it runs."""


def npz(**values: object) -> Callable[[Path], None]:
    """bad.npz with these arrays instead of good ones."""

    def prepare(folder: Path) -> None:
        x, y = arrays(9)
        np.savez(folder / "bad.npz", **{"x": x, "y": y, **values})  # pyright: ignore[reportArgumentType]

    return prepare


def file(name: str, text: str | bytes) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    return prepare


def cut(name: str, source: str) -> Callable[[Path], None]:
    """The first half of a file under another name."""
    return lambda folder: (folder / name).write_bytes(
        (folder / source).read_bytes()[: (folder / source).stat().st_size // 2]
    )


def with_value(row: int, value: float) -> NDArray[np.float32]:
    x, _ = arrays(9)
    x[row, 1] = value
    return x


def truncated_parquet(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": [1.0, 2.0], "label": [0, 1]}), folder / "whole.parquet")
    (folder / "bad.parquet").write_bytes((folder / "whole.parquet").read_bytes()[:-20])


def false_header(folder: Path) -> None:
    """A kilobyte that says it holds 64 GiB."""
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    header += b"{'descr': '<f8', 'fortran_order': False, 'shape': (8589934592, 1)}".ljust(117) + b"\n"
    with zipfile.ZipFile(folder / "bad.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header + bytes(100_000))
        archive.writestr("y.npy", header + bytes(100_000))


def zip_bomb(folder: Path) -> None:
    """Twice as much as a part may hold (MOST_BYTES), in a thousandth of it."""
    np.savez_compressed(folder / "bad.npz", x=np.zeros((MOST_BYTES // 6, 3), np.float32), y=np.zeros(MOST_BYTES // 6))


def broken_pictures(folder: Path) -> None:
    for name in ("cat", "dog"):
        (folder / "pictures" / name).mkdir(parents=True)
        (folder / "pictures" / name / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing more")


def pickled(name: str) -> Callable[[Path], None]:
    return file(name, pickle.dumps({"weight": [1.0]}))


def other_weights(folder: Path) -> None:
    weights = {"features.1.weight": torch.zeros(5, 5), "classifier.weight": torch.zeros(2, 5)}
    safetensors.torch.save_file(weights, folder / "weights.safetensors")


def head(folder: Path) -> Path:
    """The folder of the head's belief."""
    last = sorted((folder / "store/journal").glob("0*.json"))[-1]
    return folder / "store/beliefs" / json.loads(last.read_text())["aliases"]["head"]


def resealed(path: Path, **changes: object) -> None:
    """The file with other content, and a checksum that agrees with it: what an attacker would write."""
    path.write_bytes(seal({**json.loads(path.read_text()), **changes}))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def interrupted(folder: Path, evaluate: str | None = None) -> None:
    """An absorption of part-4.npz that was begun and not finished."""
    try:
        Store.open(folder / "store").absorb(folder / "part-4.npz", evaluate=evaluate, stop=lambda: True)
    except StoppedError:
        return
    raise AssertionError("it was to be stopped")


def then(*steps: Callable[[Path], object]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        for step in steps:
            step(folder)

    return prepare


MODULES = ("nets", "broken_nets", "old_nets")
"""What the table writes and imports."""

NETS = """
class Odd: pass
def raises(): raise KeyError("no such width")
def nothing(): return None
def returns_text(): return "data"
number = 3
"""


def fresh(folder: Path) -> None:
    """A store that has seen no data."""
    Store.create(folder / "fresh", "mlp", arguments={"in_features": 3, "num_outputs": 2, "hidden": [8]}, epochs=1)


def point(folder: Path) -> None:
    """A store whose beliefs are single values."""
    plan = {"arguments": {"in_features": 3, "num_outputs": 2, "hidden": [4]}, "family": "point", "epochs": 1}
    store = Store.create(folder / "point", "mlp", **plan)
    for number in range(2):
        store.absorb(folder / f"part-{number}.npz")


def vanished(folder: Path) -> None:
    """A store whose network's module is no longer there."""
    (folder / "old_nets.py").write_text("from torch import nn\ndef make(): return nn.Linear(3, 2)\n")
    Store.create(folder / "vanished", "old_nets:make")
    (folder / "old_nets.py").unlink()
    del sys.modules["old_nets"]
    importlib.invalidate_caches()
