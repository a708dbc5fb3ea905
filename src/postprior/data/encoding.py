"""How raw examples become what the network is fed: chosen with the first part, and applied to every later one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor

from postprior.batch import Batch, Part
from postprior.data.forms import Form, check_forms, forms_of, named_tensors
from postprior.data.mapped import columns_of
from postprior.data.moments import first_not_finite, mean_and_sd
from postprior.data.parts import IndexedPart
from postprior.data.tables import ALONE, Array, Table, quoted
from postprior.errors import PartError, SettingError, StoreError

Moments = tuple[float | Sequence[float], float | Sequence[float]]
"""Mean and standard deviation: one for all features or channels, or one each."""

Normalise = Literal["standard", "none", "unit"] | Moments
"""By the first part's own mean and sd; not at all; pixels by 255 and nothing else; by the mean and sd given."""

WAYS = ("standard", "none", "unit")
"""What ``Normalise`` may be by name."""

AS_IT_IS = "what a function returns is fed as it is"


@dataclass(frozen=True)
class Encoding:
    """What becomes of raw values: inputs are normalised, names of classes become numbers.

    Pixels (uint8) become floats in any case; other whole numbers, such as tokens, are left as they are.

        >>> table = Table(np.array([[1.0, 5.0], [3.0, 5.0]]), np.array(["no", "yes"]))
        >>> batch = next(iter(Encoding.fit(table).part(table).batches(2)))
        >>> batch.args[0].tolist(), batch.targets.tolist()
        ([[-1.0, 0.0], [1.0, 0.0]], [0, 1])
    """

    forms: Mapping[str, Form]
    """Of every input by name; one that is the only one is called ``tables.ALONE``."""
    columns: tuple[str, ...] = ()
    """Which columns of numbers are stacked, in this order; empty where the input is no table of columns."""
    classes: tuple[str, ...] | None = None
    """The names of the classes, each of which becomes its place among them; None where targets are numbers."""

    def __post_init__(self) -> None:
        if not self.forms:
            raise SettingError("an encoding has at least one input, found none")
        for what, names in (("columns", self.columns), ("classes", self.classes or ())):
            check_once(what, names)
        shapes = {name: form.shape for name, form in self.forms.items()}
        if self.columns and shapes != {ALONE: (len(self.columns),)}:
            raise SettingError(f"inputs have the shapes {shapes}, expected one input of {len(self.columns)} columns")

    @classmethod
    def fit(
        cls,
        data: Table | Part,
        normalise: Normalise | Mapping[str, Normalise] = "standard",
        *,
        classes: Sequence[str] | None = None,
    ) -> Self:
        """The encoding that the first part asks for.

        Arguments:
            data: The first part. What a function returns is fed as it is, so ``normalise`` must be "none" for it.
            normalise: The same for all inputs, or by the name of each. Whole numbers but uint8 are left alone.
            classes: All names that targets may ever have, in the order of the network's outputs. Otherwise those that
                the source declares, or the sorted names of the first part.
        """
        names = None if classes is None else tuple(classes)
        if not isinstance(data, Table):
            if normalise != "none":
                raise SettingError(f"normalise={normalise!r}: {AS_IT_IS}; normalise there, and set normalise='none'")
            return cls(forms_of(data), classes=names)
        forms = forms_of(data)
        ways: Mapping[str, Normalise]
        ways = normalise if isinstance(normalise, Mapping) else dict.fromkeys(forms, normalise)
        if odd := sorted(forms.keys() ^ ways.keys()):
            raise SettingError(f"normalise has {quoted(odd)} in excess or missing, expected {quoted([*forms])}")
        fitted = {name: _fitted(data, name, form, ways[name]) for name, form in forms.items()}
        if names is None and data.targets is not None and data.targets.dtype.kind == "U":
            names = data.classes or tuple(np.unique(data.targets).tolist())
        return cls(fitted, data.columns, names)

    def part(self, data: Table | Part) -> Part:
        """A part to learn from or to score; each batch is encoded when it is fetched."""
        if not isinstance(data, Table):
            return self._as_it_is(data)
        if data.targets is None:
            raise PartError(f"{data.where} was read without its targets; read it with labelled=True")
        return self._indexed(data, self._numbers(data.where, data.targets))

    def inputs(self, data: Table | Part) -> Part:
        """A part to predict for, whether or not there are targets."""
        return self._indexed(data, None) if isinstance(data, Table) else self._as_it_is(data)

    def raw_inputs(self, data: Table | Part, count: int) -> dict[str, Tensor]:
        """The first ``count`` examples as they came, by the name of each input."""
        if isinstance(data, Table):
            return {name: _tensor(array[:count]) for name, array in self._arrays(data).items()}
        return named_tensors(next(iter(self._as_it_is(data).batches(count))))

    def to_json(self) -> dict[str, Any]:
        """Plain values that ``from_json`` takes."""
        forms = {
            name: {key: _thawed(value) for key, value in asdict(form).items()} for name, form in self.forms.items()
        }
        return {"inputs": forms, "columns": _thawed(self.columns), "classes": _thawed(self.classes)}

    @classmethod
    def from_json(cls, given: Any) -> Self:
        """The inverse of ``to_json``; a StoreError where the values cannot be those."""
        try:
            inputs = cast(Mapping[str, Mapping[str, Any]], given["inputs"])
            forms = {
                name: Form(**{key: _frozen(value) for key, value in form.items()}) for name, form in inputs.items()
            }
            columns, classes = given["columns"], given["classes"]
            return cls(forms, _names(columns), None if classes is None else _names(classes))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            said = f"{error} is missing" if isinstance(error, KeyError) else error
            raise StoreError(f"the encoding is damaged or of another version ({said}); restore its file") from error

    def _indexed(self, table: Table, targets: Tensor | None) -> IndexedPart:
        arrays = self._arrays(table)
        raw = {name: _tensor(array) for name, array in arrays.items() if not isinstance(array, np.memmap)}
        converters = {name: form.converter() for name, form in self.forms.items()}

        def chosen(name: str, indices: Tensor) -> Tensor:
            # What lies in a file is read row by row, not whole.
            return raw[name][indices] if name in raw else _tensor(np.asarray(arrays[name][indices.numpy()]))

        def fetch(indices: Tensor) -> Batch:
            values = {name: converters[name](chosen(name, indices)) for name in arrays}
            args, kwargs = (tuple(values.values()), {}) if len(values) == 1 else ((), values)
            return Batch(args, kwargs, None if targets is None else targets[indices])

        return IndexedPart(fetch, torch.arange(len(table)))

    def _arrays(self, table: Table) -> dict[str, Array]:
        """The table's inputs, chosen and ordered by name."""
        found = table.named_inputs()
        if self.columns and table.columns and self.columns != table.columns:
            if missing := [name for name in self.columns if name not in table.columns]:
                raise PartError(
                    f"{table.where}: expected the columns {quoted(self.columns)} of the first part, "
                    f"found {quoted(table.columns)}; add {quoted(missing)}"
                )
            found = {ALONE: columns_of(found[ALONE], [table.columns.index(name) for name in self.columns])}
            table = Table(found, None, self.columns, where=table.where)
        check_forms(table.where, self.forms, forms_of(table))
        return {name: found[name] for name in self.forms}

    def _as_it_is(self, part: Part) -> Part:
        if any(form.mean for form in self.forms.values()):
            raise PartError(f"{AS_IT_IS}, but the first part was normalised; give a file, as for the first part")
        check_forms("the part", self.forms, forms_of(part))
        return part

    def _numbers(self, where: str, targets: Array) -> Tensor:
        """Targets as numbers: the place of each name among the classes, or the numbers that they are."""
        is_text = targets.dtype.kind == "U"
        if self.classes is None:
            if is_text:
                found = str(targets[0])
                raise PartError(f"{where}: example 0 has target {found!r}, expected a number, as in the first part")
            return _tensor(targets.astype(np.int64) if targets.dtype.kind in "biu" else targets)
        if not is_text and (targets.dtype.kind == "f" or targets.ndim > 1):
            found = f"{targets.dtype} of shape {targets.shape}"
            raise PartError(f"{where}: targets are {found}, expected one name an example among {quoted(self.classes)}")
        labels = targets if is_text else targets.astype(np.int64).astype(str)  # the digits have such names
        names, positions = np.unique(labels, return_inverse=True)
        places = {name: place for place, name in enumerate(self.classes)}
        numbers = np.array([places.get(name, -1) for name in names.tolist()])[positions]
        if (numbers < 0).any():
            example = int((numbers < 0).argmax())
            raise PartError(
                f"{where}: example {example} has label {str(labels[example])!r}, "
                f"expected one of {quoted(self.classes)}; mend it, or begin anew with all classes (classes=...)"
            )
        return torch.from_numpy(numbers)


def check_once(what: str, names: Sequence[str]) -> None:
    """Raise a SettingError where a name is there twice."""
    if len(set(names)) < len(names):
        raise SettingError(f"{what} are {quoted(names)}, expected each once")


def check_way(how: object) -> None:
    """Raise a SettingError where this is no way to normalise, as far as can be told before there are data."""
    if how not in WAYS if isinstance(how, str) else len(cast(Sequence[Any], how)) != 2:
        raise SettingError(f"normalise={how!r}: expected {', '.join(map(repr, WAYS))}, or (mean, sd)")


def _fitted(table: Table, name: str, form: Form, how: Normalise) -> Form:
    """The form with the mean and sd that are asked for."""
    if isinstance(how, str):
        check_way(how)
        if how == "none" or form.kind in ("integers", "booleans") or (how == "unit" and form.kind == "floats"):
            return form
        mean, sd = ((0.0,), (255.0,)) if how == "unit" else _moments(table, name)
        return Form(form.kind, form.shape, mean, sd)
    try:
        mean, sd = (tuple(np.atleast_1d(np.asarray(moment, np.float64)).tolist()) for moment in how)
        return Form(form.kind, form.shape, mean, sd)
    except (TypeError, ValueError) as error:
        said = f"{name}: {error}" if isinstance(error, SettingError) else "expected a mean and an sd"
        raise SettingError(f"normalise={how!r}: {said}") from error


def _moments(table: Table, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    array = table.named_inputs()[name]
    bad = None if array.dtype == np.uint8 else first_not_finite(array)
    if bad is not None:
        what = f"{name} (column {table.columns[bad[1]]!r})" if table.columns else name
        raise PartError(
            f"{table.where}: example {bad[0]}: {what} holds {array[bad]}, expected finite numbers; mend or drop it"
        )
    mean, sd = mean_and_sd(array)
    if not all(map(math.isfinite, (*mean, *sd))):
        raise PartError(f"{table.where}: {name} holds numbers too large to be averaged; scale them down")
    return mean, sd


def _tensor(array: Array) -> Tensor:
    """The array's own memory, where a tensor can lie in it."""
    if array.dtype.kind == "u" and array.dtype != np.uint8:  # most of torch does not know the others
        array = array.astype(np.int64)
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _names(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in cast(list[Any], given)):
        raise TypeError(f"expected a list of names, found {given!r}")
    return tuple(cast(list[str], given))


def _thawed(value: Any) -> Any:
    return list(cast(tuple[Any, ...], value)) if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(cast(list[Any], value)) if isinstance(value, list) else value
