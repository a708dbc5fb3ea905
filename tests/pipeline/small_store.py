"""A store that learns in a moment, and parts for it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from postprior import Store

ARGUMENTS = {"in_features": 3, "num_outputs": 2, "hidden": [8]}


def arrays(seed: int, count: int = 60, shift: float = 0.0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Examples whose label is the sign of a sum; another seed gives others of the same kind."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((count, 3)).astype(np.float32)
    return x + np.float32(shift), (x.sum(1) > 0).astype(np.int64)


def part(seed: int, count: int = 60, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    x, y = arrays(seed, count, shift)
    return torch.from_numpy(x), torch.from_numpy(y)


def part_file(folder: Path, seed: int, count: int = 60) -> Path:
    """The same in a file, part-SEED.npz."""
    x, y = arrays(seed, count)
    path = folder / f"part-{seed}.npz"
    np.savez(path, x=x, y=y)
    return path


def small_store(folder: Path, **changes: Any) -> Store:
    plan: dict[str, Any] = {"arguments": ARGUMENTS, "epochs": 3, "batch_size": 20, "learning_rate": 0.01}
    return Store.create(folder / "store", "mlp", **{**plan, **changes})


def content(folder: Path) -> dict[str, bytes]:
    """Every file of the store that is not a lock or a temporary."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if not path.name.startswith(".")}
