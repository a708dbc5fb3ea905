"""Predictions as rows that other programs read."""

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from small_store import part, small_store

from postprior import Predictions, Store
from postprior.errors import SettingError, StoreError


@pytest.fixture(scope="module")
def predictions(tmp_path_factory: pytest.TempPathFactory) -> Predictions:
    """Of five rows, with named classes."""
    store = small_store(tmp_path_factory.mktemp("predictions"), classes=["no", "yes"])
    x, y = part(0)
    store.absorb((x.numpy(), np.array(["no", "yes"])[y.numpy()]), part="a")
    return store.predict(part(1)[0][:5])


def test_a_row_tells_the_class_and_the_doubt(predictions: Predictions) -> None:
    columns = predictions.columns()
    assert list(columns) == ["predicted", "probability", "mean_no", "mean_yes", "entropy", "mutual_information"]
    assert {len(column) for column in columns.values()} == {5}
    best = predictions.mean.argmax(1)
    assert columns["predicted"].tolist() == [["no", "yes"][place] for place in best]
    assert predictions.entropy is not None
    assert columns["entropy"].tolist() == predictions.entropy.tolist()


def test_files_hold_what_was_predicted(predictions: Predictions, tmp_path: Path) -> None:
    columns = predictions.columns()
    table = pyarrow.parquet.read_table(predictions.write(tmp_path / "p.parquet"))
    assert table.to_pydict() == {name: column.tolist() for name, column in columns.items()}
    with predictions.write(tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["predicted"] for row in rows] == columns["predicted"].tolist()
    assert [float(row["mean_yes"]) for row in rows] == columns["mean_yes"].tolist()
    with np.load(predictions.write(tmp_path / "p.npz"), allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["mean"], predictions.mean.numpy())
        assert arrays["classes"].tolist() == ["no", "yes"]
        assert {"entropy", "mutual_information", "variance"} <= set(arrays)


def test_a_file_that_cannot_be_written_leaves_nothing(predictions: Predictions, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"expected one of \.parquet, \.csv, \.npz"):
        predictions.write(tmp_path / "p.xlsx")
    with pytest.raises(StoreError, match="there is no folder"):
        predictions.write(tmp_path / "nowhere" / "p.csv")
    assert list(tmp_path.iterdir()) == []


def test_numbers_are_predicted_with_their_variances(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", torch.nn.Linear(3, 1), likelihood="gaussian", epochs=2)
    x, _ = part(0)
    store.absorb((x, x.sum(1)), part="a")
    columns = store.predict(x[:4]).columns()
    assert {"mean", "variance", "epistemic_variance"} <= columns.keys()
    assert "predicted" not in columns
    assert (columns["variance"] >= columns["epistemic_variance"]).all()
    measures = store.evaluate((x, x.sum(1)))
    assert {"nll", "rmse"} <= measures.keys()
    assert "accuracy" not in measures


def test_yes_or_no_to_several_questions_is_no_choice_among_them(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", torch.nn.Linear(3, 2), likelihood="bernoulli", epochs=2)
    x, _ = part(0)
    store.absorb((x, (x[:, :2] > 0).float()), part="a")
    assert "predicted" not in store.predict(x[:4]).columns()
