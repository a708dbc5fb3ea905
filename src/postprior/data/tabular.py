"""Tables from files: CSV, Parquet, and what ``save_to_disk`` of Hugging Face's datasets writes."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from postprior.data import mapped
from postprior.data.columns import arrow, as_table, casts
from postprior.data.tables import Table, Wanted, no_examples
from postprior.errors import DataError

NOTHING = ("", "n/a", "na", "nan", "none", "null")
"""How text files write, in a column of numbers, that there is none."""

NUMBERS = ("int64", "float64")
"""Types of columns in text files, the first that fits; where none does they are text."""

BLOCK = 1 << 26
"""Bytes in which at least one row of a CSV file must have room."""

PANDAS_INDEX = "__index_level_"
"""Begins the name of a column that pandas adds to number its rows: no feature of theirs."""


def read_csv(wanted: Wanted, file: IO[bytes]) -> Table:
    """CSV in UTF-8 whose first row names the columns; a column is of numbers where all its values are."""
    pa = arrow()
    # One thread, so that the parser can say in which row it stumbled.
    # Arrow reads some 32 blocks ahead, so that they are smaller where not all is to be in memory.
    reading = pa.csv.ReadOptions(use_threads=False, block_size=mapped.BLOCK if wanted.mapped else BLOCK)
    parsing = pa.csv.ParseOptions(newlines_in_values=True)
    with wanted.decoding("CSV in UTF-8"):
        content = None if wanted.mapped else pa.py_buffer(file.read())
        with _again(file) if content is None else pa.BufferReader(content) as whole:
            names = pa.csv.open_csv(whole, reading, parsing).schema.names
    inputs, target = wanted.choose(names)
    # The types are found afterwards, from whole columns: pyarrow would judge by the beginning of the file.
    columns = [*inputs, *([] if target is None else [target])]
    converting = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), include_columns=columns)
    with wanted.decoding("CSV in UTF-8"):
        if content is None:
            return _streamed(wanted, lambda: _batches_of(file, reading, parsing, converting), inputs, target)
        text = pa.csv.read_csv(pa.BufferReader(content), reading, parsing, converting)
        typed = pa.table({name: _typed(text.column(name)) for name in columns})
    return as_table(wanted, typed, inputs, target, "csv")


def read_parquet(wanted: Wanted, file: IO[bytes]) -> Table:
    """The chosen columns of a Parquet file; what pandas adds to number the rows is passed over."""
    pa = arrow()
    with wanted.decoding("Parquet"):
        parquet = pa.parquet.ParquetFile(file)
        names = [name for name in parquet.schema_arrow.names if not name.startswith(PANDAS_INDEX)]
    if parquet.metadata.num_rows == 0:
        raise no_examples(wanted.where)
    inputs, target = wanted.choose(names)
    columns = [*inputs, *([] if target is None else [target])]
    with wanted.decoding("Parquet"):
        leaves = _chosen(parquet.schema, columns)
        wanted.check_size(_declared_bytes(parquet, leaves), "its columns")
        # Read as a dictionary, a text or picture that many rows share stays in memory once, as it is in the file.
        once = [parquet.schema.column(leaf).path for leaf in leaves if _is_text(parquet.schema.column(leaf))]
        # A thread that pyarrow begins may abort the process when it ends, where torch was imported before: have none.
        parquet = pa.parquet.ParquetFile(file, read_dictionary=once, pre_buffer=False)
        groups = range(
            parquet.metadata.num_row_groups
        )  # pyarrow cannot read pictures of several at once as a dictionary
        if wanted.mapped:
            return mapped.joined(wanted, _groups(wanted, parquet, groups, inputs, target))
        table = pa.concat_tables([parquet.read_row_group(i, columns=columns, use_threads=False) for i in groups])
        table.validate(full=True)  # damage may leave places outside of a column, or bytes that are no text
    return as_table(wanted, table, inputs, target, "parquet")


def _groups(
    wanted: Wanted, parquet: Any, groups: Iterable[int], inputs: Sequence[str], target: str | None
) -> Iterator[Table]:
    """One row group after another."""
    columns, first = [*inputs, *([] if target is None else [target])], 0
    for number in groups:
        table = parquet.read_row_group(number, columns=columns, use_threads=False)
        table.validate(full=True)
        if table.num_rows:
            yield as_table(wanted, table, inputs, target, "parquet", first)
        first += table.num_rows


def _again(file: IO[bytes]) -> IO[bytes]:
    """The file from its beginning. Arrow closes what it has read to the end, so it gets a handle of its own."""
    own = os.fdopen(os.dup(file.fileno()), "rb")
    own.seek(0)
    return own


def _batches_of(file: IO[bytes], *options: Any) -> Iterator[Any]:
    """The rows of a CSV file, some at a time."""
    with _again(file) as own:
        yield from (batch for batch in arrow().csv.open_csv(own, *options) if batch.num_rows)


def _streamed(wanted: Wanted, batches: Callable[[], Iterator[Any]], inputs: Sequence[str], target: str | None) -> Table:
    """What ``_typed`` makes of whole columns, in two passes: of what types they are, then a batch at a time."""
    pa, first = arrow(), 0
    kinds: dict[str, int] = dict.fromkeys([*inputs, *([] if target is None else [target])], 0)
    for batch in batches():
        for name in kinds:
            text = batch.column(name)
            fits = (i for i in range(kinds[name], len(NUMBERS)) if casts(_present(text), _number(i)) is not None)
            kinds[name] = next(fits, len(NUMBERS))
            if kinds[name] == len(NUMBERS) and name in inputs:
                # Refused here, where the first value stands that is none.
                as_table(wanted, pa.table({name: _trimmed(text)}), [name], None, "csv", first)
        first += batch.num_rows
    return mapped.joined(wanted, _typed_batches(wanted, batches(), kinds, inputs, target))


def _typed_batches(
    wanted: Wanted, batches: Iterator[Any], kinds: Mapping[str, int], inputs: Sequence[str], target: str | None
) -> Iterator[Table]:
    pa, first = arrow(), 0
    for batch in batches:
        columns = {name: batch.column(name) for name in kinds}
        typed = {
            name: _trimmed(text) if kinds[name] == len(NUMBERS) else casts(_present(text), _number(kinds[name]))
            for name, text in columns.items()
        }
        yield as_table(wanted, pa.table(typed), inputs, target, "csv", first)
        first += batch.num_rows


def is_saved(folder: Path) -> bool:
    """Whether a folder is what ``save_to_disk`` of Hugging Face's datasets writes."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def read_saved(wanted: Wanted, folder: Path) -> Table:
    """A Hugging Face dataset saved to disk; the package datasets is not needed."""
    if (folder / "dataset_dict.json").is_file():
        with wanted.decoding("a saved dataset"):
            splits = list(json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"])
            raise DataError(f"{folder} holds the splits {', '.join(splits)}; name one of them: {folder / splits[0]}")
    table = _shards(wanted, folder)
    with wanted.decoding("a saved dataset"):
        names = [str(name) for name in table.column_names]
    inputs, target = wanted.choose(names)
    return as_table(wanted, table, inputs, target, "saved dataset")


def _shards(wanted: Wanted, folder: Path) -> Any:
    with wanted.decoding("a saved dataset"):
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        names = [str(file["filename"]) for file in state["_data_files"]]
        if state.get("_indices_data_files"):
            raise DataError(f"{folder} was saved with its rows in another order, by an old version; save it anew")
    for name in names:
        if name in ("", ".", "..") or Path(name).name != name or "\\" in name:
            raise DataError(f"{folder / 'state.json'} names {name!r}, expected a file in the same folder; not read")
    batches, num_bytes = list[Any](), 0
    with wanted.decoding("a saved dataset"):
        for batch in (batch for name in names for batch in _batches(folder / name)):
            batch.validate(full=True)  # the format lets a file point outside of itself
            batches.append(batch)
            num_bytes += batch.nbytes
            wanted.check_size(num_bytes, "the dataset")
        if not batches:
            raise no_examples(wanted.where)
        return arrow().Table.from_batches(batches)


def _batches(path: Path) -> Iterator[Any]:
    """The record batches of an Arrow file or stream."""
    pa = arrow()
    with path.open("rb") as file:
        is_stream = file.read(6) != b"ARROW1"
        file.seek(0)
        if is_stream:
            yield from pa.ipc.open_stream(file)
        else:
            reader = pa.ipc.open_file(file)
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))


def _typed(text: Any) -> Any:
    """Whole numbers or numbers where every value that is there is one, else the text without blanks around it."""
    values = _present(text)
    found = (casts(values, _number(kind)) for kind in range(len(NUMBERS)))
    return next((column for column in found if column is not None), _trimmed(text))


def _trimmed(text: Any) -> Any:
    return arrow().compute.utf8_trim_whitespace(text)


def _present(text: Any) -> Any:
    """The text, null where it says that there is none."""
    pa, trimmed = arrow(), _trimmed(text)
    absent = pa.compute.is_in(pa.compute.utf8_lower(trimmed), value_set=pa.array(NOTHING))
    return pa.compute.if_else(absent, pa.scalar(None, pa.string()), trimmed)


def _number(kind: int) -> Any:
    return getattr(arrow(), NUMBERS[kind])()


def _chosen(schema: Any, columns: Sequence[str]) -> list[int]:
    """The numbers of the leaves of these columns, as Parquet calls what holds values."""
    paths = [schema.column(leaf).path for leaf in range(len(schema))]
    return [leaf for leaf, path in enumerate(paths) if any(path == c or path.startswith(f"{c}.") for c in columns)]


def _declared_bytes(parquet: Any, leaves: Sequence[int]) -> int:
    """What values of a fixed size take once they are read: a run of equal ones is stored in next to nothing."""
    metadata, total = parquet.metadata, 0
    for leaf in leaves:
        column, count = parquet.schema.column(leaf), metadata.num_rows
        if column.max_repetition_level:
            # Where a damaged file cannot be read here, pyarrow ends the process: only lists make it worth that.
            count = sum(metadata.row_group(i).column(leaf).num_values for i in range(metadata.num_row_groups))
        total += count * max(8, column.length)
    return total


def _is_text(column: Any) -> bool:
    """Whether a leaf holds text or pictures, which are of any length."""
    return column.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL"
