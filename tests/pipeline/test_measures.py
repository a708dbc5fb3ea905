"""Measures of held-out data, however they come."""

from pathlib import Path

import pytest
import torch
from small_store import ARGUMENTS, part, small_store
from torch.utils.data import DataLoader, TensorDataset


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_a_loader_that_shuffles_has_the_measures_of_its_data(likelihood: str, tmp_path: Path) -> None:
    outputs = 2 if likelihood == "categorical" else 1
    arguments = {**ARGUMENTS, "num_outputs": outputs}
    store = small_store(tmp_path, likelihood=likelihood, arguments=arguments, normalise="none")
    x, y = part(100, 90)
    targets = y if likelihood == "categorical" else y[:, None].float()
    store.absorb((x, targets), part="one")
    shuffled = DataLoader(TensorDataset(x, targets), 16, shuffle=True, generator=torch.Generator().manual_seed(3))
    assert store.evaluate(shuffled) == pytest.approx(store.evaluate((x, targets)), abs=1e-5)
