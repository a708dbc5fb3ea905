"""The encoding chosen with the first part is applied to every later one, survives JSON, and refuses what differs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from postprior.batch import Batch, Part
from postprior.data.encoding import Encoding
from postprior.data.parts import as_inputs, as_part
from postprior.data.readers import read
from postprior.data.tables import ALONE, Table
from postprior.errors import PartError, SettingError, StoreError

DRAW = np.random.default_rng(0)
WIDE = DRAW.normal(5.0, 3.0, (10, 3)).astype(np.float32)
PIXELS = DRAW.integers(0, 256, (10, 2, 4, 5), np.uint8)
NAMES = np.array(["no", "yes"] * 5)
COLUMNS = ("a", "b", "c")


def whole(part: Part) -> Batch:
    """All examples at once, in their own order."""
    (batch,) = part.batches(1000)
    return batch


def encoded(encoding: Encoding, inputs: Any, targets: Any = NAMES, *columns: str) -> Batch:
    return whole(encoding.part(Table(inputs, targets, columns, where="tuesday")))


# Normalising


def test_the_moments_of_the_first_part_are_applied_to_later_ones() -> None:
    encoding = Encoding.fit(Table(WIDE, NAMES))
    mean, sd = WIDE.astype(float).mean(0), WIDE.astype(float).std(0)
    np.testing.assert_allclose(encoding.forms[ALONE].mean, mean, rtol=1e-12)
    np.testing.assert_allclose(encoding.forms[ALONE].sd, sd, rtol=1e-12)
    later = DRAW.normal(-100.0, 7.0, (4, 3)).astype(np.float32)
    found = encoded(encoding, later, NAMES[:4]).args[0]
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, (later - mean) / sd, rtol=1e-5)


def test_channels_of_pictures_are_normalised_each() -> None:
    found = encoded(Encoding.fit(Table(PIXELS, NAMES)), PIXELS).args[0]
    assert found.shape == PIXELS.shape
    torch.testing.assert_close(found.mean((0, 2, 3)), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.std((0, 2, 3), correction=0), torch.ones(2))


@pytest.mark.parametrize(
    ("how", "pixels", "floats"),
    [
        ("none", lambda x: x, lambda x: x),
        ("unit", lambda x: x / 255, lambda x: x),
        ((10.0, 2.0), lambda x: (x - 10) / 2, lambda x: (x - 10) / 2),
    ],
)
def test_other_ways(how: Any, pixels: Any, floats: Any) -> None:
    for raw, expected in ((PIXELS, pixels), (WIDE, floats), (WIDE.astype(float), floats)):
        found = encoded(Encoding.fit(Table(raw, NAMES), how), raw).args[0]
        assert found.dtype == (torch.float64 if raw.dtype == float else torch.float32)
        np.testing.assert_allclose(found, expected(raw.astype(float)), rtol=1e-6)


def test_moments_are_given_for_every_channel() -> None:
    mean, sd = [100.0, 120.0], (50.0, 60.0)
    encoding = Encoding.fit(Table(PIXELS, NAMES), (mean, sd))
    assert (encoding.forms[ALONE].mean, encoding.forms[ALONE].sd) == ((100.0, 120.0), (50.0, 60.0))
    np.testing.assert_allclose(encoded(encoding, PIXELS).args[0][:, 1], (PIXELS[:, 1] - 120.0) / 60.0, rtol=1e-6)


@pytest.mark.parametrize("how", ["standard", "unit", "none"])
@pytest.mark.parametrize("dtype", ["i1", "<u2", ">i4", "u8", "?"])
def test_whole_numbers_and_booleans_are_left_alone(how: Any, dtype: str) -> None:
    tokens = DRAW.integers(0, 2 if dtype == "?" else 100, (10, 6)).astype(dtype)
    found = encoded(Encoding.fit(Table(tokens, NAMES), how), tokens).args[0]
    assert found.dtype == (torch.bool if dtype == "?" else torch.int64)
    np.testing.assert_array_equal(found, tokens.astype(found.numpy().dtype))


def test_several_inputs_go_their_own_ways_by_name() -> None:
    inputs = {"x": WIDE, "picture": PIXELS, "mask": WIDE > 5}
    encoding = Encoding.fit(
        Table(inputs, NAMES), {"x": "none", "picture": "unit", "mask": "standard"}, classes=["yes", "no"]
    )
    batch = encoded(encoding, dict(reversed(inputs.items())))
    assert batch.args == ()
    assert list(batch.kwargs) == ["x", "picture", "mask"]
    np.testing.assert_array_equal(batch.kwargs["x"], WIDE)
    np.testing.assert_allclose(batch.kwargs["picture"], PIXELS / 255, rtol=1e-6)
    np.testing.assert_array_equal(batch.kwargs["mask"], WIDE > 5)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("std", r"normalise='std': expected 'standard', 'none', 'unit', or \(mean, sd\)"),
        (None, "normalise=None: expected a mean and an sd"),
        ((1.0,), r"normalise=\(1.0,\): expected a mean and an sd"),
        (("a", "b"), r"normalise=\('a', 'b'\): expected a mean and an sd"),
        ((0.0, 0.0), "input: mean .* and sd .*: expected finite numbers, and every sd above 0"),
        (([0.0, 0.0], [1.0, 1.0]), "input: 2 means and 2 sds: expected one of each, or one for each of the first axis"),
        ({"x": "none"}, "normalise has 'input', 'x' in excess or missing, expected 'input'"),
        ({}, "normalise has 'input' in excess or missing"),
    ],
)
def test_a_bad_way(how: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Encoding.fit(Table(WIDE, NAMES), how)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_moments_of_what_is_not_finite_are_refused(value: float) -> None:
    bad = WIDE.copy()
    bad[7, 1] = value
    with pytest.raises(PartError, match=rf"monday: example 7: input holds {value}, expected finite numbers; mend or"):
        Encoding.fit(Table(bad, NAMES, where="monday"))
    with pytest.raises(PartError, match=rf"monday: example 7: input \(column 'b'\) holds {value}, expected finite"):
        Encoding.fit(Table(bad, NAMES, COLUMNS, where="monday"))


def test_moments_of_what_is_too_large_are_refused() -> None:
    with pytest.raises(PartError, match=r"monday: input holds numbers too large to be averaged; scale them down"):
        Encoding.fit(Table(np.array([1e308, 1.5e308]), NAMES[:2], where="monday"))


# Targets


def test_names_become_their_places() -> None:
    assert Encoding.fit(Table(WIDE, NAMES[::-1])).classes == ("no", "yes")
    given = Encoding.fit(Table(WIDE, NAMES), classes=["yes", "perhaps", "no"])
    assert given.classes == ("yes", "perhaps", "no")
    targets = encoded(given, WIDE).targets
    assert targets is not None
    assert (targets.dtype, targets.tolist()) == (torch.int64, [2, 0] * 5)
    declared = Encoding.fit(Table(WIDE, NAMES, classes=("yes", "no", "never")))
    assert declared.classes == ("yes", "no", "never")


def test_a_name_that_is_none_of_the_classes() -> None:
    later = NAMES.copy()
    later[[6, 8]] = "si"
    message = r"tuesday: example 6 has label 'si', expected one of 'no', 'yes'; mend it, or begin anew with all classes"
    with pytest.raises(PartError, match=message):
        encoded(Encoding.fit(Table(WIDE, NAMES)), WIDE, later)


def test_numbers_may_be_the_names() -> None:
    encoding = Encoding.fit(Table(WIDE, np.arange(10) % 3), classes=["2", "0", "1"])
    for labels in (np.array([2, 0, 1]), np.array([2, 0, 1], ">u2"), np.array(["2", "0", "1"])):
        targets = encoded(encoding, WIDE[:3], labels).targets
        assert targets is not None
        assert targets.tolist() == [0, 1, 2]
    with pytest.raises(PartError, match=r"example 1 has label '10', expected one of '2', '0', '1'"):
        encoded(encoding, WIDE[:2], np.array([1, 10]))
    with pytest.raises(PartError, match=r"targets are float64 of shape \(2,\), expected one name an example among '2'"):
        encoded(encoding, WIDE[:2], np.array([1.0, 0.0]))
    with pytest.raises(PartError, match=r"targets are int64 of shape \(2, 1\), expected one name an example"):
        encoded(encoding, WIDE[:2], np.array([[1], [0]]))


def test_without_classes_targets_are_numbers() -> None:
    encoding = Encoding.fit(Table(WIDE, np.arange(10)))
    assert encoding.classes is None
    for given, dtype in (("u1", torch.int64), (">i2", torch.int64), ("?", torch.int64), (">f8", torch.float64)):
        targets = encoded(encoding, WIDE, (np.arange(10) % 2).astype(given)).targets
        assert targets is not None
        assert (targets.dtype, targets.tolist()) == (dtype, [0, 1] * 5)
    with pytest.raises(PartError, match=r"tuesday: example 0 has target 'no', expected a number, as in the first part"):
        encoded(encoding, WIDE)


def test_targets_are_needed_to_learn_and_not_to_predict() -> None:
    encoding = Encoding.fit(Table(WIDE, NAMES))
    unlabelled = Table(WIDE, None, where="tuesday")
    with pytest.raises(PartError, match=r"tuesday was read without its targets; read it with labelled=True"):
        encoding.part(unlabelled)
    unknown = Table(WIDE, np.array(["si"] * 10))
    for table in (unlabelled, unknown):
        batch = whole(encoding.inputs(table))
        assert batch.targets is None
        torch.testing.assert_close(batch.args[0], encoded(encoding, WIDE).args[0])


def test_classes_come_once_each() -> None:
    with pytest.raises(SettingError, match=r"classes are 'a', 'b', 'a', expected each once"):
        Encoding.fit(Table(WIDE, NAMES), classes=["a", "b", "a"])


# Later parts that differ


def test_columns_are_found_by_name() -> None:
    encoding = Encoding.fit(Table(WIDE, NAMES, COLUMNS))
    expected = encoded(encoding, WIDE, NAMES, *COLUMNS).args[0]
    other = np.concatenate([WIDE[:, ::-1], np.full((10, 1), np.nan, np.float32)], 1)
    torch.testing.assert_close(encoded(encoding, other, NAMES, "c", "b", "a", "further").args[0], expected)
    torch.testing.assert_close(encoded(encoding, WIDE).args[0], expected, msg="an array has no names to go by")
    message = r"tuesday: expected the columns 'a', 'b', 'c' of the first part, found 'a', 'd', 'c'; add 'b'"
    with pytest.raises(PartError, match=message):
        encoded(encoding, WIDE, NAMES, "a", "d", "c")


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (WIDE[:, :2], r"input is floating numbers of shape \(2,\) an example, expected floating .* of shape \(3,\)"),
        (WIDE.astype(int), r"input is whole numbers other than uint8 of shape \(3,\) .*, expected floating numbers"),
        (PIXELS, r"input is uint8 of shape \(2, 4, 5\) an example, expected floating .* as in the first part; convert"),
        ({"x": WIDE, "z": WIDE}, r"expected the inputs 'input' of the first part, found 'x', 'z'; say which to take"),
    ],
)
def test_another_kind_or_shape(later: Any, message: str) -> None:
    with pytest.raises(PartError, match=f"tuesday: {message}"):
        encoded(Encoding.fit(Table(WIDE, NAMES)), later)


def test_another_precision_will_do() -> None:
    encoding = Encoding.fit(Table(WIDE, NAMES))
    torch.testing.assert_close(
        encoded(encoding, WIDE.astype(float)).args[0].float(), encoded(encoding, WIDE).args[0], rtol=1e-5, atol=1e-6
    )


# What functions return


def test_what_a_function_returns_is_fed_as_it_is() -> None:
    part = as_part((torch.from_numpy(WIDE), torch.arange(10)))
    encoding = Encoding.fit(part, "none")
    assert encoding.part(part) is part
    assert encoding.inputs(as_inputs(torch.zeros(2, 3))) is not None
    with pytest.raises(SettingError, match=r"normalise='standard': what a function returns is fed as it is; normalise"):
        Encoding.fit(part)
    with pytest.raises(PartError, match=r"the part: input is floating numbers of shape \(2,\) .*, expected .* \(3,\)"):
        encoding.part(as_part((torch.zeros(4, 2), torch.zeros(4))))
    with pytest.raises(PartError, match=r"fed as it is, but the first part was normalised; give a file"):
        Encoding.fit(Table(WIDE, NAMES)).part(part)


def test_files_may_follow_a_function_that_does_not_normalise() -> None:
    encoding = Encoding.fit(as_part((torch.from_numpy(WIDE), torch.arange(10))), "none")
    np.testing.assert_array_equal(encoded(encoding, WIDE, np.arange(10)).args[0], WIDE)


# What is kept


@pytest.mark.parametrize(
    "fitted",
    [
        lambda: Encoding.fit(Table(WIDE, NAMES, COLUMNS)),
        lambda: Encoding.fit(Table(PIXELS, np.arange(10)), (0.1, 0.3)),
        lambda: Encoding.fit(Table({"x": WIDE, "picture": PIXELS}, NAMES), classes=["yes", "ü", "no"]),
        lambda: Encoding.fit(Table(np.arange(10), NAMES)),
        lambda: Encoding.fit(as_part((torch.zeros(4, 2), torch.zeros(4))), "none"),
    ],
)
def test_json_and_back(fitted: Any) -> None:
    encoding = fitted()
    assert Encoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


def test_a_part_is_the_same_after_json() -> None:
    encoding = Encoding.fit(Table(WIDE, NAMES))
    again = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert torch.equal(encoded(again, WIDE).args[0], encoded(encoding, WIDE).args[0])


INPUT = {"kind": "floats", "shape": [3], "mean": [0.0], "sd": [1.0]}


@pytest.mark.parametrize(
    "damage",
    [
        {"inputs": []},
        {"inputs": {}},
        {"inputs": {"input": None}},
        {"inputs": {"input": {**INPUT, "kind": "sounds"}}},
        {"inputs": {"input": {**INPUT, "shape": 3}}},
        {"inputs": {"input": {**INPUT, "shape": [-3]}}},
        {"inputs": {"input": {**INPUT, "mean": ["0"]}}},
        {"inputs": {"input": {**INPUT, "mean": [10**400]}}},
        {"inputs": {"input": {**INPUT, "sd": [float("nan")]}}},
        {"inputs": {"input": {**INPUT, "sd": None}}},
        {"inputs": {"input": {**INPUT, "colour": 1}}},
        {"columns": ["a"]},
        {"columns": ["a", "b", "b"]},
        {"columns": "abc"},
        {"columns": [1, 2, 3]},
        {"columns": None},
        {"classes": ["a", "a"]},
        {"classes": "ab"},
        {"classes": [["a"]]},
    ],
    ids=repr,
)
def test_a_damaged_encoding_is_refused(damage: dict[str, Any]) -> None:
    sound: dict[str, Any] = {"inputs": {"input": INPUT}, "columns": ["a", "b", "c"], "classes": ["no", "yes"]}
    assert Encoding.from_json(sound).to_json() == sound
    with pytest.raises(StoreError, match=r"the encoding is damaged or of another version \(.*\); restore its file"):
        Encoding.from_json({**sound, **damage})
    (name,) = damage
    with pytest.raises(StoreError, match=rf"of another version \('{name}' is missing\); restore its file"):
        Encoding.from_json({key: value for key, value in sound.items() if key != name})


# From files to batches


def test_examples_are_fetched_by_number_and_never_changed(tmp_path: Path) -> None:
    np.savez(tmp_path / "part.npz", x=PIXELS, y=NAMES)
    raw = read(tmp_path / "part.npz")
    assert isinstance(raw, Table)
    part = Encoding.fit(raw, "unit").part(raw)
    held, learned = part.split(3, torch.Generator().manual_seed(0))[::-1]
    rows = torch.cat([batch.args[0] for half in (held, learned) for batch in half.batches(2)])
    assert sorted(rows.flatten(1).tolist()) == sorted(torch.from_numpy(PIXELS / 255).float().flatten(1).tolist())
    np.testing.assert_array_equal(raw.named_inputs()[ALONE], PIXELS)


def test_arrays_that_cannot_be_written_to_or_lie_strangely() -> None:
    strange = np.asfortranarray(WIDE.astype(">f8"))
    strange.flags.writeable = False
    encoding = Encoding.fit(Table(strange, NAMES), "none")
    np.testing.assert_array_equal(encoded(encoding, strange[::-1]).args[0], WIDE[::-1])
