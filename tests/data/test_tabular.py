"""CSV, Parquet and saved datasets: what is read of them, and what is said of a bad one."""

import io
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from postprior.data.readers import read
from postprior.data.tables import ALONE, Table
from postprior.errors import DataError, MissingExtraError, PartError


def table(address: Path, **options: Any) -> Table:
    found = read(address, **options)
    assert isinstance(found, Table)
    return found


def csv(folder: Path, text: str | bytes, **options: Any) -> Table:
    path = folder / "part.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return table(path, **options)


def parquet(folder: Path, columns: Any, **options: Any) -> Table:
    path = folder / "part.parquet"
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path)
    return table(path, **options)


def listed(found: Table) -> tuple[Any, Any]:
    assert found.targets is not None
    return found.named_inputs()[ALONE].tolist(), found.targets.tolist()


# CSV


@pytest.mark.parametrize(
    "text",
    [
        "a,b,label\n1,2.5,0\n3,4,1\n",
        "a,b,label\r\n1,2.5,0\r\n3,4,1",
        "\ufeffa,b,label\n1,2.5,0\n3,4,1\n",
        'a,"b",label\n"1", 2.5 ,0\n\n3e0,+4,1\n',
    ],
    ids=["plain", "carriage returns", "byte order mark", "quotes and blanks"],
)
def test_numbers_in_csv(text: str, tmp_path: Path) -> None:
    found = csv(tmp_path, text)
    assert listed(found) == ([[1.0, 2.5], [3.0, 4.0]], [0, 1])
    assert (found.kind, found.columns, found.classes) == ("csv", ("a", "b"), None)
    assert found.named_inputs()[ALONE].dtype == np.float32


def test_names_in_csv(tmp_path: Path) -> None:
    found = csv(tmp_path, 'a,species\n1, iris setosa \n2,"ü, or\nanother"\n3,none\n', target="species")
    assert listed(found) == ([[1.0], [2.0], [3.0]], ["iris setosa", "ü, or\nanother", "none"])


def test_columns_are_chosen_in_their_order(tmp_path: Path) -> None:
    text = "id,a,b,label\nx1,1,2,0\nx2,3,4,1\n"
    found = csv(tmp_path, text, inputs=["b", "a"])
    assert (listed(found)[0], found.columns) == ([[2.0, 1.0], [4.0, 3.0]], ("b", "a"))
    assert csv(tmp_path, text, inputs=["a"], labelled=False).targets is None
    with pytest.raises(PartError, match=r"expected 'c' among the inputs, found 'id', 'a', 'b', 'label'; say which"):
        csv(tmp_path, text, inputs=["a", "c"])
    with pytest.raises(PartError, match=r"expected 'species' to hold the targets, found 'id', 'a', 'b', 'label'; say"):
        csv(tmp_path, text, target="species")


def test_types_are_those_of_whole_columns(tmp_path: Path) -> None:
    """What begins as whole numbers and ends otherwise is not judged by its beginning."""
    start = "a,label\n" + "1,0\n" * 5000
    assert csv(tmp_path, start + "0.5,1\n").named_inputs()[ALONE][-1].tolist() == [0.5]
    targets = csv(tmp_path, start + "1,0.5\n").targets
    assert targets is not None
    assert targets.dtype == np.float64
    with pytest.raises(PartError, match=r"column 'a', row 5000 \(from 0\): expected a number, found 'x'; mend or drop"):
        csv(tmp_path, start + "x,1\n")


BAD_CSV = [
    ("", DataError, r"part.csv is truncated, damaged or not CSV in UTF-8 \(Empty CSV file\); write it anew"),
    ("\n\n", DataError, "not CSV in UTF-8"),
    ("a,label\n", PartError, "part.csv holds no example; a part needs at least one"),
    ("a,b,label\n1,2,0\n3,1\n", DataError, r"not CSV in UTF-8 \(.*Row #3: Expected 3 columns, got 2: 3,1\)"),
    ("a,label\n1,0,5\n", DataError, r"Row #2: Expected 2 columns, got 3: 1,0,5"),
    ('a,label\n"1,0\n', DataError, "Row #2: Expected 2 columns, got 1"),
    (b"a,label\n1,\xe9\n", DataError, "not CSV in UTF-8 .*invalid UTF8 data"),
    (b"a,label\n\x00\x01\x02", DataError, "not CSV in UTF-8"),
    ("a;label\n1;0\n", PartError, "expected one of label, .* to hold the targets, found 'a;label'; say which"),
    ("1,2\n3,4\n", PartError, "expected one of label, .* to hold the targets, found '1', '2'"),
    ("a,a,label\n1,2,0\n", PartError, "part.csv has two columns called 'a'; give each a name of its own"),
    ("label\n1\n", PartError, "no column is left for the inputs, found 'label' only"),
    ("a,label\n1,0\ntrue,1\n", PartError, r"column 'a', row 1 \(from 0\): expected a number, found 'true'; mend"),
    ("a,label\n1,0\n,1\n", PartError, r"column 'a', row 1 \(from 0\): expected a value, found nothing; mend or drop"),
    ("a,label\n1,0\nNaN,1\n", PartError, "column 'a', row 1 .*: expected a value, found nothing"),
    ("a,label\n1,0\n2,N/A\n", PartError, "column 'label', row 1 .*: expected a value, found nothing"),
    ("a,label\n1,yes\n2,\n", PartError, "column 'label', row 1 .*: expected a name, found nothing"),
]


@pytest.mark.parametrize(("text", "error", "message"), BAD_CSV, ids=[repr(row[0]) for row in BAD_CSV])
def test_a_bad_csv(text: str | bytes, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        csv(tmp_path, text)


def test_a_message_does_not_repeat_a_whole_book(tmp_path: Path) -> None:
    with pytest.raises(PartError) as raised:
        csv(tmp_path, f"a,label\n{'x' * 100_000},0\n")
    assert len(str(raised.value)) < 1000


def test_one_long_name_among_many_takes_no_memory(tmp_path: Path) -> None:
    """Every name would get the room of the longest: 10 GB for a file of 1 MB."""
    rows = "1,a\n" * 100_000
    with pytest.raises(DataError, match=r"100,001 names would take 10,000,100,000 bytes, more than the 4,294,967,296"):
        csv(tmp_path, f"a,label\n{rows}2,{'b' * 25_000}\n")


# Parquet


def test_numbers_in_parquet(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "whole": pa.array([1, 2], pa.int8()),
        "half": pa.array([0.5, 1.5], pa.float16()),
        "true": [True, False],
        "exact": [Decimal("1.25"), Decimal("2.50")],
        "coded": pa.array([7.0, 9.0]).dictionary_encode(),
        "label": ["no", "yes"],
    }
    found = parquet(tmp_path, columns)
    assert listed(found) == ([[1.0, 0.5, 1.0, 1.25, 7.0], [2.0, 1.5, 0.0, 2.5, 9.0]], ["no", "yes"])
    assert found.named_inputs()[ALONE].dtype == np.float32
    assert (found.kind, found.columns) == ("parquet", ("whole", "half", "true", "exact", "coded"))


def test_what_pandas_writes(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "label": pd.Categorical(["no", "yes", "no"])}, index=[5, 6, 9])
    frame.to_parquet(tmp_path / "part.parquet")
    found = table(tmp_path / "part.parquet")
    assert (listed(found), found.columns) == (([[1.0], [2.0], [3.0]], ["no", "yes", "no"]), ("a",))


@pytest.mark.parametrize("names", [pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_names_in_several_row_groups(names: Any, tmp_path: Path) -> None:
    labels = [f"name {i % 7}" for i in range(50)]
    columns = pa.table({"a": np.arange(50.0), "label": pa.array(labels).cast(names)})
    pq.write_table(columns, tmp_path / "part.parquet", row_group_size=8)
    assert listed(table(tmp_path / "part.parquet"))[1] == labels


BAD_PARQUET: list[tuple[str, Any, str]] = [
    ("nothing", {"a": [1.0, None], "label": [0, 1]}, r"column 'a', row 1 \(from 0\): expected a value, found nothing"),
    ("no label", {"a": [1.0, 2.0], "label": [0, None]}, "column 'label', row 1 .*: expected a value, found nothing"),
    ("no name", {"a": [1.0, 2.0], "label": ["x", None]}, "column 'label', row 1 .*: expected a value, found nothing"),
    ("text", {"a": ["1", "two", "3"], "label": [0, 1, 1]}, r"column 'a', row 1 .*: expected a number, found 'two'"),
    ("all null", {"a": pa.nulls(2), "label": [0, 1]}, "column 'a', row 0 .*: expected a value, found nothing"),
    (
        "dates",
        {"a": pa.array([0, 1], pa.timestamp("s")), "label": [0, 1]},
        r"row 0 .*: expected a number, found a value of type timestamp\[",
    ),
    ("bytes", {"a": [b"1", b"2"], "label": [0, 1]}, "expected a number, found a value of type binary"),
    ("structs", {"a": [{"b": 1}, {"b": 2}], "label": [0, 1]}, "expected a number, found a value of type struct"),
    ("no rows", {"a": pa.array([], pa.float64()), "label": pa.array([], pa.int64())}, "holds no example"),
    ("no inputs", {"label": [0, 1]}, "no column is left for the inputs, found 'label' only"),
    ("two names", pa.table([[1], [2], [0]], ["a", "a", "label"]), "has two columns called 'a'"),
    (
        "infinite",
        {"a": [1.0, 2.0], "target": [0, 1], "label": [0, 1]},
        "expected one of label, .*, found 'a', 'target'",
    ),
]


@pytest.mark.parametrize(("columns", "message"), [row[1:] for row in BAD_PARQUET], ids=[row[0] for row in BAD_PARQUET])
def test_a_bad_parquet(columns: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(PartError, match=message):
        parquet(tmp_path, columns)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"a,label\n1,0\n"])
def test_what_is_no_parquet(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "part.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"part.parquet is truncated, damaged or not Parquet \(.*\); write it anew"):
        read(tmp_path / "part.parquet")


def test_what_float32_cannot_hold_is_infinite_and_not_warned_of(tmp_path: Path) -> None:
    assert listed(parquet(tmp_path, {"a": [1e300, 1.0], "label": [0, 1]}))[0] == [[np.inf], [1.0]]


# Files that unpack to far more than they are

MOST_HELD = """
import contextlib, sys
import pyarrow
from postprior.data.readers import read
from postprior.errors import DataError
with contextlib.suppress(DataError):
    read(sys.argv[1], max_bytes=1_000_000)
print(pyarrow.default_memory_pool().max_memory())
"""


def test_runs_of_one_number(tmp_path: Path) -> None:
    columns = {"a": np.zeros(1_000_000), "label": np.zeros(1_000_000, int)}
    with pytest.raises(DataError, match=r"its columns would take 16,000,000 bytes, more than the 1,000,000 allowed"):
        parquet(tmp_path, columns, max_bytes=1_000_000)
    assert (tmp_path / "part.parquet").stat().st_size < 20_000


def test_lists_of_one_number(tmp_path: Path) -> None:
    columns = {"a": pa.FixedSizeListArray.from_arrays(np.zeros(1_000_000), 1000), "label": np.zeros(1000, int)}
    with pytest.raises(DataError, match=r"its columns would take 8,008,000 bytes, more than the 1,000,000 allowed"):
        parquet(tmp_path, columns, max_bytes=1_000_000)


@pytest.mark.parametrize("names", [pa.string(), pa.dictionary(pa.int8(), pa.string())])
def test_a_long_name_that_all_rows_share(names: Any, tmp_path: Path) -> None:
    """A file of 70 KB whose names are 64 MB: they are never unpacked."""
    labels = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000, np.int8)), ["x" * 64_000]).cast(names)
    pq.write_table(pa.table({"a": np.zeros(1000), "label": labels}), tmp_path / "part.parquet")
    assert (tmp_path / "part.parquet").stat().st_size < 100_000
    with pytest.raises(DataError, match=r"1,000 texts would take 64,000,000 bytes, more than the 1,000,000 allowed"):
        read(tmp_path / "part.parquet", max_bytes=1_000_000)
    held = subprocess.run(
        [sys.executable, "-c", MOST_HELD, str(tmp_path / "part.parquet")], capture_output=True, text=True, check=True
    )
    assert 0 < int(held.stdout) < 2_000_000


# Saved datasets


def saved(folder: Path, *shards: Any, kind: Any = pa.ipc.new_stream, **state: Any) -> Path:
    names = [f"data-{i}.arrow" for i in range(len(shards))]
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names], **state}))
    for name, shard in zip(names, shards, strict=True):
        with kind(str(folder / name), shard.schema) as writer:
            writer.write_table(shard)
    return folder


SHARD = pa.table({"a": [1.0, 2.0], "label": ["no", "yes"]})


@pytest.mark.parametrize("kind", [pa.ipc.new_stream, pa.ipc.new_file])
def test_a_saved_dataset(kind: Any, tmp_path: Path) -> None:
    found = table(saved(tmp_path / "saved", SHARD, SHARD.slice(1), kind=kind))
    assert listed(found) == ([[1.0], [2.0], [2.0]], ["no", "yes", "yes"])
    assert found.kind == "saved dataset"


def test_a_saved_dataset_that_takes_too_much(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", *[SHARD] * 10)
    message = r"the dataset would take \d+ bytes, more than the 200 allowed; if you trust the source"
    with pytest.raises(DataError, match=message):
        read(folder, max_bytes=200)


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ("{", DataError, "saved is truncated, damaged or not a saved dataset"),
        ("[]", DataError, "saved is truncated, damaged or not a saved dataset"),
        ('{"_data_files": []}', PartError, "saved holds no example"),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', DataError, "not a saved dataset .*gone.arrow"),
        (
            '{"_data_files": [{"filename": "../data-0.arrow"}]}',
            DataError,
            r"names '../data-0.arrow', expected a file in",
        ),
        (
            '{"_data_files": [{"filename": "/etc/passwd"}]}',
            DataError,
            "names '/etc/passwd', expected a file in the same",
        ),
        (
            '{"_data_files": [{"filename": ".."}]}',
            DataError,
            "names '..', expected a file in the same folder; not read",
        ),
        ('{"_data_files": [{"filename": "state.json"}]}', DataError, "truncated, damaged or not a saved dataset"),
        (
            '{"_data_files": [], "_indices_data_files": [1]}',
            DataError,
            "rows in another order, by an old version; save",
        ),
    ],
)
def test_a_bad_state(state: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", SHARD)
    (folder / "state.json").write_text(state)
    with pytest.raises(error, match=message):
        read(folder)


def test_shards_that_differ(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"saved is truncated, damaged or not a saved dataset"):
        read(saved(tmp_path / "saved", SHARD, pa.table({"a": ["x"], "label": ["no"]})))


def test_a_shard_that_points_outside_of_itself(tmp_path: Path) -> None:
    """The offsets of the names lead far behind their letters."""
    folder = saved(tmp_path / "saved", SHARD)
    content = (folder / "data-0.arrow").read_bytes()
    offsets = np.array([0, 2, 5], "<i4").tobytes()
    assert content.count(offsets) == 1
    (folder / "data-0.arrow").write_bytes(content.replace(offsets, np.array([0, 2, 1 << 30], "<i4").tobytes()))
    with pytest.raises(DataError, match=r"saved is truncated, damaged or not a saved dataset"):
        read(folder)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ('{"splits": ["train", "test"]}', r"saved holds the splits train, test; name one of them: .*saved/train$"),
        ('{"splits": []}', "saved is truncated, damaged or not a saved dataset"),
        ('{"splits": [1]}', "saved is truncated, damaged or not a saved dataset"),
        ("{}", "saved is truncated, damaged or not a saved dataset"),
    ],
)
def test_a_dataset_of_splits(splits: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_dict.json").write_text(splits)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "saved")


@pytest.mark.parametrize("name", ["part.csv", "part.parquet", "saved"])
def test_without_pyarrow(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "saved", SHARD)
    (tmp_path / "part.csv").write_text("a,label\n1,0\n")
    (tmp_path / "part.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"needs the package pyarrow, not found here: pip install 'postprior"):
        read(tmp_path / name)


# Any damage


def written(kind: str) -> bytes:
    buffer, draw = io.BytesIO(), np.random.default_rng(0)
    columns = pa.table({"a": draw.normal(size=20), "b": draw.integers(0, 9, 20), "label": list("abcd") * 5})
    if kind == "npz":
        np.savez(buffer, x=draw.normal(size=(20, 3)), y=np.array(list("abcd") * 5))
    elif kind == "csv":
        pa.csv.write_csv(columns, buffer)
    else:
        pq.write_table(columns, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_whatever_is_damaged_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    """200 times, a few bytes are changed, or the end is cut off: there are examples, or an error with a cure."""
    draw, content, refused = np.random.default_rng(1), written(kind), 0
    path = tmp_path / f"part.{kind}"
    for attempt in range(200):
        raw = bytearray(content)
        for place in draw.integers(0, len(raw), 1 + attempt % 3):
            raw[place] = draw.integers(256)
        path.write_bytes(raw[: draw.integers(len(raw))] if attempt % 5 == 0 else raw)
        try:
            assert len(table(path, max_bytes=1 << 24)) > 0
        except (DataError, PartError):
            refused += 1
    assert refused > 20
