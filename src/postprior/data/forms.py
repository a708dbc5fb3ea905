"""What one input is in every part: its kind, its shape, and how it is normalised.

Shapes: N examples, D features, C channels, B a batch, * the further axes of an example.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from postprior.batch import Batch, Part
from postprior.data.tables import ALONE, Table, no_examples, quoted
from postprior.errors import PartError, SettingError

Kind = Literal["pixels", "floats", "integers", "booleans"]

KINDS: dict[Kind, str] = {
    "pixels": "uint8",
    "floats": "floating numbers",
    "integers": "whole numbers other than uint8",  # tokens, say
    "booleans": "booleans",
}


@dataclass(frozen=True)
class Form:
    """What one input is, and how it is normalised: (x - mean) / sd, or not at all where they are empty.

    Mean and sd belong to the first axis of an example: to the features of [N, D], to the channels of [N, C, *]. One of
    each stands for all.
    """

    kind: Kind
    shape: tuple[int, ...]
    """Of one example."""
    mean: tuple[float, ...] = ()
    sd: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise SettingError(f"kind is {self.kind!r}, expected one of {', '.join(KINDS)}")
        if not all(type(length) is int and length > 0 for length in self.shape):
            raise SettingError(f"shape is {self.shape}, expected whole numbers above 0")
        if len(self.mean) != len(self.sd) or len(self.mean) not in (0, 1, *self.shape[:1]):
            found = f"{len(self.mean)} means and {len(self.sd)} sds"
            raise SettingError(f"{found}: expected one of each, or one for each of the first axis of {self.shape}")
        if not all(_is_finite(value) for value in (*self.mean, *self.sd)) or not all(sd > 0 for sd in self.sd):
            raise SettingError(f"mean {self.mean} and sd {self.sd}: expected finite numbers, and every sd above 0")
        if self.mean and self.kind not in ("pixels", "floats"):
            raise SettingError(f"{KINDS[self.kind]} cannot be normalised, found mean {self.mean} and sd {self.sd}")

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} of shape {self.shape} an example"

    def converter(self) -> Callable[[Tensor], Tensor]:
        """From raw values [B, *] to those the network is fed."""
        if self.kind not in ("pixels", "floats"):
            return lambda raw: raw.long() if self.kind == "integers" else raw
        axes = (-1, *(1 for _ in self.shape[1:])) if self.shape else ()
        moments = [torch.tensor(moment, dtype=torch.float64).reshape(axes) for moment in (self.mean, self.sd) if moment]

        def normalised(raw: Tensor) -> Tensor:
            values = raw if raw.dtype == torch.float64 else raw.float()
            if not moments:
                return values
            mean, sd = (moment.to(values.dtype) for moment in moments)
            return (values - mean) / sd

        return normalised


def forms_of(data: Table | Part) -> dict[str, Form]:
    """What the inputs are, by name; of a part that is no table, what its first examples are."""
    if isinstance(data, Table):
        return {name: Form(_kind(array.dtype), array.shape[1:]) for name, array in data.named_inputs().items()}
    batch = next(iter(data.batches(2)), None)
    if batch is None or not len(batch):
        raise no_examples("the part")
    return {name: Form(_kind_of_tensor(value), tuple(value.shape[1:])) for name, value in named_tensors(batch).items()}


def named_tensors(batch: Batch) -> dict[str, Tensor]:
    """The inputs that are tensors; those without a name are called by their place."""
    alone = len(batch.args) == 1 and not batch.kwargs
    inputs = {ALONE if alone else f"input {i}": value for i, value in enumerate(batch.args)} | dict(batch.kwargs)
    return {name: value for name, value in inputs.items() if isinstance(value, Tensor)}


def check_forms(where: str, expected: Mapping[str, Form], found: Mapping[str, Form]) -> None:
    """Raise a PartError unless every input expected is there, of the kind and shape of the first part."""
    for name, form in expected.items():
        if name not in found:
            raise PartError(
                f"{where}: expected the inputs {quoted([*expected])} of the first part, found {quoted([*found])}; "
                "say which to take with inputs=... (--inputs)"
            )
        if (form.kind, form.shape) != (found[name].kind, found[name].shape):
            raise PartError(f"{where}: {name} is {found[name]}, expected {form} as in the first part; convert it")


def _kind(dtype: np.dtype[Any]) -> Kind:
    if dtype == np.uint8:
        return "pixels"
    kinds: dict[str, Kind] = {"f": "floats", "b": "booleans"}
    return kinds.get(dtype.kind, "integers")


def _kind_of_tensor(value: Tensor) -> Kind:
    if value.dtype == torch.uint8:
        return "pixels"
    if value.is_floating_point():
        return "floats"
    return "booleans" if value.dtype == torch.bool else "integers"


def _is_finite(value: Any) -> bool:
    # math.isfinite fails on whole numbers that no float can hold.
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
