"""`postprior demo`: the whole idea on data that needs no download."""

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from postprior.paper.digits import Run

NUM_PARTS = (1, 10)


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for digits.json, digits.md, digits.png.")] = Path(
        "demo"
    ),
    shuffled: Annotated[
        bool, typer.Option("--shuffled", help="Make the ten parts alike; else writers differ.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each run; five give intervals worth reading.")] = 1,
) -> None:
    """Learn handwritten digits at once, and in ten parts that are thrown away, with and without a belief.

    The parts come as they were recorded, each by other writers; the test images are by all of them.

    Fine-tuning (FT) starts each part at the last weights. The Bayesian families start it at the last belief:
    independent weights (FFG), correlated within each kernel (CFG), multiplied by a normalising flow (MNF).
    Those with FS hold their new predictions to the old ones as well, on the inputs of the new part.

    \b
    [bold]Examples[/bold]
    postprior demo
    [dim]# with intervals, five times as long[/dim]
    postprior demo --seeds 5 --out results/digits
    """
    import torch

    from postprior.paper import digits

    torch.set_num_threads(1)  # the network is too small to be worth sharing out
    out.mkdir(parents=True, exist_ok=True)
    plan = [(method, parts, seed) for seed in range(seeds) for parts in NUM_PARTS for method in digits.METHODS]
    about = digits.provenance()  # of the code that runs, whatever is committed meanwhile
    runs: list[Run] = []
    with _progress(sum(parts for _, parts, _ in plan)) as tell:
        for method, parts, seed in plan:
            title = f"{method} in {parts} part{'s' * (parts > 1)}, seed {seed}"
            runs.append(digits.run(method, parts, seed, shuffled, lambda number, title=title: tell(title, number)))
    _report(runs, seeds, shuffled, about, out)


def _report(runs: "list[Run]", seeds: int, shuffled: bool, about: dict[str, Any], out: Path) -> None:
    """Print the table; write it, the picture and all numbers."""
    from rich.console import Console
    from rich.table import Table

    from postprior.paper import digits

    table = Table(*digits.COLUMNS)
    endings = digits.endings(runs)
    rows = [digits.row(end) for end in endings]
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    lines = [digits.COLUMNS, ("---",) * len(digits.COLUMNS), *rows]
    (out / "digits.md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))
    command = f"postprior demo --seeds {seeds}{' --shuffled' if shuffled else ''}"
    about = {"command": command, "seeds": list(range(seeds)), "shuffled": shuffled, **about}
    about |= {"endings": [asdict(end) for end in endings], "runs": [asdict(run) for run in runs]}
    (out / "digits.json").write_text(json.dumps(about, indent=1) + "\n")
    digits.draw(runs, out / "digits.png")
    print(f"The picture is {out / 'digits.png'}; the numbers are digits.json and digits.md beside it.")


@contextmanager
def _progress(total: int) -> Generator[Callable[[str, int], None]]:
    """A bar on a terminal; in a log, a line when a run begins its last part."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, done = Console(stderr=True), 0
    if not console.is_terminal:

        def line(title: str, number: int) -> None:
            nonlocal done
            done += 1
            sys.stderr.write(f"{title}: part {number} learned ({done} of {total})\n")

        yield line
        return
    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("learning digits", total=total)
        yield lambda title, _: bar.update(task, advance=1, description=title)
