"""One file for tensors and what is to be known of them: safetensors, with JSON in its header. Nothing executes on load.

A file appears whole or not at all: it is written under a temporary name, brought to the disk, and renamed.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from postprior.errors import StoreError
from postprior.store.files import naming, staged, sync

HEADER = "postprior"


def dump_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the file in place; an OSError says why it cannot be."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.touch()
    mode = path.stat().st_mode
    # Safetensors renames a file of its own to this one; in the place of another that is slow on some disks.
    path.unlink()
    try:
        save_file(plain, path, {HEADER: json.dumps(about)})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    # Its own may be such that only its owner can read it.
    path.chmod(mode)


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the file; once this returns, it survives a crash, and until then an older one stands."""
    path = Path(path)
    with naming(path):
        if not path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {path.parent}")
        with staged(path.parent) as temporary:
            dump_tensors(temporary, tensors, about)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)


def read_tensors(path: str | os.PathLike[str], name: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and what is known of them, or a StoreError that says what is wrong with the file (called ``name``).

    The tensors show the file itself where the system can map it: it may be replaced or removed, but not written into.
    """
    name = name or os.fspath(path)
    if not Path(path).is_file():
        raise StoreError(f"{name}: no such file; expected one that save() wrote")
    try:
        with safe_open(path, framework="pt") as file:
            about = (file.metadata() or {}).get(HEADER)
            if about is None:
                raise StoreError(f"{name} holds tensors, but no belief: expected a file that save() wrote")
            content = json.loads(about)
            if not isinstance(content, dict):
                raise StoreError(f"{name} says nothing of its belief: expected a file that save() wrote")
            return {key: file.get_tensor(key) for key in file.keys()}, content  # noqa: SIM118
    except StoreError:
        raise
    except (SafetensorError, ValueError, RecursionError, OSError) as error:
        raise StoreError(f"{name} is damaged or not one of ours ({error}): take a copy, or save again") from error
