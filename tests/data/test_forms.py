"""What one input is in every part: kinds, shapes, moments, and what they are refused for."""

from typing import Any

import numpy as np
import pytest
import torch

from postprior.data.forms import Form, check_forms, forms_of
from postprior.data.parts import as_inputs, as_part
from postprior.data.tables import ALONE, Table
from postprior.errors import PartError, SettingError


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("u1", "pixels"),
        ("f2", "floats"),
        ("f4", "floats"),
        (">f8", "floats"),
        ("?", "booleans"),
        ("i1", "integers"),
        ("u2", "integers"),
        (">i8", "integers"),
    ],
)
def test_the_kind_of_an_array_is_that_of_its_tensor(dtype: str, kind: str) -> None:
    array = np.zeros((4, 3, 2), dtype)
    expected = {ALONE: Form(kind, (3, 2))}  # pyright: ignore[reportArgumentType]
    assert forms_of(Table(array, np.arange(4))) == expected
    tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    assert forms_of(as_part((tensor, torch.arange(4)))) == expected


def test_several_inputs_have_their_names() -> None:
    x, mask = np.zeros((4, 3)), np.zeros((4, 2), bool)
    named = {"x": Form("floats", (3,)), "mask": Form("booleans", (2,))}
    assert forms_of(Table({"x": x, "mask": mask}, np.arange(4))) == named
    assert forms_of(as_part(({"x": x, "mask": mask}, np.arange(4)))) == named
    assert list(forms_of(as_inputs((x, mask)))) == ["input 0", "input 1"]
    assert forms_of(Table({"x": x}, None)) == {ALONE: Form("floats", (3,))}, "one input needs no name"


def test_a_part_without_examples() -> None:
    with pytest.raises(PartError, match=r"^the part holds no example; a part needs at least one$"):
        forms_of(as_part((torch.zeros(0, 2), torch.zeros(0))))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "sounds", "shape": (2,)}, "kind is 'sounds', expected one of pixels, floats, integers, booleans"),
        ({"shape": (2, 0)}, r"shape is \(2, 0\), expected whole numbers above 0"),
        ({"shape": (2, True)}, r"shape is \(2, True\), expected whole numbers"),
        ({"shape": (2.0,)}, r"shape is \(2.0,\), expected whole numbers"),
        ({"shape": (3,), "mean": (0.0,), "sd": ()}, "1 means and 0 sds: expected one of each, or one for each"),
        ({"shape": (3,), "mean": (0.0,) * 2, "sd": (1.0,) * 2}, r"2 means and 2 sds: .* of the first axis of \(3,\)"),
        ({"shape": (3,), "mean": (float("nan"),), "sd": (1.0,)}, "expected finite numbers, and every sd above 0"),
        ({"shape": (3,), "mean": (10**400,), "sd": (1.0,)}, "expected finite numbers, and every sd above 0"),
        ({"shape": (3,), "mean": (True,), "sd": (1.0,)}, "expected finite numbers"),
        ({"shape": (3,), "mean": (0.0,), "sd": (0.0,)}, "every sd above 0"),
        ({"shape": (3,), "mean": (0.0,), "sd": (-1.0,)}, "every sd above 0"),
        ({"kind": "integers", "shape": (3,), "mean": (0.0,), "sd": (1.0,)}, "other than uint8 cannot be normalised"),
        ({"kind": "booleans", "shape": (3,), "mean": (0.0,), "sd": (1.0,)}, "booleans cannot be normalised"),
    ],
)
def test_what_is_no_form(given: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"kind": "floats", **given}
    with pytest.raises(SettingError, match=message):
        Form(**options)


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (3, 4, 5)])
@pytest.mark.parametrize("each", [False, True], ids=["one for all", "one each"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_moments_belong_to_the_first_axis(shape: tuple[int, ...], each: bool, dtype: torch.dtype) -> None:
    count = shape[0] if each and shape else 1
    mean, sd = tuple(float(i) for i in range(count)), tuple(2.0**i for i in range(count))
    raw = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    found = Form("floats", shape, mean, sd).converter()(raw)
    wide = raw.double().reshape(6, count, -1)
    expected = (wide - torch.tensor(mean)[:, None]) / torch.tensor(sd)[:, None]
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), expected.reshape(6, *shape), rtol=1e-6, atol=1e-6)


def test_what_is_not_normalised_is_converted_only() -> None:
    pixels = Form("pixels", (2,)).converter()(torch.tensor([[0, 255]], dtype=torch.uint8))
    assert (pixels.dtype, pixels.tolist()) == (torch.float32, [[0.0, 255.0]])
    tokens = Form("integers", (2,)).converter()(torch.tensor([[-1, 7]], dtype=torch.int16))
    assert (tokens.dtype, tokens.tolist()) == (torch.int64, [[-1, 7]])
    assert Form("booleans", (1,)).converter()(torch.tensor([[True]])).dtype == torch.bool


def test_what_a_later_part_is_refused_for() -> None:
    expected = {"x": Form("pixels", (1, 8, 8), (0.0,), (255.0,))}
    check_forms("monday", expected, {"x": Form("pixels", (1, 8, 8)), "other": Form("floats", ())})
    with pytest.raises(PartError, match=r"monday: expected the inputs 'x' of the first part, found 'y'; say which"):
        check_forms("monday", expected, {"y": Form("pixels", (1, 8, 8))})
    message = (
        r"monday: x is uint8 of shape \(1, 9, 8\) an example, expected uint8 of shape \(1, 8, 8\) an example as in the"
    )
    with pytest.raises(PartError, match=message):
        check_forms("monday", expected, {"x": Form("pixels", (1, 9, 8))})
    with pytest.raises(PartError, match=r"x is floating numbers of shape .* expected uint8 of shape .*; convert it"):
        check_forms("monday", expected, {"x": Form("floats", (1, 8, 8))})
