"""A part of data from an address: a file, a folder, something remote, or a function."""

import contextlib
import importlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from postprior import distributed
from postprior.batch import Part
from postprior.data.arrays import read_npz
from postprior.data.parts import TARGET_NAMES, as_inputs, as_part
from postprior.data.pictures import read_folder
from postprior.data.tables import Table, Wanted, allowed_bytes
from postprior.data.tabular import is_saved, read_csv, read_parquet, read_saved
from postprior.errors import DataError, MissingExtraError, PartError, PostpriorError, SettingError

READERS: dict[str, Callable[[Wanted, IO[bytes]], Table]] = {
    ".npz": read_npz,
    ".parquet": read_parquet,
    ".csv": read_csv,
}
"""By the ending of the address."""

KNOWN = f"{', '.join(READERS)}, a folder of pictures by class, a saved Hugging Face dataset, or module:function"

BLOCK = 1 << 22
"""Bytes of a remote file that are asked for at a time."""

FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def read(
    address: str | os.PathLike[str],
    *,
    target: str | None = None,
    inputs: Sequence[str] | None = None,
    labelled: bool = True,
    max_bytes: int | None = None,
) -> Table | Part:
    """The raw examples at an address; a function's are a part already.

        >>> import numpy as np, tempfile
        >>> path = tempfile.mkdtemp() + "/part.npz"
        >>> np.savez(path, x=np.zeros((6, 1, 8, 8), np.uint8), y=np.arange(6))
        >>> len(read(path))
        6

    Arguments:
        address: A .npz, .parquet or .csv file, on this machine or at any address that fsspec knows, such as s3://; a
            folder with a subfolder of pictures for each class; a folder that Hugging Face's datasets wrote; or
            ``package.module:function``, which is called without arguments and returns what ``as_part`` takes.
        target: The column, array or key that holds the targets; otherwise one of ``parts.TARGET_NAMES``.
        inputs: The columns or arrays to take, in this order; otherwise all others, or in .npz files ``x`` alone.
        labelled: Whether there must be targets; without, they are passed over.
        max_bytes: How much memory the part may take, for sources that are not trusted. Otherwise the environment
            variable POSTPRIOR_MAX_BYTES says, and else it is 4 GiB.
    """
    where = os.fspath(address)
    names = None if inputs is None else tuple(inputs)
    wanted = Wanted(where.partition("?")[0], target, names, labelled, allowed_bytes(max_bytes), distributed.size() > 1)
    remote, path = "://" in where, Path(where)
    if FUNCTION.fullmatch(where) and not path.exists():
        return _called(wanted)
    if not remote and path.is_dir():
        return read_saved(wanted, path) if is_saved(path) else read_folder(wanted, path)
    # In a chain of file systems such as simplecache::s3://bucket/part.csv any link may name the file.
    links = [link.partition("?")[0].lower() for link in where.split("::")] if remote else [where.lower()]
    reader = next((READERS[end] for link in links for end in READERS if link.endswith(end)), None)
    if reader is None:
        problem = "is in no known format" if remote or path.exists() else "is not there, and in no known format"
        raise DataError(f"{wanted.where} {problem}; expected {', '.join(READERS) if remote else KNOWN}")
    with _remote(wanted, where) if remote else _local(path) as file:
        wanted.check_size(file.seek(0, os.SEEK_END), "the file")
        file.seek(0)
        return reader(wanted, file)


@contextlib.contextmanager
def _local(path: Path) -> Generator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}; check the path") from error
    with file:
        yield file


@contextlib.contextmanager
def _remote(wanted: Wanted, address: str) -> Generator[IO[bytes]]:
    import fsspec

    try:
        with cast(Any, fsspec.open(address, "rb")) as file:
            content = tempfile.TemporaryFile() if wanted.mapped else io.BytesIO()  # noqa: SIM115  # closed below
            while block := file.read(min(BLOCK, wanted.max_bytes + 1 - content.tell())):
                content.write(block)
    except ImportError as error:
        raise MissingExtraError(f"{wanted.where} needs a package that is not here: {error}") from error
    except Exception as error:  # every file system has errors of its own
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise DataError(f"{wanted.where} cannot be read ({said}); check the address and your credentials") from error
    with content:
        content.seek(0)
        yield content


def _called(wanted: Wanted) -> Part:
    """What a function returns, as a part."""
    if wanted.inputs is not None:
        raise SettingError(f"inputs={list(wanted.inputs)} chooses columns, and {wanted.where} is a function: leave it")
    data = function_at(wanted.where)
    try:
        returned = data()
    except PostpriorError:
        raise
    except Exception as error:
        raise PartError(f"{wanted.where} raised {type(error).__name__}: {error}; mend the function") from error
    try:
        return as_part(returned, target=wanted.target) if wanted.labelled else _unlabelled(returned, wanted.target)
    except PartError as error:
        raise PartError(f"{wanted.where} returned what is no part: {error}") from error


def function_at(address: str) -> Callable[..., Any]:
    """The function at ``package.module:function``; a DataError where there is none."""
    name, _, path = address.partition(":")
    if name.partition(".")[0] in sys.stdlib_module_names:
        # A store may name functions, and may come from anyone: none of these gives data or networks, and some do harm.
        raise DataError(f"{address}: {name} belongs to Python itself; expected a function of a package or of your own")
    try:
        found: Any = importlib.import_module(name)
    except Exception as error:
        raise DataError(
            f"{address}: the module {name} cannot be imported ({type(error).__name__}: {error}); "
            "expected package.module:function, installed or on PYTHONPATH"
        ) from error
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise DataError(f"{address}: {name} has no {path!r}; expected a function of that name")
        found = getattr(found, attribute)
    if not callable(found):
        raise DataError(f"{address}: {path!r} is {type(found).__name__}, expected a function")
    return found


def _unlabelled(data: Any, target: str | None) -> Part:
    """The inputs of what ``as_part`` takes, or of what has inputs only: a bare array, a dictionary without targets."""
    if isinstance(data, tuple) and len(cast(tuple[Any, ...], data)) > 1:
        *values, _ = cast(tuple[Any, ...], data)
        return as_inputs(values[0] if len(values) == 1 else tuple(values))
    if isinstance(data, Mapping):
        names = TARGET_NAMES if target is None else (target,)
        mapping = cast(Mapping[str, Any], data)
        return as_inputs({key: value for key, value in mapping.items() if key not in names})
    return as_inputs(data)
