"""`postprior export` and `report`: out of the store and into the world."""

from pathlib import Path
from typing import Annotated

import typer

from postprior.cli import options, screen


def export(
    store: options.StoreAt,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="A .onnx file, or a .pt2 of torch.export.")
    ],
    at: options.At = "champion",
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Weight samples baked in, if not the usual number.")
    ] = None,
    mean: Annotated[bool, typer.Option("--mean", help="The mean weights alone: smaller, without doubts.")] = False,
    seed: Annotated[int, typer.Option(help="Of the weight samples.")] = 0,
    like: Annotated[
        str | None, typer.Option(metavar="DATA", help="To trace with, where random inputs will not do (tokens).")
    ] = None,
    json_: options.Json = False,
) -> None:
    """Write a belief as a file that runs without this library: raw inputs in, mean, entropy and doubt out.

    The file's answers are compared with the belief's before it gets its name.

    \b
    [bold]Examples[/bold]
    postprior export digits -o model.onnx
    [dim]# one network instead of thirty[/dim]
    postprior export digits -o model.pt2 --mean
    """
    from postprior.pipeline.exporting import SERVED_SAMPLES
    from postprior.pipeline.store import Store

    samples = samples or SERVED_SAMPLES
    opened = Store.open(store)
    id = opened.archive.resolve(at)
    path = opened.export(output, at=id, num_samples=samples, at_mean=mean, seed=seed, like=like)
    size = path.stat().st_size
    if json_:
        screen.document({"belief": id, "file": str(path), "bytes": size})
    else:
        what = "the mean weights" if mean else f"{samples} weight samples"
        print(f"{path}: {what} of {id[: screen.SHORT]}, {size / 1e6:.1f} MB; its answers agree with the belief's.")


def report(
    store: options.StoreAt,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="An .html file.")],
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help="Held-out data, for calibration and the largest doubts.")
    ] = None,
    at: options.At = "head",
    device: options.Device = "cpu",
    json_: options.Json = False,
) -> None:
    """Write one HTML page about the store that needs no network: parts, gates, surprises, layers, lineage.

    \b
    [bold]Examples[/bold]
    postprior report digits -o report.html
    postprior report digits -o report.html --data heldout.npz
    """
    from postprior.pipeline.store import Store

    opened = Store.open(store, device=device)
    path = opened.report(output, data, at=at)
    screen.document({"belief": opened.archive.resolve(at), "file": str(path)}) if json_ else print(path)
