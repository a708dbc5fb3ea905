"""Stores of format 1 open for ever, and answer as they did."""

import json
import shutil
from pathlib import Path

import golden
import pytest
import torch

from postprior import Store

FOLDER = Path(__file__).with_name("golden")


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_a_store_of_format_1_opens_and_answers_as_it_did(family: str, tmp_path: Path) -> None:
    place = tmp_path / family
    shutil.copytree(FOLDER / family, place)
    store, answers = Store.open(place), json.loads((FOLDER / f"{family}.json").read_text())
    assert store.verify() == []
    assert store.aliases == answers["aliases"]
    assert [entry.event for entry in store.log()] == answers["events"]
    assert [record["id"] for record in store.parts()] == answers["parts"]
    images = golden.pictures(7)[0].numpy()
    assert set(golden.known(store)) == answers["beliefs"].keys()
    for id, means in answers["beliefs"].items():
        found = store.predict(images, at=id, at_mean=True).mean
        torch.testing.assert_close(found, torch.tensor(means), atol=1e-5, rtol=1e-4)
    sampled = store.predict(images, at="head", num_samples=3).mean
    torch.testing.assert_close(sampled, torch.tensor(answers["sampled"]), atol=1e-4, rtol=1e-3)
    pixels, names = golden.pictures(6)
    assert store.absorb((pixels.numpy(), names), part="today").promoted


def test_the_golden_stores_are_as_they_were_made() -> None:
    # No tool that rewrites line endings or drops empty files may touch them.
    for family in golden.FAMILIES:
        assert Store.open(FOLDER / family).verify() == []
