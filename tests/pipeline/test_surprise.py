"""Drift is seen in how the old belief meets a new part, before it is learned."""

from pathlib import Path

import pytest
import torch
from small_store import part, small_store

from postprior.pipeline.surprise import FEWEST, MOST, surprises

STEADY = [{"nll": 0.50 + 0.01 * (i % 3), "epistemic_share": 0.1} for i in range(6)]


def test_a_part_far_worse_than_its_past_is_a_warning() -> None:
    found = {each.measure: each for each in surprises({"nll": 0.9, "epistemic_share": 0.1}, STEADY)}
    assert found["nll"].is_warning
    assert not found["epistemic_share"].is_warning
    assert found["nll"].usual == pytest.approx(0.51)
    assert "nll is 0.9 under the belief before it, usually 0.51" in found["nll"].sentence


def test_a_part_like_its_past_or_better_is_none() -> None:
    for nll in (0.1, 0.5, 0.53):
        assert not any(each.is_warning for each in surprises({"nll": nll, "epistemic_share": 0.1}, STEADY))


def test_a_short_past_tells_nothing_and_a_long_one_is_cut() -> None:
    assert surprises({"nll": 9.0}, STEADY[: FEWEST - 1]) == []
    long_ago = [{"nll": 5.0}] * 50
    assert surprises({"nll": 5.0}, [*STEADY, *STEADY][:MOST] + long_ago)[0].is_warning


def test_a_measure_without_a_past_is_left_out() -> None:
    assert surprises({"nll": 0.5}, [{"rmse": 1.0}] * 5) == []


def test_a_store_warns_of_parts_that_came_from_elsewhere(tmp_path: Path) -> None:
    store = small_store(tmp_path, epochs=20, temperature=0.1, like=part(50, 500))
    for day in range(6):
        usual = store.absorb(part(day, 200), part=f"day {day}")
        assert not any(each.is_warning for each in usual.surprises)
    x, y = part(7, 200)
    changed = store.absorb((-x, y), part="changed")
    assert any(each.is_warning and each.measure == "nll" for each in changed.surprises)
    kept = store.show()["surprises"]
    assert [each["measure"] for each in kept] == [each.measure for each in changed.surprises]
    assert torch.tensor([each["score"] for each in kept]).max() > 4
