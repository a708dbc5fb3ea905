"""Means and standard deviations are those that numpy finds on a whole copy, and exact for bytes."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from postprior.data import moments
from postprior.data.moments import first_not_finite, mean_and_sd

DRAW = np.random.default_rng(0)


@pytest.fixture(params=[1 << 20, 7], ids=["one block", "many blocks"], autouse=True)
def _block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "BLOCK", request.param)


@pytest.mark.parametrize(
    ("shape", "axes"), [((50,), (0,)), ((50, 4), (0,)), ((50, 3, 2), (0, 2)), ((20, 3, 4, 5), (0, 2, 3))]
)
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2"])
def test_floats(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    array = DRAW.normal(3.0, 2.0, shape).astype(dtype)
    mean, sd = mean_and_sd(array)
    whole = array.astype(np.float64)
    np.testing.assert_allclose(mean, np.atleast_1d(whole.mean(axes)), rtol=1e-13)
    np.testing.assert_allclose(sd, np.atleast_1d(whole.std(axes)), rtol=1e-13)


@pytest.mark.parametrize("shape", [(50,), (50, 4), (20, 3, 4, 5)])
def test_bytes_are_rounded_once(shape: tuple[int, ...]) -> None:
    array = DRAW.integers(0, 256, shape, np.uint8)
    channels = array.reshape(len(array), shape[1] if len(shape) > 1 else 1, -1)
    mean, sd = mean_and_sd(array)
    for i in range(channels.shape[1]):
        values = [Fraction(value) for value in channels[:, i].ravel().tolist()]
        exact = sum(values) / len(values)
        assert mean[i] == float(exact)
        assert sd[i] == math.sqrt(float(sum((value - exact) ** 2 for value in values) / len(values)))


def test_sums_of_bytes_do_not_overflow() -> None:
    array = np.full((1, 1, 300, 300), 255, np.uint8)
    array[..., 0] = 254
    mean, _ = mean_and_sd(array)
    assert mean == (255 - 1 / 300,)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_what_never_varies_has_sd_1_and_keeps_its_value(dtype: Any) -> None:
    array = np.stack([np.full(1001, 0.1), DRAW.normal(size=1001)], 1)
    array = (100 * array).astype(np.uint8) if dtype == np.uint8 else array.astype(dtype)
    mean, sd = mean_and_sd(array)
    assert (mean[0], sd[0]) == (float(array[0, 0]), 1.0)
    assert sd[1] != 1.0


def test_what_is_too_large_is_said_rather_than_warned_of() -> None:
    mean, sd = mean_and_sd(np.array([1e308, 1.5e308, -1e308]))
    assert not all(map(math.isfinite, (*mean, *sd)))


def test_the_first_number_that_is_none() -> None:
    array = DRAW.normal(size=(30, 2, 3))
    assert first_not_finite(array) is None
    array[20, 1, 0], array[11, 0, 2], array[11, 1, 1] = np.nan, -np.inf, np.nan
    assert first_not_finite(array) == (11, 0, 2)
    assert first_not_finite(np.array([0.0, np.inf])) == (1,)
