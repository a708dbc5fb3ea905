"""Arrays from .npz files, which are zip archives: nothing is unpickled, and nothing unpacks to more than it says."""

import math
import zipfile
from typing import IO

import numpy as np

from postprior import distributed
from postprior.data import mapped
from postprior.data.tables import Array, Table, Wanted
from postprior.errors import DataError, PartError

READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(wanted: Wanted, file: IO[bytes]) -> Table:
    """Inputs from the array ``x``, or else from all arrays but the targets; those from ``y`` or another usual name."""
    with wanted.decoding("an .npz file"), zipfile.ZipFile(file) as archive:
        stored = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        names = [info.filename.removesuffix(".npy") for info in stored]
        inputs, target = wanted.choose(names, usual="x")
        chosen = [*inputs, *([] if target is None else [target])]
        members = {name: stored[names.index(name)] for name in chosen}
        wanted.check_size(sum(member.file_size for member in members.values()), "its arrays")
        arrays = {name: _array(wanted, archive, file, name, member) for name, member in members.items()}
    targets = None if target is None else arrays.pop(target)
    return Table(arrays, _text(wanted, targets), kind="npz", where=wanted.where)


def _array(wanted: Wanted, archive: zipfile.ZipFile, file: IO[bytes], name: str, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as stream:
        header = READ_HEADER.get(np.lib.format.read_magic(stream))
        if header is None:
            raise DataError(f"{wanted.where}: array {name!r} has a header of an unknown version; write it anew")
        shape, fortran, dtype = header(stream)
        if dtype.hasobject:
            raise PartError(
                f"{wanted.where}: array {name!r} holds Python objects, which could only be unpickled, and that can run "
                "code; save numbers, or text as np.array(labels, str)"
            )
        # Text of no letters takes no bytes, so its header could claim any number of examples.
        if not dtype.itemsize or stream.tell() + math.prod(shape) * dtype.itemsize != member.file_size:
            raise DataError(
                f"{wanted.where}: array {name!r} should be {dtype} of shape {shape} by its header, which is not what "
                f"{member.file_size:,} bytes hold; write it anew"
            )
        if wanted.mapped and math.prod(shape):
            # The first process reads all of it anyway, for the fingerprint; the others need not.
            about = (shape, fortran, dtype)
            return mapped.member(archive, file, member, about, stream.tell(), check=distributed.is_first())
        stream.seek(0)
        return np.lib.format.read_array(stream, allow_pickle=False)


def _text(wanted: Wanted, targets: Array | None) -> Array | None:
    """Names as str, where they were saved as bytes."""
    if targets is None or targets.dtype.kind != "S":
        return targets
    with wanted.decoding("an .npz file with names in UTF-8"):
        return np.char.decode(targets, "utf-8")
