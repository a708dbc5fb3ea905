"""A part is recognised whatever its order and its file; one changed value makes another; overlaps are estimated."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from postprior.data import fingerprint as module
from postprior.data.fingerprint import SKETCH_SIZE, Fingerprint, Hashed, fingerprint, overlap
from postprior.data.parts import as_inputs, as_part
from postprior.data.readers import read
from postprior.data.tables import Table
from postprior.errors import PartError, StoreError

DRAW = np.random.default_rng(0)
X = DRAW.integers(0, 256, (12, 1, 2, 3), np.uint8)
Y = DRAW.integers(0, 10, 12)


def digest(data: Any, targets: Any = None) -> str:
    return fingerprint(data if targets is None else Table(data, targets)).fingerprint.digest


# What makes no difference


def test_the_order_of_examples() -> None:
    order = DRAW.permutation(len(X))
    found, expected = fingerprint(Table(X[order], Y[order])).fingerprint, fingerprint(Table(X, Y)).fingerprint
    assert found == expected
    assert found.num_examples == 12
    assert digest(X[order], Y) != expected.digest, "labels go with their examples"


@pytest.mark.parametrize("dtype", ["i1", "u1", "<i2", ">i4", "u4", ">u8", "i8"])
def test_the_type_of_whole_numbers(dtype: str) -> None:
    tokens = DRAW.integers(0, 100, (12, 4))
    assert digest(X, Y.astype(dtype)) == digest(X, Y)
    if dtype != "u1":  # as inputs these are pixels
        assert digest(tokens.astype(dtype), Y) == digest(tokens, Y)


def test_booleans_are_0_and_1_as_targets() -> None:
    assert digest(X, Y > 4) == digest(X, (Y > 4).astype(int))


def test_the_order_in_memory() -> None:
    wide = DRAW.normal(size=(12, 6))
    for other in (np.asfortranarray(wide), wide.astype(">f8"), np.repeat(wide, 2, axis=0)[::2]):
        assert digest(other, Y) == digest(wide, Y)


def test_the_room_that_names_have() -> None:
    names = np.array(["a", "ü", "a", "bc"] * 3)
    assert digest(X, names.astype("<U40")) == digest(X, names) == digest(X, names.astype(">U2"))


def test_the_order_of_columns_and_inputs() -> None:
    wide = DRAW.normal(size=(12, 3)).astype(np.float32)
    columns = Table(wide, Y, ("a", "b", "c"))
    assert digest(Table(wide[:, [2, 0, 1]], Y, ("c", "a", "b"))) == digest(columns)
    assert digest(Table(wide, Y, ("c", "a", "b"))) != digest(columns)
    assert digest(Table({"x": X, "z": wide}, Y)) == digest(Table({"z": wide, "x": X}, Y))


@pytest.mark.parametrize("block", [1, 20, 1 << 20])
def test_how_many_are_laid_side_by_side(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest(X, Y)
    monkeypatch.setattr(module, "BLOCK", block)
    assert digest(X, Y) == expected


def test_whether_it_is_a_table_a_dataset_or_a_loader() -> None:
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    for data in ((x, y), TensorDataset(x, y), DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True)):
        assert digest(as_part(data)) == digest(X, Y)
    several = {"a": x, "b": y[:, None]}
    assert digest(as_part((several, y))) == digest(Table({"b": Y[:, None], "a": X}, Y))


def test_the_file_it_comes_from(tmp_path: Path) -> None:
    """The same numbers as .npz, Parquet, CSV and a saved dataset; columns stand in the order of their names."""
    x = DRAW.normal(size=(12, 3)).astype(np.float32)
    np.savez(tmp_path / "part.npz", x=x, y=Y)
    table = pa.table({"c": x[:, 2], "label": Y.astype(np.int8), "a": x[:, 0].astype(float), "b": x[:, 1]})
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=5)
    rows = [f"{b!s},{label},{c!s},{a!s}\n" for (a, b, c), label in zip(x, Y, strict=True)]
    (tmp_path / "part.csv").write_text("b,label,c,a\n" + "".join(reversed(rows)))
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    with pa.ipc.new_stream(str(tmp_path / "saved" / "data.arrow"), table.schema) as writer:
        writer.write_table(table, 7)
    found = {name: digest(read(tmp_path / name)) for name in ("part.npz", "part.parquet", "part.csv", "saved")}
    assert set(found.values()) == {digest(x, Y)}, found


def test_pictures_in_a_folder_or_an_array(tmp_path: Path) -> None:
    pixels = DRAW.integers(0, 256, (6, 3, 4, 5), np.uint8)
    names = np.array(["cat", "dog"] * 3)
    for i, (picture, name) in enumerate(zip(pixels, names, strict=True)):
        (tmp_path / str(name)).mkdir(exist_ok=True)
        Image.fromarray(picture.transpose(1, 2, 0)).save(tmp_path / str(name) / f"{i}.png")
    assert digest(read(tmp_path)) == digest(pixels, names)


# What makes another part


def test_any_one_pixel_or_label() -> None:
    changed = {digest(X, Y)}
    for i in range(X.size):
        other = X.copy()
        other.flat[i] ^= 1
        changed.add(digest(other, Y))
    for i in range(len(Y)):
        other = Y.copy()
        other[i] += 1
        changed.add(digest(X, other))
    assert len(changed) == 1 + X.size + len(Y)


def test_how_often_an_example_occurs() -> None:
    """A part is a multiset: 1, 1, 2 is neither 1, 2 nor 1, 2, 2. The sketch has each hash once."""
    parts = [fingerprint(Table(X[rows], Y[rows])).fingerprint for rows in ([0, 1], [0, 0, 1], [0, 1, 1])]
    assert len({part.digest for part in parts}) == 3
    assert len({part.sketch for part in parts}) == 1
    assert [part.num_examples for part in parts] == [2, 3, 3]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (X, X.astype(np.int16)),  # pixels and tokens are fed differently
        (X.astype(np.float32), X.astype(np.float64)),
        (X, X.reshape(12, 6)),
        (X > 0, (X > 0).astype(np.int8)),
        ({"x": X, "z": X}, {"x": X, "w": X}),
    ],
    ids=["pixels", "precision", "shape", "booleans", "names"],
)
def test_the_kind_and_shape_of_inputs(a: Any, b: Any) -> None:
    assert digest(a, Y) != digest(b, Y)


def test_inputs_that_change_places() -> None:
    a, b = torch.randn(12, 2), torch.randn(12, 2)
    assert digest(as_part(((a, b), torch.zeros(12)))) != digest(as_part(((b, a), torch.zeros(12))))


def test_whether_there_are_targets() -> None:
    assert len({digest(Table(X, None)), digest(X, Y), digest(X, Y.astype(str)), digest(X, Y.astype(float))}) == 4
    assert digest(as_inputs(torch.from_numpy(X))) == digest(Table(X, None))


def test_the_format_of_digests_stays() -> None:
    """Stores hold digests that earlier versions made: whoever changes the format has to change its name with it."""
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert digest(x, np.array([0, 1, 2])) == "5463a1ec5f1fe3290c6853037c319d597930fea6d2a6b19328562624b3f5575c"
    assert (
        digest(x.astype(np.uint8), np.array(["no", "yes", "ü"]))
        == "9d1742d531703e7a211225ef68bbe0f3cc933545f32ae4f9ae67c9cfc2f518bc"
    )


# Overlaps


def values(numbers: NDArray[np.int64]) -> Hashed:
    return fingerprint(Table(numbers[:, None], numbers % 10))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("num_old", [100, 20_000])
def test_an_overlap_is_estimated(share: float, num_old: int) -> None:
    old = values(np.arange(num_old)).fingerprint
    common = round(share * 2000)
    new = values(np.concatenate([np.arange(common) % num_old, num_old + np.arange(2000 - common)]))
    found = overlap(new.hashes, old)
    if share in (0, 1) or old.is_complete:
        assert found == share
    else:
        num_looked_at = 2000 * SKETCH_SIZE / num_old
        assert abs(found - share) < 3 * (share * (1 - share) / num_looked_at) ** 0.5
    assert old.is_complete == (num_old == 100)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_stated_error_is_the_actual_one(share: float) -> None:
    """300 pairs of parts with hashes drawn at random: scores by the stated error have mean 0 and sd 1."""
    draw, scores, size = np.random.default_rng(1), list[float](), 10_000
    for _ in range(300):
        hashes = draw.integers(0, 2**64, 2 * size, np.uint64)
        sketch = np.sort(hashes[:size])[:SKETCH_SIZE]
        new = hashes[size - round(share * size) :][:size]
        num_looked_at = (new <= sketch[-1]).sum()
        found = overlap(new, Fingerprint("0" * 64, size, tuple(sketch.tolist())))
        scores.append((found - share) / (share * (1 - share) / num_looked_at) ** 0.5)
    assert abs(np.mean(scores)) < 4 / 300**0.5
    assert 0.85 < np.std(scores) < 1.15


def test_repeated_examples_count_as_often_as_they_occur() -> None:
    old = values(np.arange(10)).fingerprint
    assert overlap(values(np.array([0, 0, 0, 99])).hashes, old) == 0.75


def test_where_nothing_can_be_said_it_is_0() -> None:
    old = Fingerprint("0" * 64, 10**9, tuple(range(SKETCH_SIZE)))
    assert overlap(np.array([2**63], np.uint64), old) == 0.0
    assert overlap(np.zeros(0, np.uint64), old) == 0.0


# What is kept


@pytest.mark.parametrize("count", [5, SKETCH_SIZE - 1, SKETCH_SIZE, SKETCH_SIZE + 1])
def test_json_and_back(count: int) -> None:
    found = values(np.arange(count)).fingerprint
    assert len(found.sketch) == min(count, SKETCH_SIZE)
    assert found.is_complete == (count <= SKETCH_SIZE)
    assert Fingerprint.from_json({**found.to_json(), "id": "monday"}) == found


def sketch_of(*numbers: int) -> dict[str, str]:
    return {"sketch": base64.b64encode(np.array(numbers, "<u8").tobytes()).decode()}


@pytest.mark.parametrize(
    "damage",
    [
        {"fingerprint": "x" * 64},
        {"fingerprint": "A" * 64},
        {"fingerprint": "0" * 63},
        {"fingerprint": 5},
        {"num_examples": 4},
        {"num_examples": True},
        {"num_examples": 5.0},
        {"num_examples": -1},
        {"num_examples": 0},
        {"sketch": "no base64"},
        {"sketch": "AAAA"},
        {"sketch": None},
        {"sketch": ""},
        sketch_of(2, 1),
        sketch_of(1, 1),
        {"num_examples": 10**6, **sketch_of(*range(SKETCH_SIZE + 1))},
    ],
    ids=repr,
)
def test_a_damaged_record_is_refused(damage: dict[str, Any]) -> None:
    whole = values(np.arange(5)).fingerprint.to_json()
    with pytest.raises(StoreError, match=r"the fingerprint of a part is damaged.*; restore its file"):
        Fingerprint.from_json({**whole, **damage})
    with pytest.raises(StoreError, match=r"the fingerprint of a part is damaged \(KeyError"):
        Fingerprint.from_json({key: value for key, value in whole.items() if key not in damage})


def test_what_is_no_record_is_refused() -> None:
    for given in (None, [], "text", 3):
        with pytest.raises(StoreError, match=r"the fingerprint of a part is damaged"):
            Fingerprint.from_json(given)


# Parts that give something else than examples


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[float, int]:
        return float(index), 0


def loader(batch: Callable[[], Any]) -> DataLoader[Any]:
    return DataLoader(Rows(), batch_size=4, collate_fn=lambda _: batch())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda: (torch.zeros(4, 2), torch.zeros(3)), "a batch has 4 input, 3 targets: expected as many of each"),
        (lambda: (["a"] * 4, torch.zeros(4)), "input 0: expected a tensor of examples .*, found str in a batch"),
        (lambda: (torch.zeros(4), ["a"] * 4), "targets: expected a tensor of examples .*, found list in a batch"),
        (lambda: (torch.tensor(1.0), torch.zeros(4)), "input: expected a tensor of examples .*, found Tensor in a"),
        (lambda: (torch.zeros(4, 0), torch.zeros(4, 0)), "examples of the part have no numbers in them, expected some"),
    ],
)
def test_what_has_no_fingerprint(batch: Callable[[], Any], message: str) -> None:
    with pytest.raises(PartError, match=message):
        fingerprint(as_part(loader(batch)))


def test_a_part_without_examples_has_one() -> None:
    empty = fingerprint(as_part((torch.zeros(0, 2), torch.zeros(0))))
    assert fingerprint(as_part(loader(lambda: (torch.zeros(0, 2), torch.zeros(0))))).fingerprint == empty.fingerprint
    assert (empty.fingerprint.num_examples, empty.fingerprint.sketch) == (0, ())
    assert Fingerprint.from_json(empty.fingerprint.to_json()) == empty.fingerprint


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_numbers_that_numpy_does_not_know(dtype: torch.dtype) -> None:
    x, y = torch.arange(8.0).reshape(4, 2), torch.arange(4)
    assert digest(as_part((x.to(dtype), y))) == digest(as_part((x.to(dtype).flip(0), y.flip(0))))
    assert digest(as_part((x.to(dtype), y))) != digest(as_part(((x + 1).to(dtype), y)))
