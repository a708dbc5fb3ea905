"""Columns of lists, of classes and of pictures, and what Hugging Face's datasets note of them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from postprior.data.readers import read
from postprior.data.tables import ALONE, Table
from postprior.errors import DataError, PartError

CLASSES = {"_type": "ClassLabel", "names": ["no", "yes", "never"]}


def parquet(folder: Path, columns: dict[str, Any], features: Any = None) -> Table:
    table = pa.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, folder / "part.parquet", row_group_size=2)
    found = read(folder / "part.parquet")
    assert isinstance(found, Table)
    return found


# Lists


@pytest.mark.parametrize("numbers", [pa.int64(), pa.float32(), pa.uint8()])
@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
def test_lists_have_an_axis_each(numbers: Any, kind: str, tmp_path: Path) -> None:
    values = np.arange(24).reshape(4, 2, 3)
    make = {"list": pa.list_, "large": pa.large_list, "fixed": lambda inner: pa.list_(inner, -1)}[kind]
    outer = make(pa.list_(numbers, 3) if kind == "fixed" else make(numbers))
    found = parquet(tmp_path, {"x": pa.array(values.tolist(), outer), "label": [0, 1, 0, 1]})
    np.testing.assert_array_equal(found.named_inputs()[ALONE], values)
    assert found.named_inputs()[ALONE].dtype == numbers.to_pandas_dtype()
    assert found.columns == ()


def test_beside_lists_every_column_is_an_input(tmp_path: Path) -> None:
    found = parquet(tmp_path, {"x": [[1.0, 2.0], [3.0, 4.0]], "age": [30, 40], "label": [[0, 1], [1, 0]]})
    assert {name: array.tolist() for name, array in found.named_inputs().items()} == {
        "x": [[1.0, 2.0], [3.0, 4.0]],
        "age": [30, 40],
    }
    assert found.named_inputs()["age"].dtype == np.int64
    assert found.targets is not None
    assert found.targets.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[1, 2], [3, 4], [5]], r"row 2 \(from 0\): a list of 1, expected 2 as in the first row; pad or cut the lists"),
        ([[], []], "row 0 .*: a list of 0, expected at least one"),
        ([[[1], [2]], [[3], [4, 5]]], "row 1 .*: a list of 2, expected 1 as in the first row"),
        ([[1, 2], None], "row 1 .*: expected a value, found nothing"),
        ([[1, 2], [3, None]], "row 1 .*: expected a value, found nothing"),
        ([["1", "2"], ["3", "four"]], "row 1 .*: expected a number, found 'four'"),
    ],
)
def test_bad_lists(lists: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(PartError, match=f"part.parquet: column 'x', {message}"):
        parquet(tmp_path, {"x": lists, "label": list(range(len(lists)))})


# What is noted of the columns


def test_declared_classes_keep_their_order(tmp_path: Path) -> None:
    found = parquet(tmp_path, {"x": [1.0, 2.0, 3.0], "label": [1, 0, 1]}, {"label": CLASSES})
    assert found.targets is not None
    assert (found.targets.tolist(), found.classes) == (["yes", "no", "yes"], ("no", "yes", "never"))


@pytest.mark.parametrize("labels", [[0, -1], [0, 3], [0.0, 0.5], [0.0, float("nan")]])
def test_a_label_that_is_no_declared_class(labels: list[float], tmp_path: Path) -> None:
    with pytest.raises(PartError, match=r"column 'label', row 1 .*: expected a class from 0 to 2, found"):
        parquet(tmp_path, {"x": [1.0, 2.0], "label": labels}, {"label": CLASSES})


def test_a_list_may_be_noted_as_a_list(tmp_path: Path) -> None:
    features = {"x": [{"dtype": "int64", "_type": "Value"}], "label": CLASSES}
    found = parquet(tmp_path, {"x": [[1, 2], [3, 4]], "label": [2, 0]}, features)
    assert found.named_inputs()[ALONE].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "features", [{"label": {"_type": "ClassLabel"}}, {"label": {"_type": "ClassLabel", "names": 3}}, 3, ["label"]]
)
def test_a_note_that_cannot_be_read(features: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"damaged or not a file with a readable note on its features \(.*\); write it"):
        parquet(tmp_path, {"x": [1.0, 2.0], "label": [0, 1]}, features)


# Pictures


def png(fill: int, size: tuple[int, int] = (3, 2), mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, (fill,) * len(mode) if mode != "L" else fill).save(buffer, "png")
    return buffer.getvalue()


def pictures(folder: Path, *contents: bytes | None, **more: Any) -> Table:
    rows = [None if content is None else {"bytes": content, "path": "x.png"} for content in contents]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"image": pa.array(rows, kind), "label": [i % 3 for i in range(len(rows))], **more}
    return parquet(folder, columns, {"image": {"_type": "Image"}, "label": CLASSES})


def test_pictures_in_a_column(tmp_path: Path) -> None:
    found = pictures(tmp_path, png(1), png(2), png(1))
    pixels = found.named_inputs()[ALONE]
    assert (pixels.shape, pixels.dtype) == ((3, 3, 2, 3), np.uint8)
    assert [np.unique(picture).tolist() for picture in pixels] == [[1], [2], [1]]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ((png(1), b"GIF89a"), r"row 1 \(from 0\) cannot be read as a picture"),
        ((png(1), png(1)[:45]), "row 1 .* cannot be read as a picture"),
        ((png(1), None), "row 1 .*: expected a picture, found none in the file itself"),
        ((png(1), png(1, (4, 2))), "row 1 .* has 4 x 2 pixels of mode RGB where .* row 0 .* has 3 x 2 pixels"),
        ((png(1), png(1, mode="L")), "row 1 .* has 3 x 2 pixels of mode L where .* of mode RGB"),
    ],
)
def test_bad_pictures_in_a_column(contents: tuple[bytes | None, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(PartError, match=f"column 'image', {message}"):
        pictures(tmp_path, *contents)


def test_a_path_in_place_of_a_picture_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(1))
    rows = pa.array(
        [{"bytes": None, "path": str(tmp_path / "secret.png")}],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    with pytest.raises(PartError, match=r"row 0 .*: expected a picture, found none in the file itself"):
        parquet(tmp_path, {"image": rows, "label": [0]}, {"image": {"_type": "Image"}})
