"""What is kept of an absorption in progress: what was asked for, and the last checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from postprior.errors import StoreError, UnfinishedError
from postprior.learning.checkpoint import Saved
from postprior.store.archive import Archive

INTENT, CHECKPOINT = "intent.json", "checkpoint.safetensors"
CURE = "give the absorption up with `postprior resume STORE --discard`, and absorb the part again"


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What was asked for: written before the work, kept until it is acknowledged."""

    token: str
    data: str | None
    """Where the part can be read again; None if it was handed over."""
    part: str
    fingerprint: str
    onto: str
    """The belief that learns it."""
    alias: str
    """What is to point at the outcome: head, or the name of a branch."""
    promote: bool
    judged: bool
    """Whether there is held-out data."""
    evaluate: str | None
    """Where that can be read again; None if it was handed over."""
    gate: str | None
    repeat: bool
    settings: Mapping[str, Any]
    shard: bool = False
    """Whether the belief is cut among processes."""


def write_intent(archive: Archive, intent: Intent) -> None:
    """From now on the absorption can be resumed."""
    archive.write_draft(INTENT, json.dumps(asdict(intent), sort_keys=True).encode())


def refuse_unfinished(archive: Archive) -> None:
    """Raise an UnfinishedError if an absorption is under way, or was interrupted."""
    if unfinished := read_intent(archive):
        raise UnfinishedError(
            f"part {unfinished.part} was begun and not finished: `postprior resume {archive.address}` goes on "
            "with it, and gives it up with --discard"
        )


def read_intent(archive: Archive) -> Intent | None:
    """What was interrupted, if anything."""
    data = archive.draft(INTENT)
    if data is None:
        return None
    try:
        return Intent(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise StoreError(f"{archive.address}: {INTENT} cannot be read ({error}): {CURE}") from error


def write_checkpoint(archive: Archive, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Put the state of the training away, in the place of an older one."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    archive.write_draft(CHECKPOINT, safetensors.torch.save(whole, {"about": json.dumps(about)}))


def read_checkpoint(archive: Archive) -> Saved | None:
    """The state of the training, if any was put away."""
    data = archive.draft(CHECKPOINT)
    if data is None:
        return None
    try:
        # Safetensors begin with the length of a JSON header, which the library does not hand out for bytes.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return safetensors.torch.load(data), json.loads(header["__metadata__"]["about"])
    except (SafetensorError, ValueError, KeyError) as error:
        raise StoreError(f"{archive.address}: {CHECKPOINT} cannot be read ({error}): {CURE}") from error
