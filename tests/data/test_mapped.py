"""Processes that share a part keep its rows in files: the same table, the same fingerprint, and few rows in memory."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from postprior import distributed
from postprior.data import fingerprint as fingerprints
from postprior.data import mapped, moments, readers
from postprior.data.columns import arrow
from postprior.data.encoding import Encoding
from postprior.data.fingerprint import fingerprint
from postprior.data.forms import Form
from postprior.data.readers import read
from postprior.data.tables import ALONE, Table
from postprior.errors import DataError, PartError
from postprior.learning.shards import own_share
from processes import said, together

pytest.importorskip("pyarrow")
pa = arrow()

ROWS = 1000


def rows(count: int = ROWS, width: int = 4) -> tuple[Any, Any]:
    g = np.random.default_rng(0)
    return g.standard_normal((count, width)).astype(np.float32), np.arange(count) % 7


def columns() -> dict[str, Any]:
    x, y = rows()
    return {"b": x[:, 0], "a": x[:, 1].astype(np.float64), "count": y - 3, "label": [f"name {i}" for i in y]}


def npz(path: Path, compressed: bool = False, **arrays: Any) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def parquet(path: Path, table: Any = None, size: int = 90) -> Path:
    pa.parquet.write_table(pa.table(columns()) if table is None else table, path, row_group_size=size)
    return path


def csv(path: Path, table: Any = None) -> Path:
    pa.csv.write_csv(pa.table(columns()) if table is None else table, path)
    return path


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on as if in the first of several processes, with blocks of a few rows."""

    def begin() -> None:
        monkeypatch.setattr(distributed, "size", lambda: 2)
        monkeypatch.setattr(mapped, "BLOCK", 1 << 12)
        monkeypatch.setattr(readers, "BLOCK", 1 << 10)

    return begin


FILES: dict[str, Callable[[Path], Path]] = {
    "plain": lambda folder: npz(folder / "a.npz", x=rows()[0], y=rows()[1]),
    "compressed": lambda folder: npz(folder / "a.npz", True, x=rows()[0], y=rows()[1]),
    "several": lambda folder: npz(
        folder / "a.npz", image=rows()[0], token=rows()[1][:, None].astype(">u2"), y=rows()[1]
    ),
    "columns first": lambda folder: npz(folder / "a.npz", x=np.asfortranarray(rows()[0]), y=rows()[1].astype(str)),
    "columns first, compressed": lambda folder: npz(
        folder / "a.npz", True, x=np.asfortranarray(rows()[0]), y=rows()[1]
    ),
    "the other end first": lambda folder: npz(folder / "a.npz", x=rows()[0].astype(">f8"), y=rows()[1].astype(">i2")),
    "parquet": lambda folder: parquet(folder / "a.parquet"),
    "lists": lambda folder: parquet(
        folder / "a.parquet", pa.table({"x": [[*map(float, row)] for row in rows()[0]], "label": rows()[1]})
    ),
    "csv": lambda folder: csv(folder / "a.csv"),
}


@pytest.mark.parametrize("kind", FILES)
def test_it_is_the_same_table(kind: str, tmp_path: Path, shared: Callable[[], None]) -> None:
    path = FILES[kind](tmp_path)
    whole = read(path)
    shared()
    found = read(path)
    assert isinstance(whole, Table)
    assert isinstance(found, Table)
    assert whole.targets is not None
    assert found.named_inputs().keys() == whole.named_inputs().keys()
    for name, array in found.named_inputs().items():
        assert isinstance(array, np.memmap)
        expected = whole.named_inputs()[name]
        assert array.dtype == expected.dtype.newbyteorder("=")
        np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(found.targets, whole.targets)
    assert (found.kind, found.columns, found.classes, found.where) == (
        whole.kind,
        whole.columns,
        whole.classes,
        whole.where,
    )
    assert fingerprint(found).fingerprint == fingerprint(whole).fingerprint
    encoding, other = Encoding.fit(whole), Encoding.fit(found)
    assert (other.columns, other.classes) == (encoding.columns, encoding.classes)
    for name, form in encoding.forms.items():  # sums in another order are rounded otherwise
        assert other.forms[name].mean == pytest.approx(form.mean, rel=1e-12)
        assert other.forms[name].sd == pytest.approx(form.sd, rel=1e-12)
    batch, expected = (next(iter(encoding.part(table).batches(ROWS))) for table in (found, whole))
    assert batch.targets is not None
    assert expected.targets is not None
    assert torch.equal(batch.targets, expected.targets)
    for one, other in zip(batch.inputs(), expected.inputs(), strict=True):
        assert torch.equal(one[1], other[1])


def test_what_is_wrong_is_said_with_the_row(tmp_path: Path, shared: Callable[[], None]) -> None:
    shared()
    x = [*map(str, range(900))]
    texts = pa.table({"x": [*x[:700], "seven", *x[701:]], "label": range(900)})
    gaps = pa.table({"x": [*range(700), None, *range(701, 900)], "label": range(900)})
    lists = pa.table({"x": [[1.0, 2.0]] * 180 + [[1.0]] * 90, "label": range(270)})
    ragged = pa.table({"x": [[1.0, 2.0]] * 200 + [[1.0]] * 70, "label": range(270)})
    cases: list[tuple[Path, str]] = [
        (csv(tmp_path / "a.csv", texts), r"'x', row 700 \(from 0\): expected a number, found 'seven'"),
        (csv(tmp_path / "b.csv", gaps), r"'x', row 700 \(from 0\): expected a value, found nothing"),
        (parquet(tmp_path / "c.parquet", texts), r"'x', row 0 \(from 0\)|'x', row 700 \(from 0\)"),
        (parquet(tmp_path / "d.parquet", gaps), r"'x', row 700 \(from 0\): expected a value, found nothing"),
        (parquet(tmp_path / "e.parquet", lists), r"from row 180 \(from 0\) on, input is double of shape|from row 180"),
        (parquet(tmp_path / "f.parquet", ragged), r"'x', row 200 \(from 0\): a list of 1, expected 2"),
        (csv(tmp_path / "g.csv", gaps.slice(0, 0)), "holds no example"),
    ]
    for path, message in cases:
        with pytest.raises(PartError, match=message):
            read(path)
    damaged = npz(tmp_path / "h.npz", x=rows()[0], y=rows()[1])
    data = bytearray(damaged.read_bytes())
    data[2000] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(DataError, match=r"Bad CRC-32 for file 'x\.npy'"):
        read(damaged)


def test_a_remote_file_goes_through_a_temporary_one(tmp_path: Path, shared: Callable[[], None]) -> None:
    memory: Any = fsspec.filesystem("memory")
    for kind in ("plain", "csv"):
        path = FILES[kind](tmp_path)
        memory.pipe(f"/mapped/{path.name}", path.read_bytes())
    shared()
    for name in ("a.npz", "a.csv"):
        found = read(f"memory://mapped/{name}")
        assert isinstance(found, Table)
        assert len(found) == ROWS
        assert all(isinstance(array, np.memmap) for array in found.named_inputs().values())


@pytest.mark.parametrize("kind", ["plain", "compressed", "parquet", "csv"])
def test_no_process_holds_all_rows(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fingerprint and normalisation by the first process, then each its own rows, batch after batch."""
    x, y = rows(4_000, 100)
    table = pa.table({**{f"c{i}": x[:, i] for i in range(100)}, "label": y})
    makers: dict[str, Callable[[], Path]] = {
        "plain": lambda: npz(tmp_path / "a.npz", x=x, y=y),
        "compressed": lambda: npz(tmp_path / "a.npz", True, x=x, y=y),
        "parquet": lambda: parquet(tmp_path / "a.parquet", table, 400),
        "csv": lambda: csv(tmp_path / "a.csv", table),
    }
    path = makers[kind]()
    block = 1 << 15
    for room in (mapped, moments, fingerprints):
        monkeypatch.setattr(room, "BLOCK", block)

    def learn(rank: int) -> Any:
        pool = pa.default_memory_pool()
        before, held = pool.bytes_allocated(), 0
        tracemalloc.start()
        found = read(path)
        if rank == 0:
            fingerprint(found)
        encoding = Encoding.fit(found) if rank == 0 else Encoding.fit(found, (0.0, 1.0))
        if encoding.columns:  # as if the first part had had them in another order
            form = {ALONE: Form("floats", (100,))}
            encoding = Encoding(form, encoding.columns[::-1], encoding.classes)
        part = own_share(encoding.part(found))
        numbers = 0
        for batch in part.batches(500):
            numbers += len(batch)
            held = max(held, pool.bytes_allocated() - before)
        return [numbers, tracemalloc.get_traced_memory()[1], held]

    for numbers, peak, in_arrow in said(together(2, learn, tmp_path)):
        assert numbers == 2_000
        # All rows are 1.6 MB; labels, numbers and hashes of all examples, and an encoded batch, are counted too.
        ahead = 33 * block if kind == "csv" else 0  # of a text that is three times as long
        assert peak < 0.55 * x.nbytes + ahead, peak / x.nbytes
        assert in_arrow < 0.1 * x.nbytes
