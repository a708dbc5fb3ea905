"""What a belief says of each row, with its doubts, and as a file that other programs read."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from postprior.errors import MissingExtraError, SettingError
from postprior.learning.predict import Prediction
from postprior.store.files import appearing, check_place

Column = NDArray[Any]


@dataclass(frozen=True)
class Predictions(Prediction):
    """A prediction that knows what its classes are called."""

    classes: tuple[str, ...] | None = None
    one_of: bool = False
    """Whether every row is of one class, and the mean its probabilities."""

    def columns(self) -> dict[str, Column]:
        """One value a row under each name: the predicted class and the mean, then how sure that is."""
        found: dict[str, Column] = {}
        if self.one_of:
            best = self.mean.argmax(1).numpy()
            found["predicted"] = best if self.classes is None else np.array(self.classes)[best]
            found["probability"] = self.mean.max(1).values.numpy()
        names = self.classes if self.one_of else None
        found |= _flat("mean", self.mean.numpy(), names)
        if not self.one_of:
            found |= _flat("variance", self.variance.numpy(), None)
            found |= _flat("epistemic_variance", self.epistemic_variance.numpy(), None)
        if self.entropy is not None and self.mutual_information is not None:
            found |= _flat("entropy", self.entropy.numpy(), None)
            found |= _flat("mutual_information", self.mutual_information.numpy(), None)
        return found

    def write(self, path: str | Path) -> Path:
        """A .parquet or .csv with a row each, or an .npz of the arrays; whole, or not at all."""
        path = Path(path)
        self.writer(path)(self, path)
        return path

    @staticmethod
    def writer(path: Path) -> "Callable[[Predictions, Path], None]":
        """What writes such a file; before any work it refuses an ending that says nothing, or a folder not there."""
        writers = {".parquet": _write_parquet, ".csv": _write_csv, ".npz": _write_npz}
        if path.suffix not in writers:
            raise SettingError(f"{path}: the ending says how to write it: expected one of {', '.join(writers)}")
        check_place(path)
        if path.suffix == ".parquet":
            _pyarrow()
        return writers[path.suffix]


def _flat(name: str, values: Column, names: tuple[str, ...] | None) -> dict[str, Column]:
    """One column for each number of a row."""
    flat = values.reshape(len(values), -1)
    if flat.shape[1] == 1 and names is None:
        return {name: flat[:, 0]}
    return {f"{name}_{names[i] if names else i}": flat[:, i] for i in range(flat.shape[1])}


def _write_csv(predictions: Predictions, path: Path) -> None:
    columns = predictions.columns()
    with appearing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


def _write_parquet(predictions: Predictions, path: Path) -> None:
    parquet = _pyarrow()
    table = import_module("pyarrow").table(predictions.columns())
    with appearing(path) as temporary:
        parquet.write_table(table, temporary)


def _write_npz(predictions: Predictions, path: Path) -> None:
    arrays = {
        "mean": predictions.mean,
        "variance": predictions.variance,
        "epistemic_variance": predictions.epistemic_variance,
        "entropy": predictions.entropy,
        "mutual_information": predictions.mutual_information,
    }
    known: dict[str, Any] = {name: value.numpy() for name, value in arrays.items() if value is not None}
    if predictions.classes is not None:
        known["classes"] = np.array(predictions.classes)
    with appearing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **known)


def _pyarrow() -> Any:
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError(
            f"writing Parquet needs pyarrow ({error}): pip install 'postprior[data]', or write a .csv"
        ) from error
