"""Streams of randomness: the same key means the same numbers, different keys mean unrelated ones."""

import hashlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


def number(*key: int | str) -> int:
    """A seed from a key."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch takes seeds below 2^63


def stream(device: torch.device | str, *key: int | str) -> torch.Generator:
    """A generator on the device, seeded by the key."""
    return torch.Generator(device).manual_seed(number(*key))


@contextmanager
def quarantined(device: torch.device, *key: int | str) -> Generator[None]:
    """Inside, torch's global generators follow the key; afterwards they are as they were.

    For the code of others that knows no other source: dropout, data loaders, augmentations.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        # Not torch.manual_seed, which would also seed devices that nobody puts back.
        torch.default_generator.manual_seed(number(*key))
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(number(*key))
        yield


def global_states(device: torch.device) -> dict[str, Tensor]:
    """Where the global generators are that ``quarantined`` takes over."""
    states = {"cpu": torch.default_generator.get_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_global_states(device: torch.device, states: Mapping[str, Tensor]) -> None:
    """Put them there again."""
    torch.default_generator.set_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
