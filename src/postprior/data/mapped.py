"""Tables whose arrays stay in files, for processes that share a part: each holds the rows it looks at, and no others.

Arrays that lie in a file as they are, are mapped there. All others (compressed, Parquet, CSV) pass through memory a
block at a time, into temporary files without a name, which are gone with the process however it ends.
"""

import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any, cast

import numpy as np

from postprior.data.tables import Array, Table, Wanted, no_examples
from postprior.errors import PartError

BLOCK = 1 << 22
"""Bytes that pass through memory at a time."""


def in_file(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, order: str = "C") -> Array:
    """An array where it lies; what is written into it stays in this process."""
    return np.memmap(cast(Any, file), dtype, "c", offset, shape, cast(Any, order))


def spooled(blocks: Iterable[Array]) -> Array:
    """Arrays one after another as one, in a temporary file."""
    count, first = 0, None
    with tempfile.TemporaryFile() as file:
        for block in blocks:
            first = block[:0] if first is None else first
            file.write(np.ascontiguousarray(block).data)
            count += len(block)
        file.flush()
        assert first is not None, "there is at least one block"
        return in_file(file, first.dtype, (count, *first.shape[1:]), 0)


def member(
    archive: zipfile.ZipFile,
    file: IO[bytes],
    info: zipfile.ZipInfo,
    header: tuple[tuple[int, ...], bool, np.dtype[Any]],
    start: int,
    *,
    check: bool,
) -> Array:
    """An array of an .npz file, whose numbers begin at ``start`` of its member; ``check`` it against its checksum."""
    shape, fortran, dtype = header
    if info.compress_type == zipfile.ZIP_STORED:
        if check:
            _read_through(archive, info)
        whole = in_file(file, dtype, shape, _beginning(file, info) + start, "F" if fortran else "C")
    else:
        whole = spooled(_unpacked(archive, info, start))
        whole = np.ndarray(shape, dtype, whole.data, order="F" if fortran else "C").view(np.memmap)
    native = dtype.newbyteorder("=")
    if dtype == native and (not fortran or len(shape) == 1):
        return whole
    return spooled(block.astype(native) for block in _blocks(whole))


def columns_of(array: Array, places: Sequence[int]) -> Array:
    """Some columns of [N, D], which lie in a file if all did."""
    if not isinstance(array, np.memmap):
        return array[:, places]
    return spooled(block[:, places] for block in _blocks(array))


def joined(wanted: Wanted, tables: Iterator[Table]) -> Table:
    """Tables one after another as one, each of which is let go before the next: only targets are kept in memory."""
    first, targets, files, count = None, list[Array](), dict[str, IO[bytes]](), 0
    with ExitStack() as stack:
        for table in tables:
            if first is None:
                first = _without_rows(table)
                files = {name: stack.enter_context(tempfile.TemporaryFile()) for name in first.named_inputs()}
            for name, array in table.named_inputs().items():
                _check_alike(wanted, count, name, array, first.named_inputs()[name])
                files[name].write(np.ascontiguousarray(array).data)
            targets += [] if table.targets is None else [table.targets]
            count += len(table)
        if first is None:
            raise no_examples(wanted.where)
        arrays = dict[str, Array]()
        for name, array in first.named_inputs().items():
            files[name].flush()
            arrays[name] = in_file(files[name], array.dtype, (count, *array.shape[1:]), 0)
    inputs = next(iter(arrays.values())) if isinstance(first.inputs, np.ndarray) else arrays
    together = np.concatenate(targets) if targets else None
    return Table(inputs, together, columns=first.columns, classes=first.classes, kind=first.kind, where=wanted.where)


def _blocks(array: Array) -> Iterator[Array]:
    step = max(1, BLOCK * len(array) // max(1, array.nbytes))
    return (array[start : start + step] for start in range(0, len(array), step))


def _check_alike(wanted: Wanted, count: int, name: str, array: Array, first: Array) -> None:
    if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
        raise PartError(
            f"{wanted.where}: from row {count} (from 0) on, {name} is {array.dtype} of shape {array.shape[1:]} a row, "
            f"expected {first.dtype} of shape {first.shape[1:]} as in the first row; bring them to one length"
        )


def _without_rows(table: Table) -> Table:
    """What is to be remembered of a table: a row, copied, so that the others can go."""
    arrays = {name: array[:1].copy() for name, array in table.named_inputs().items()}
    inputs = next(iter(arrays.values())) if isinstance(table.inputs, np.ndarray) else arrays
    some = None if table.targets is None else table.targets[:1].copy()
    return Table(inputs, some, columns=table.columns, classes=table.classes, kind=table.kind, where=table.where)


def _beginning(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where a member's own bytes begin: after a header with its name once more, and notes that may differ."""
    file.seek(info.header_offset)
    header = file.read(30)
    return info.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")


def _read_through(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Read a member to its end, where its checksum is compared."""
    with archive.open(info) as stream:
        while stream.read(BLOCK):
            pass


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, start: int) -> Iterator[Array]:
    with archive.open(info) as stream:
        stream.read(start)
        while block := stream.read(BLOCK):
            yield np.frombuffer(block, np.uint8)
