"""Mean and standard deviation of raw inputs, block by block, so that no second copy of a part is needed.

They are those of the features of [N, D], of the channels of [N, C, *], or of all numbers of [N].
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 20
"""Numbers looked at together."""


def mean_and_sd(array: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each feature or channel; what never varies has sd 1. Exact for uint8."""
    return _of_bytes(array) if array.dtype == np.uint8 else _of_floats(array)


def first_not_finite(array: NDArray[Any]) -> tuple[int, ...] | None:
    """Where the first number stands that is NaN or infinite."""
    start = 0
    for block in _blocks(array, array.shape[1:]):
        if not (fine := np.isfinite(block)).all():
            example, *place = (int(axis[0]) for axis in np.nonzero(~fine))
            return (start + example, *place)
        start += len(block)
    return None


def _of_bytes(array: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    totals = [
        (block.sum((0, 2), np.int64), np.square(block, dtype=np.uint16).sum((0, 2), np.int64))
        for block in _blocks(array, _by_channel(array))
    ]
    # Python's whole numbers do not overflow, and the only rounding is that of the last division.
    sums, squares = (np.sum(total, axis=0).tolist() for total in zip(*totals, strict=True))
    count = array.size // len(sums)
    variances = [(count * square - total * total) / count**2 for total, square in zip(sums, squares, strict=True)]
    return tuple(total / count for total in sums), tuple(math.sqrt(variance) or 1.0 for variance in variances)


def _of_floats(array: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    shape = _by_channel(array)
    count = array.size // shape[0]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.sum([block.sum((0, 2), np.float64) for block in _blocks(array, shape)], axis=0) / count
        spread = [np.square(block - mean[:, None]).sum((0, 2), np.float64) for block in _blocks(array, shape)]
        sd = np.sqrt(np.sum(spread, axis=0) / count)
    low = np.min([block.min((0, 2)) for block in _blocks(array, shape)], axis=0)
    high = np.max([block.max((0, 2)) for block in _blocks(array, shape)], axis=0)
    # A sum of equal numbers is rounded: their mean may differ from them, and their sd from 0, by next to nothing.
    constant = low == high
    mean, sd = np.where(constant, low, mean), np.where(constant | (sd == 0), 1.0, sd)
    return tuple(mean.tolist()), tuple(sd.tolist())


def _by_channel(array: NDArray[Any]) -> tuple[int, ...]:
    """The shape of an example as channels and all else."""
    channels = array.shape[1] if array.ndim > 1 else 1
    return channels, array.size // (len(array) * channels)


def _blocks(array: NDArray[Any], shape: tuple[int, ...]) -> Iterator[NDArray[Any]]:
    """Some examples at a time, each in this shape."""
    step = max(1, BLOCK * len(array) // array.size)
    for start in range(0, len(array), step):
        block = array[start : start + step]
        yield block.reshape(len(block), *shape)
