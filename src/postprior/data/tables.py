"""Examples as they were read: raw arrays in memory, before anything is made of them."""

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from postprior.data.parts import TARGET_NAMES
from postprior.errors import DataError, PartError, PostpriorError, SettingError

Array = NDArray[Any]

ALONE = "input"
"""What an input is called that has no name because it is the only one."""

MAX_BYTES = 4 << 30
"""How much memory one part may take unless MAX_BYTES_VARIABLE or ``max_bytes`` says otherwise."""

MAX_BYTES_VARIABLE = "POSTPRIOR_MAX_BYTES"


@dataclass(frozen=True, eq=False)
class Table:
    """The raw examples of one part.

    Laws: there is at least one example; every array has one entry an example; inputs are numbers of at most 64 bits or
    booleans, targets such numbers or, [N], strings.
    """

    inputs: Array | Mapping[str, Array]
    """[N, ...]; several inputs by name."""
    targets: Array | None
    """[N, ...], or None where they were not asked for."""
    columns: tuple[str, ...] = ()
    """The names along the last axis of [N, D], where the inputs are columns of numbers."""
    classes: tuple[str, ...] | None = None
    """All names that targets may have, in their order, where the source declares them."""
    kind: str = "arrays"
    """The format."""
    where: str = "the part"
    """The address, for messages."""

    def __post_init__(self) -> None:
        for name, array in self.named_inputs().items():
            if not _is_numeric(array.dtype):
                raise PartError(f"{self.where}: {name} holds {array.dtype}, expected numbers of at most 64 bits")
        if self.targets is not None and not (_is_numeric(self.targets.dtype) or self._has_names()):
            found = f"{self.targets.dtype} of shape {self.targets.shape}"
            raise PartError(f"{self.where}: the targets are {found}, expected numbers, or one name an example")
        self._check_lengths()
        self._check_names()

    def __len__(self) -> int:
        return len(next(iter(self.named_inputs().values())))

    def named_inputs(self) -> dict[str, Array]:
        """Every input by name; the only one without a name is called ALONE."""
        if isinstance(self.inputs, np.ndarray):
            return {ALONE: self.inputs}
        return dict(self.inputs) if len(self.inputs) != 1 else {ALONE: next(iter(self.inputs.values()))}

    def _has_names(self) -> bool:
        return self.targets is not None and self.targets.dtype.kind == "U" and self.targets.ndim == 1

    def _check_lengths(self) -> None:
        arrays = self.named_inputs() | ({} if self.targets is None else {"targets": self.targets})
        if loose := [name for name, array in arrays.items() if array.ndim == 0]:
            raise PartError(f"{self.where}: {loose[0]} is a single number, expected one entry an example")
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{length} {name}" for name, length in lengths.items())
            raise PartError(f"{self.where}: expected as many targets as inputs, found {found}")
        if not lengths or 0 in lengths.values():
            raise no_examples(self.where)
        if hollow := [name for name, array in arrays.items() if array.size == 0]:
            raise PartError(
                f"{self.where}: {hollow[0]} has shape {arrays[hollow[0]].shape}, expected some numbers in it"
            )

    def _check_names(self) -> None:
        """Refuse what numpy takes for text and Unicode does not: no file could hold such a name."""
        if self.targets is None or not self._has_names():
            return
        letters = np.require(self.targets, self.targets.dtype.newbyteorder("="), ["C"]).view(np.uint32)
        bad = (letters > 0x10FFFF) | ((letters >= 0xD800) & (letters <= 0xDFFF))
        if bad.any():
            example = int(bad.argmax()) * len(self) // len(letters)
            raise PartError(
                f"{self.where}: the target of example {example} is no text in Unicode; write it anew in UTF-8"
            )


@dataclass(frozen=True)
class Wanted:
    """What is to be read, and how much of it at most."""

    where: str
    target: str | None = None
    inputs: tuple[str, ...] | None = None
    labelled: bool = True
    max_bytes: int = MAX_BYTES
    mapped: bool = False
    """Whether rows stay in files, as where several processes share a part."""

    def choose(self, names: Sequence[str], usual: str | None = None) -> tuple[list[str], str | None]:
        """Which of the columns are inputs, and which one is the target; ``usual`` is an input that makes do alone."""
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise PartError(f"{self.where} has two columns called {quoted(twice)}; give each a name of its own")
        targets = [self.target] if self.target is not None else [name for name in TARGET_NAMES if name in names]
        if self.labelled and (len(targets) != 1 or targets[0] not in names):
            expected = repr(self.target) if self.target is not None else f"one of {', '.join(TARGET_NAMES)}"
            raise PartError(
                f"{self.where}: expected {expected} to hold the targets, found {quoted(names)}; "
                "say which with target=... (--target)"
            )
        inputs = self._inputs([name for name in names if name not in targets], names, usual)
        if self.labelled and targets[0] in inputs:
            raise PartError(f"{self.where}: {targets[0]!r} is the target and among the inputs; take it out of inputs=")
        return inputs, targets[0] if self.labelled else None

    def _inputs(self, others: list[str], names: Sequence[str], usual: str | None) -> list[str]:
        if self.inputs is None:
            if not others:
                raise PartError(f"{self.where}: no column is left for the inputs, found {quoted(names)} only")
            return [usual] if usual in others else others
        if missing := [name for name in self.inputs if name not in names]:
            raise PartError(
                f"{self.where}: expected {quoted(missing)} among the inputs, found {quoted(names)}; "
                "say which to take with inputs=... (--inputs)"
            )
        if not self.inputs or len(set(self.inputs)) < len(self.inputs):
            raise SettingError(f"inputs={list(self.inputs)}: expected at least one name, and each once")
        return list(self.inputs)

    def check_size(self, num_bytes: int, what: str) -> None:
        """Refuse what would take more memory than is allowed, before it takes any."""
        if num_bytes > self.max_bytes:
            raise DataError(
                f"{self.where}: {what} would take {num_bytes:,} bytes, more than the {self.max_bytes:,} allowed; "
                f"if you trust the source, raise {MAX_BYTES_VARIABLE} (or max_bytes=...)"
            )

    @contextlib.contextmanager
    def decoding(self, form: str) -> Generator[None]:
        """What a decoder says of bytes it cannot read, as a sentence with a cure."""
        try:
            yield
        except PostpriorError:
            raise
        except Exception as error:  # decoders raise nearly anything when fed with broken bytes
            said = " ".join(str(error).split())
            raise DataError(f"{self.where} is truncated, damaged or not {form} ({said}); write it anew") from error


def allowed_bytes(given: int | None) -> int:
    """The limit on memory: the argument, or else the environment's, or else MAX_BYTES."""
    said = os.environ.get(MAX_BYTES_VARIABLE) if given is None else str(given)
    if not said:
        return MAX_BYTES
    if not said.isdecimal() or int(said) < 1:
        name = MAX_BYTES_VARIABLE if given is None else "max_bytes"
        raise SettingError(f"{name}={said}: expected a whole number of bytes, such as {MAX_BYTES}")
    return int(said)


def no_examples(where: str) -> PartError:
    """The error for a part without examples."""
    return PartError(f"{where} holds no example; a part needs at least one")


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def quoted(names: Sequence[str]) -> str:
    """Names in a message, the first of them where there are many."""
    shown = [repr(name) for name in names[:20]]
    return ", ".join([*shown, f"and {len(names) - 20} more"] if len(names) > 20 else shown)
