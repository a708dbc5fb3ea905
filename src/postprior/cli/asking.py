"""`postprior evaluate` and `predict`: what a belief makes of data."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from postprior.cli import options, screen

ROWS_SHOWN, COLUMNS_SHOWN = 20, 12


def evaluate(
    store: options.StoreAt,
    data: options.Data,
    at: options.At = "champion",
    samples: options.Samples = None,
    seed: Annotated[int, typer.Option(help="Of the weight samples.")] = 0,
    device: options.Device = "cpu",
    json_: options.Json = False,
) -> None:
    """Score data with targets, none of which is learned: NLL, accuracy, calibration, doubt.

    \b
    [bold]Examples[/bold]
    postprior evaluate digits heldout.npz
    [dim]# as it was three parts ago[/dim]
    postprior evaluate digits heldout.npz --at head~3
    """
    from postprior.pipeline.store import Store

    opened = Store.open(store, device=device)
    found = opened.evaluate(data, at=at, seed=seed, **options.given(num_samples=samples))
    if json_:
        screen.document({"belief": opened.archive.resolve(at), "measures": found})
    else:
        screen.lines(screen.measured(found))


def predict(
    store: options.StoreAt,
    data: options.Data,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A .parquet, .csv or .npz, a row each.")
    ] = None,
    at: options.At = "champion",
    samples: options.Samples = None,
    seed: Annotated[int, typer.Option(help="Of the weight samples.")] = 0,
    device: options.Device = "cpu",
    json_: options.Json = False,
) -> None:
    """Predict every row, targets or not: the mean, its entropy, and how much of that more data would remove.

    Rows of high mutual information are those that the belief knows it does not
    know.

    \b
    [bold]Examples[/bold]
    postprior predict digits today.npz -o predictions.parquet
    [dim]# a few rows, to look at[/dim]
    postprior predict digits today.npz
    """
    from postprior.pipeline.predictions import Predictions
    from postprior.pipeline.store import Store

    if output is not None:
        Predictions.writer(output)
    opened = Store.open(store, device=device)
    id = opened.archive.resolve(at)
    found = opened.predict(data, at=id, seed=seed, **options.given(num_samples=samples))
    rows = len(found.mean)
    if output is not None:
        found.write(output)
        told: dict[str, Any] = {"belief": id, "rows": rows, "file": str(output)}
        screen.document(told) if json_ else print(f"{output}: {rows:,} rows, as {id[: screen.SHORT]} predicts them.")
        return
    columns = {name: column.tolist() for name, column in found.columns().items()}
    if json_:
        screen.document({"belief": id, "rows": rows, "predictions": columns})
        return
    _show({name: values for name, values in columns.items() if "predicted" not in columns or "mean" not in name})
    if rows > ROWS_SHOWN:
        print(f"... and {rows - ROWS_SHOWN:,} more rows: write them all with -o predictions.csv")


def _show(columns: Mapping[str, Sequence[Any]]) -> None:
    names = [*columns][:COLUMNS_SHOWN]
    rows = islice(zip(*(columns[name] for name in names), strict=True), ROWS_SHOWN)
    screen.table(("row", *names), ((str(i), *map(_cell, row)) for i, row in enumerate(rows)), right=("row", *names))


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
