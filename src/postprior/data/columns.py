"""Columns of an Arrow table as arrays.

Numbers are stacked to [N, D] float32 in the order of the columns. Where a column holds lists or pictures, every column
is an input of its own, in its own type.

Shapes: N rows, D columns.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from postprior.data.pictures import decoded
from postprior.data.published import missing_extra
from postprior.data.tables import Array, Table, Wanted, no_examples
from postprior.errors import PartError

READABLE_NOTE = "a file with a readable note on its features"


def arrow() -> Any:
    """The package pyarrow with the modules used here."""
    try:
        for module in ("compute", "csv", "parquet"):
            import_module(f"pyarrow.{module}")
        return import_module("pyarrow")
    except ImportError as error:
        raise missing_extra("pyarrow", "reading Parquet, CSV and saved datasets") from error


def as_table(wanted: Wanted, table: Any, inputs: Sequence[str], target: str | None, kind: str, first: int = 0) -> Table:
    """The chosen columns of an Arrow table. What Hugging Face's datasets note of a column's meaning is heeded.

    ``first`` numbers its first row, where it is not all that there is.
    """
    if table.num_rows == 0:
        raise no_examples(wanted.where)
    features = _features(wanted, table.schema)

    def column(name: str) -> _Column:
        return _Column(wanted, name, _plain(wanted, table.column(name)), features.get(name, {}), first)

    taken = [column(name) for name in inputs]
    targets, classes = (None, None) if target is None else column(target).targets()
    scalar = all(each.is_scalar() for each in taken)
    arrays = _stacked(wanted, taken) if scalar else {each.name: each.array() for each in taken}
    names = tuple(inputs) if scalar else ()
    return Table(arrays, targets, columns=names, classes=classes, kind=kind, where=wanted.where)


@dataclass(frozen=True)
class _Column:
    """One column, and what is known of its meaning."""

    wanted: Wanted
    name: str
    values: Any
    feature: Mapping[str, Any]
    first: int = 0

    def is_scalar(self) -> bool:
        """Whether there is one value a row."""
        return not (self._has_pictures() or _has_lists(self.values))

    def array(self) -> Array:
        """Pictures [N, C, H, W], or numbers with an axis for every level of lists."""
        if self._has_pictures():
            return decoded(self.wanted, [(f"{self._at(i)}", partial(self._picture, i)) for i in range(self._rows())])
        pa, values, shape = arrow(), self.values, list[int]()
        while _has_lists(values):
            self._refuse_nothing(values)
            lengths = pa.compute.list_value_length(values).to_numpy()
            if (lengths != lengths[0]).any() or lengths[0] == 0:
                odd = int((lengths != lengths[0]).argmax())
                found, expected = lengths[odd], lengths[0] or "at least one"
                raise PartError(
                    f"{self._at(odd, values)}: a list of {found}, expected {expected} as in the first row; "
                    "pad or cut the lists to one length"
                )
            shape.append(int(lengths[0]))
            values = _plain(self.wanted, pa.compute.list_flatten(values))
        return self.numbers(values).reshape(self._rows(), *shape)

    def numbers(self, values: Any) -> Array:
        """Values as an array; what is no number is refused, with its row."""
        pa = arrow()
        self._refuse_nothing(values)
        if _has_text(values):
            row = _first_text(values)
            raise self._unexpected("a number", values, row, f"{values[row].as_py()!r:.80}")
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.uint8())
        elif pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise self._unexpected("a number", values, 0, f"a value of type {values.type}")
        return values.to_numpy()

    def targets(self) -> tuple[Array, tuple[str, ...] | None]:
        """Numbers or names, and all names there are where the dataset declares them."""
        if self.feature.get("_type") == "ClassLabel" and self.is_scalar():
            with self.wanted.decoding(READABLE_NOTE):
                names = [str(name) for name in self.feature["names"]]
            return self._labels(names)
        if not _has_text(self.values):
            return self.array(), None
        self._refuse_nothing(self.values)
        longest = arrow().compute.max(arrow().compute.utf8_length(self.values)).as_py()
        self.wanted.check_size(4 * longest * self._rows(), f"{self._rows():,} names")  # numpy gives all the same room
        names = np.array(self.values.to_pylist(), str)
        if (names == "").any():
            raise self._unexpected("a name", self.values, int((names == "").argmax()), "nothing")
        return names, None

    def _labels(self, names: Sequence[str]) -> tuple[Array, tuple[str, ...]]:
        numbers = self.numbers(self.values)
        bad = ~np.isin(numbers, np.arange(len(names)))
        if bad.any():
            row = int(bad.argmax())
            raise self._unexpected(f"a class from 0 to {len(names) - 1}", self.values, row, str(numbers[row]))
        return np.array(names, str)[numbers.astype(np.int64)], tuple(names)

    def _has_pictures(self) -> bool:
        return self.feature.get("_type") == "Image" and arrow().types.is_struct(self.values.type)

    def _picture(self, row: int) -> io.BytesIO:
        content = (self.values[row].as_py() or {}).get("bytes")
        if content is None:
            # A path may be given in its place, and it may lead anywhere on this machine.
            raise self._unexpected("a picture", self.values, row, "none in the file itself")
        return io.BytesIO(content)

    def _rows(self) -> int:
        return len(self.values)

    def _at(self, index: int, values: Any = None) -> str:
        per_row = 1 if values is None else max(1, len(values) // self._rows())
        return f"{self.wanted.where}: column {self.name!r}, row {self.first + index // per_row} (from 0)"

    def _refuse_nothing(self, values: Any) -> None:
        if values.null_count:
            pa = arrow()
            index = pa.compute.index(pa.compute.is_null(values), True).as_py()
            raise self._unexpected("a value", values, index, "nothing")

    def _unexpected(self, expected: str, values: Any, index: int, found: str) -> PartError:
        cure = "mend or drop the row, or choose other columns with inputs=... (--inputs) and target=... (--target)"
        return PartError(f"{self._at(index, values)}: expected {expected}, found {found}; {cure}")


def _stacked(wanted: Wanted, columns: Sequence[_Column]) -> Array:
    num_rows = len(columns[0].values)
    wanted.check_size(4 * num_rows * len(columns), f"{num_rows:,} rows of {len(columns):,} columns")
    stacked = np.empty((num_rows, len(columns)), np.float32)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        for i, column in enumerate(columns):
            stacked[:, i] = column.numbers(column.values)
    return stacked


def _features(wanted: Wanted, schema: Any) -> Mapping[str, Any]:
    """What each column means, where the file was written by Hugging Face's datasets."""
    note = (schema.metadata or {}).get(b"huggingface")
    if note is None:
        return {}
    with wanted.decoding(READABLE_NOTE):
        features = dict[str, Any](json.loads(note)["info"]["features"])
    # Older versions note a column of lists as a list.
    return {name: feature for name, feature in features.items() if isinstance(feature, dict)}


def _plain(wanted: Wanted, column: Any) -> Any:
    """The column without what only says how it is stored."""
    pa = arrow()
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if not pa.types.is_dictionary(column.type):
        return column
    kind = column.type.value_type
    if _is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        lengths = [pa.compute.max(pa.compute.binary_length(chunk.dictionary)).as_py() or 0 for chunk in chunks]
        wanted.check_size(max(lengths) * len(column), f"{len(column):,} texts")
    return column if pa.types.is_nested(kind) else column.cast(kind)


def _has_lists(values: Any) -> bool:
    types = arrow().types
    return types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type)


def _has_text(values: Any) -> bool:
    return _is_text(values.type)


def _is_text(kind: Any) -> bool:
    types = arrow().types
    return types.is_string(kind) or types.is_large_string(kind)


def _first_text(values: Any) -> int:
    """Where the first value stands that is no number, or 0 where all could be."""
    pa, first, end = arrow(), 0, len(values)
    if casts(values, pa.float64()) is not None:
        return 0
    while end - first > 1:  # it is among these
        middle = (first + end) // 2
        if casts(values.slice(first, middle - first), pa.float64()) is None:
            end = middle
        else:
            first = middle
    return first


def casts(values: Any, to: Any) -> Any:
    """The values in another type, or None where one of them is none of that type."""
    try:
        return values.cast(to)
    except arrow().ArrowInvalid:
        return None
