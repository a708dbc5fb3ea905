"""One file for tensors and what is to be known of them: safetensors, with JSON in its header. Nothing executes on load.

A file appears whole or not at all: it is written under a temporary name, brought to the disk, and renamed.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from postprior.errors import StoreError

HEADER = "postprior"


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the file; once this returns, it survives a crash, and until then an older one stands."""
    path = Path(path)
    data = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {HEADER: json.dumps(about)}
    )
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be written: {error}; what stood there before still stands") from error


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and what is known of them, or a StoreError that says what is wrong with the file."""
    if not Path(path).is_file():
        raise StoreError(f"{path}: no such file; expected one that save() wrote")
    try:
        with safe_open(path, framework="pt") as file:
            about = (file.metadata() or {}).get(HEADER)
            if about is None:
                raise StoreError(f"{path} holds tensors, but no belief: expected a file that save() wrote")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(about)  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{path} is damaged or not one of ours ({error}): take a copy, or save again") from error


def _sync_folder(folder: Path) -> None:
    # The rename itself is in the folder, which has to reach the disk too.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
