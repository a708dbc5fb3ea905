"""Addresses, .npz files, functions and remote files; what is wrong with them is said before anything is learned."""

import io
import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from fsspec.registry import _registry
from tiny_data import Trap

from postprior.data.readers import read
from postprior.data.tables import ALONE, MAX_BYTES_VARIABLE, Table
from postprior.errors import DataError, MissingExtraError, PartError, SettingError

X = np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def table(address: str | Path, **options: Any) -> Table:
    found = read(address, **options)
    assert isinstance(found, Table)
    return found


# .npz


def test_x_and_y_are_read_as_they_are(tmp_path: Path) -> None:
    found = table(save(tmp_path / "part.npz", x=X, y=Y, ids=np.arange(6)))
    np.testing.assert_array_equal(found.named_inputs()[ALONE], X)
    np.testing.assert_array_equal(found.targets, Y)
    assert found.named_inputs()[ALONE].dtype == np.uint8
    assert (found.kind, found.columns, found.classes, len(found)) == ("npz", (), None, 6)


def test_a_compressed_file_in_fortran_order(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "part.npz", x=np.asfortranarray(X.reshape(6, 4)), y=Y.astype(">i4"))
    found = table(tmp_path / "part.npz")
    np.testing.assert_array_equal(found.named_inputs()[ALONE], X.reshape(6, 4))
    np.testing.assert_array_equal(found.targets, Y)


def test_arrays_are_chosen_by_name(tmp_path: Path) -> None:
    path = save(
        tmp_path / "part.npz", tokens=Y[:, None], mask=Y[:, None] > 0, other=Y, species=np.array(["a", "b"] * 3)
    )
    found = table(path, target="species", inputs=["mask", "tokens"])
    assert list(found.named_inputs()) == ["mask", "tokens"]
    assert found.targets is not None
    assert found.targets.tolist() == ["a", "b"] * 3


def test_without_an_x_all_but_the_targets_are_inputs(tmp_path: Path) -> None:
    found = table(save(tmp_path / "part.npz", images=X, labels=np.array([b"a", "ü".encode()] * 3)))
    np.testing.assert_array_equal(found.named_inputs()[ALONE], X)
    assert found.targets is not None
    assert found.targets.tolist() == ["a", "ü"] * 3


def test_targets_may_be_absent_where_none_are_needed(tmp_path: Path) -> None:
    assert table(save(tmp_path / "a.npz", x=X), labelled=False).targets is None
    assert table(save(tmp_path / "b.npz", x=X, y=Y), labelled=False).targets is None
    found = table(save(tmp_path / "c.npz", z=X, species=Y), labelled=False, target="species")
    np.testing.assert_array_equal(found.named_inputs()[ALONE], X)


def wrong_header(path: Path) -> Path:
    """An array that says it is ten times as long as it is."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.zeros((100, 4)))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", buffer.getvalue().replace(b"(100, 4)", b"(999, 4)"))
        archive.writestr("y.npy", buffer.getvalue())
    return path


def claimed(descr: str, count: int, content: bytes = b"") -> Any:
    """Targets that are what their header says, over little content."""

    def make(path: Path) -> Path:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": (count,)})
        save(path, x=X)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("y.npy", header.getvalue() + content)
        return path

    return make


def trapped(path: Path) -> Path:
    return save(path, x=X, y=np.array([Trap(path.with_suffix(".sprung"))] * 6, object))


def a_pickle(path: Path) -> Path:
    path.write_bytes(pickle.dumps({"x": [1], "y": Trap(path.with_suffix(".sprung"))}))
    return path


def cut_short(path: Path) -> Path:
    save(path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:-40])
    return path


def one_bit_flipped(path: Path) -> Path:
    save(path, x=X, y=Y)
    raw = bytearray(path.read_bytes())
    raw[raw.index(X.tobytes())] ^= 1
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (wrong_header, DataError, r"array 'x' should be float64 of shape \(999, 4\) by its header, which is not what"),
        (claimed("<i8", 1 << 60), DataError, "array 'y' should be int64 of shape .* which is not what 128 bytes hold"),
        (claimed("|S0", 1 << 40), DataError, r"array 'y' should be \|S0 of shape .* which is not what 128 bytes hold"),
        (claimed("<U0", 6), DataError, "array 'y' should be <U0 of shape"),
        (claimed("|S1", 6, b"\xff" * 6), DataError, "not an .npz file with names in UTF-8"),
        (
            claimed("<U1", 6, "abc".encode("utf-32-le") + b"\x00\xd8\0\0" * 3),
            PartError,
            "part.npz: the target of example 3 is no text in Unicode; write it anew in UTF-8",
        ),
        (claimed(">U1", 6, b"\x7f\xff\xff\xff" * 6), PartError, "target of example 0 is no text in Unicode"),
        (trapped, PartError, "array 'y' holds Python objects, which could only be unpickled, .* np.array"),
        (
            a_pickle,
            DataError,
            r"part.npz is truncated, damaged or not an .npz file \(File is not a zip file\); write it",
        ),
        (cut_short, DataError, "part.npz is truncated, damaged or not an .npz file"),
        (one_bit_flipped, DataError, r"not an .npz file \(Bad CRC-32 for file 'x.npy'\)"),
        (
            lambda path: save(path, x=X, y=Y[:4]),
            PartError,
            "expected as many targets as inputs, found 6 input, 4 targets",
        ),
        (lambda path: save(path, x=X[:0], y=Y[:0]), PartError, "part.npz holds no example; a part needs at least one"),
        (lambda path: save(path, x=X, y=np.float32(3)), PartError, "targets is a single number, expected one entry an"),
        (
            lambda path: save(path, x=np.zeros((6, 0)), y=Y),
            PartError,
            r"input has shape \(6, 0\), expected some numbers",
        ),
        (
            lambda path: save(path, x=X * 1j, y=Y),
            PartError,
            "input holds complex128, expected numbers of at most 64 bits",
        ),
        (lambda path: save(path, x=X.astype(str), y=Y), PartError, "input holds <U3, expected numbers"),
        (
            lambda path: save(path, x=X, y=Y * 1j),
            PartError,
            "the targets are complex128 .*, expected numbers, or one name",
        ),
        (
            lambda path: save(path, a=X, b=Y),
            PartError,
            "one of label, .* to hold the targets, found 'a', 'b'; say which",
        ),
        (lambda path: save(path, x=X, y=Y, label=Y), PartError, "expected one of label, .*, found 'x', 'y', 'label'"),
        (lambda path: save(path, y=Y), PartError, "no column is left for the inputs, found 'y' only"),
    ],
)
def test_a_bad_npz(make: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    path = make(tmp_path / "part.npz")
    with pytest.raises(error, match=message):
        read(path)
    assert not path.with_suffix(".sprung").exists()


def test_two_arrays_of_one_name(tmp_path: Path) -> None:
    path = save(tmp_path / "part.npz", x=X, y=Y)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match=r"Duplicate"):
        archive.writestr("x.npy", b"other")
    with pytest.raises(PartError, match=r"has two columns called 'x'; give each a name of its own"):
        read(path)


def test_names_that_lead_elsewhere_are_names_only(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = save(folder / "part.npz", **{"../../escaped": X, "/absolute": X, "y": Y})
    assert list(table(path).named_inputs()) == ["../../escaped", "/absolute"]
    assert [path.name for path in tmp_path.rglob("*")] == ["inner", "part.npz"]


def test_a_zip_bomb_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "part.npz", x=np.zeros((1000, 1000)), y=np.zeros(1000))
    assert (tmp_path / "part.npz").stat().st_size < 20_000
    message = r"its arrays would take 8,008,\d+ bytes, more than the 1,000,000 allowed; .* raise POSTPRIOR_MAX_BYTES"
    with pytest.raises(DataError, match=message):
        read(tmp_path / "part.npz", max_bytes=1_000_000)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "1000000")
    with pytest.raises(DataError, match=message):
        read(tmp_path / "part.npz")
    assert len(table(tmp_path / "part.npz", max_bytes=10_000_000)) == 1000
    with pytest.raises(DataError, match=r"the file would take .* bytes, more than the 100 allowed"):
        read(tmp_path / "part.npz", max_bytes=100)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, "4 GiB")
    with pytest.raises(SettingError, match=r"POSTPRIOR_MAX_BYTES=4 GiB: expected a whole number of bytes"):
        read(tmp_path / "part.npz")


def test_a_declared_size_that_lies_is_found_out(tmp_path: Path) -> None:
    """The directory of the archive says little, its content is large: no more than was declared is unpacked."""
    path = tmp_path / "part.npz"
    np.savez_compressed(path, x=np.zeros((1000, 100)), y=np.zeros(1000))
    raw = path.read_bytes()
    declared = (1000 * 100 * 8 + 128).to_bytes(4, "little")
    assert declared in raw
    path.write_bytes(raw.replace(declared, (1000).to_bytes(4, "little")))
    with pytest.raises(DataError, match=r"Bad CRC-32 for file 'x.npy'"):
        read(path, max_bytes=100_000)


# Addresses


def test_what_is_no_address(tmp_path: Path) -> None:
    (tmp_path / "part.xlsx").write_bytes(b"PK")
    known = r".npz, .parquet, .csv, a folder of pictures by class, a saved Hugging Face dataset, or module:function"
    with pytest.raises(DataError, match=f"part.xlsx is in no known format; expected {known}"):
        read(tmp_path / "part.xlsx")
    with pytest.raises(DataError, match=r"nowhere is not there, and in no known format; expected .npz"):
        read(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"part.npz cannot be read: No such file or directory; check the path"):
        read(tmp_path / "part.npz")
    with pytest.raises(DataError, match=r"s3://bucket/folder is in no known format; expected .npz, .parquet, .csv"):
        read("s3://bucket/folder")


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    path = save(tmp_path / "part.npz", x=X, y=Y)
    with pytest.raises(
        PartError, match=r"expected 'species' to hold the targets, found 'x', 'y'; say which with target="
    ):
        read(path, target="species")
    with pytest.raises(
        PartError, match=r"expected 'z' among the inputs, found 'x', 'y'; say which to take with inputs="
    ):
        read(path, inputs=["x", "z"])
    with pytest.raises(PartError, match=r"'y' is the target and among the inputs; take it out of inputs="):
        read(path, inputs=["x", "y"])
    with pytest.raises(SettingError, match=r"inputs=\['x', 'x'\]: expected at least one name, and each once"):
        read(path, inputs=["x", "x"])


# Remote files


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


@pytest.mark.parametrize("prefix", ["memory://", "simplecache::memory://"])
def test_a_remote_file(memory: Any, prefix: str, tmp_path: Path) -> None:
    memory.pipe("/parts/monday.npz", save(tmp_path / "part.npz", x=X, y=Y).read_bytes())
    memory.pipe("/parts/monday.csv", b"a,b,label\n1,2,yes\n3,4,no\n")
    np.testing.assert_array_equal(table(f"{prefix}parts/monday.npz").targets, Y)
    found = table(f"{prefix}parts/monday.csv")
    assert (found.named_inputs()[ALONE].tolist(), found.columns) == ([[1, 2], [3, 4]], ("a", "b"))


def test_a_remote_file_that_cannot_be_read(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"memory://parts/none.npz cannot be read \(FileNotFoundError: .*check the add"):
        read("memory://parts/none.npz")
    with pytest.raises(DataError, match=r"cannot be read \(ValueError: Protocol not known: gopher"):
        read("gopher://parts/none.npz")
    memory.pipe("/parts/monday.csv", b"a,label\n" + b"1,1\n" * 100)
    with pytest.raises(DataError, match=r"memory://parts/monday.csv: the file would take 101 bytes, more than the 100"):
        read("memory://parts/monday.csv", max_bytes=100)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)  # fsspec remembers what it has once imported
    with pytest.raises(MissingExtraError, match=r"s3://bucket/part.npz needs a package that is not here: Install s3fs"):
        read("s3://bucket/part.npz?signature=secret")


# Functions


MODULE = """
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
X, Y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 1])
class Sources:
    @staticmethod
    def pair(): return X, Y
def single(): return X.numpy()
def several(): return (X, X + 1), Y
def named(): return {"a": X, "b": X + 1, "species": Y}
def dataset(): return TensorDataset(X, Y)
def loader(): return DataLoader(TensorDataset(X, Y), batch_size=3)
def wrong(): return "hello", Y
def nothing(): return None
def fails(): return 1 / 0
number = 3
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "sources_of_data.py").write_text(MODULE)
    (tmp_path / "broken_source.py").write_text("import nothing_of_that_name")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("sources_of_data", None)


def first(data: Any) -> Any:
    assert not isinstance(data, Table)
    return next(iter(data.batches(4)))


@pytest.mark.parametrize(
    ("name", "options", "num_inputs"),
    [
        ("Sources.pair", {}, 1),
        ("several", {}, 2),
        ("named", {"target": "species"}, 2),
        ("dataset", {}, 1),
        ("loader", {}, 1),
    ],
)
@pytest.mark.usefixtures("sources")
def test_a_function(name: str, options: dict[str, str], num_inputs: int) -> None:
    batch = first(read(f"sources_of_data:{name}", **options))
    assert len(batch.inputs()) == num_inputs
    assert batch.targets.tolist() == [0, 1, 0, 1][: len(batch)]
    unlabelled = first(read(f"sources_of_data:{name}", labelled=False, **options))
    assert len(unlabelled.inputs()) == num_inputs
    torch.testing.assert_close(unlabelled.inputs()[0][1], torch.arange(8.0).reshape(4, 2)[: len(batch)])


@pytest.mark.usefixtures("sources")
def test_a_function_of_inputs_alone() -> None:
    batch = first(read("sources_of_data:single", labelled=False))
    assert (batch.args[0].tolist(), batch.targets) == (torch.arange(8.0).reshape(4, 2).tolist(), None)


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("no_such.module:make", DataError, r"the module no_such.module cannot be imported \(ModuleNotFoundError: "),
        (
            "broken_source:make",
            DataError,
            "broken_source cannot be imported .*nothing_of_that_name.*; expected package",
        ),
        ("sources_of_data:none", DataError, "sources_of_data has no 'none'; expected a function of that name"),
        ("sources_of_data:number", DataError, "'number' is int, expected a function"),
        ("sources_of_data:fails", PartError, "sources_of_data:fails raised ZeroDivisionError: division by zero; mend"),
        ("sources_of_data:wrong", PartError, r"wrong returned what is no part: part\[0\]: expected numbers"),
        ("sources_of_data:nothing", PartError, "nothing returned what is no part: "),
        (
            "sources_of_data:single",
            PartError,
            r"returned what is no part: expected \(inputs, targets\) or a dictionary",
        ),
        ("sources_of_data:named", PartError, "returned what is no part: expected one of the keys label, .* target=..."),
    ],
)
@pytest.mark.usefixtures("sources")
def test_a_bad_function(address: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read(address)


def test_columns_cannot_be_chosen_from_a_function() -> None:
    with pytest.raises(SettingError, match=r"inputs=\['a'\] chooses columns, and sources_of_data:single is a function"):
        read("sources_of_data:single", inputs=["a"])


def test_a_file_whose_name_has_a_colon_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "part:csv").write_text("a,label\n1,2\n")
    with pytest.raises(DataError, match=r"part:csv is in no known format"):
        read("part:csv")


def test_names_have_one_axis() -> None:
    with pytest.raises(PartError, match=r"mine: the targets are <U1 of shape .2, 1., expected numbers, or one name"):
        Table(np.zeros((2, 3)), np.array([["a"], ["b"]]), where="mine")
