"""`postprior absorb` and `resume`: a part is scored, learned, judged and recorded."""

import importlib.util
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postprior.cli import options, screen
from postprior.cli.exits import Exit
from postprior.cli.joining import Timeout, joined, learning
from postprior.cli.outcomes import ending
from postprior.cli.stopping import stoppable
from postprior.cli.together import absorb_together
from postprior.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    from postprior.pipeline.absorbing import Outcome
    from postprior.pipeline.store import Store
    from postprior.serving.trackers import Tracker

CROWD = "Many parts at once"

Evaluate = Annotated[
    str | None,
    typer.Option(metavar="DATA", help="Held-out data, which is not learned.", rich_help_panel="How it is judged"),
]
Every = Annotated[float, typer.Option(metavar="SECONDS", min=0.0, help="From one checkpoint to the next.")]
TensorBoardAt = Annotated[
    str | None,
    typer.Option("--tensorboard", metavar="DIR", rich_help_panel=options.TRACKING, help="Write scalars there."),
]
MlflowAt = Annotated[
    str | None,
    typer.Option("--mlflow", metavar="URI", rich_help_panel=options.TRACKING, help="A tracking server or file."),
]
Experiment = Annotated[str, typer.Option(rich_help_panel=options.TRACKING, help="MLflow's experiment.")]
Lineage = Annotated[
    str | None, typer.Option(rich_help_panel=options.TRACKING, help="What the run is called; else as the store is.")
]
Register = Annotated[
    str | None,
    typer.Option(metavar="MODEL", rich_help_panel=options.TRACKING, help="Register each passing belief there."),
]


def absorb(
    store: options.StoreAt,
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help=options.DATA)],
    part: Annotated[str | None, typer.Option(metavar="NAME", help="What to call it; otherwise its file says.")] = None,
    evaluate: Evaluate = None,
    gate: Annotated[
        str | None,
        typer.Option(help="Such as 'nll<=champion+0.01 and accuracy>0.9'.", rich_help_panel="How it is judged"),
    ] = None,
    promote: Annotated[
        bool,
        typer.Option(
            "--promote/--no-promote", help="Whether it may become champion.", rich_help_panel="How it is judged"
        ),
    ] = True,
    onto: Annotated[str | None, typer.Option(metavar="REF", help="The belief that learns it, else head.")] = None,
    branch: Annotated[str | None, typer.Option(metavar="ALIAS", help="Move this alias, and not head.")] = None,
    shard: Annotated[
        bool, typer.Option("--shard", help="Under torchrun: cut the belief among the processes; none holds all of it.")
    ] = False,
    allow_repeat: Annotated[
        bool, typer.Option("--allow-repeat", help="Though it was absorbed before; that is recorded.")
    ] = False,
    parallel: Annotated[
        str | None,
        typer.Option(metavar="WHERE", rich_help_panel=CROWD, help="local, or a Ray cluster: ray://host:10001."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, rich_help_panel=CROWD, help="Where it is local; else one a core.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=0, rich_help_panel=CROWD, help="In which all learn again from the others.")
    ] = 0,
    epochs: options.Epochs = None,
    temperature: options.Temperature = None,
    learning_rate: options.LearningRate = None,
    batch_size: options.BatchSize = None,
    set_: options.Set = None,
    tensorboard: TensorBoardAt = None,
    mlflow: MlflowAt = None,
    experiment: Experiment = "postprior",
    lineage: Lineage = None,
    register: Register = None,
    every: Every = 60.0,
    timeout: Timeout = 1800.0,
    wait: options.Wait = False,
    device: options.Device = "cpu",
    json_: options.Json = False,
) -> None:
    """Learn one part: today's posterior becomes tomorrow's prior.

    The old belief is asked first what it makes of the part, so that a change in
    the data is seen. A belief that fails its gate is kept as candidate, head
    and champion stay, and the exit status is 3. Interrupt it as you like: what
    was learned is put away, and `postprior resume` goes on with it.

    \b
    [bold]Examples[/bold]
    postprior absorb digits 2026-11-18.npz
    [dim]# only what does no worse on data set aside takes over[/dim]
    postprior absorb digits 2026-11-18.npz --evaluate heldout.npz --gate 'nll<=champion+0.01'
    [dim]# aside from the others, to be merged later[/dim]
    postprior absorb digits berlin.parquet --branch berlin --onto champion
    [dim]# many at once, each by a worker of its own, and multiplied[/dim]
    postprior absorb digits part-*.npz --parallel local --rounds 1
    [dim]# one large part, learned by four processes together[/dim]
    torchrun --nproc-per-node=4 --max-restarts=3 -m postprior absorb digits large.npz
    [dim]# a network whose belief does not fit one device[/dim]
    torchrun --nproc-per-node=4 -m postprior absorb digits large.npz --shard
    """
    changes = options.settings(
        set_, epochs=epochs, temperature=temperature, learning_rate=learning_rate, batch_size=batch_size
    )
    judged: dict[str, Any] = {"evaluate": evaluate, "gate": gate, "promote": promote, "onto": onto, "branch": branch}
    if parallel is not None:
        alone = {"--part": part, "--allow-repeat": allow_repeat, "--tensorboard": tensorboard, "--mlflow": mlflow}
        alone["--shard"] = shard
        for option in (name for name, value in alone.items() if value):
            raise SettingError(f"{option} is of one part: leave it out, or absorb the parts one after another")
        crowd: dict[str, Any] = {"parallel": parallel, "workers": workers, "rounds": rounds}
        absorb_together(store, data, device, json_, {**judged, **crowd, "wait": wait, **changes})
        return
    if len(data) > 1:
        raise SettingError(f"{len(data)} parts: absorb one after another, or all at once with --parallel local")
    with joined(timeout) as speaks, stoppable(store) as stop:
        from postprior.pipeline.store import Store

        opened = Store.open(store, device=device)
        told = _trackers(opened, tensorboard, mlflow, experiment, lineage, register) if speaks else []
        with learning(speaks) as progress:
            outcome = opened.absorb(
                data[0],
                part=part,
                allow_repeat=allow_repeat,
                shard=shard,
                **judged,
                wait=wait,
                trackers=told,
                progress=progress,
                stop=stop,
                every_seconds=every,
                **changes,
            )
    _tell(opened, outcome, json_, speaks)


def resume(
    store: options.StoreAt,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Only where the part was handed over from Python.")
    ] = None,
    evaluate: Evaluate = None,
    discard: Annotated[bool, typer.Option("--discard", help="Give the interrupted part up instead.")] = False,
    tensorboard: TensorBoardAt = None,
    mlflow: MlflowAt = None,
    experiment: Experiment = "postprior",
    lineage: Lineage = None,
    register: Register = None,
    every: Every = 60.0,
    timeout: Timeout = 1800.0,
    wait: options.Wait = False,
    device: options.Device = "cpu",
    json_: options.Json = False,
) -> None:
    """Go on with the absorption that was interrupted, as it was asked for, from its last checkpoint.

    On the CPU it ends at the same belief as one that was never interrupted. The
    part must still be where it was.

    \b
    [bold]Examples[/bold]
    postprior resume digits
    [dim]# give it up; the store is as it was before the part[/dim]
    postprior resume digits --discard
    """
    with joined(timeout) as speaks, stoppable(store) as stop:
        from postprior.pipeline.store import Store

        opened = Store.open(store, device=device)
        if discard:
            given_up = opened.discard(wait=wait)
            screen.document({"discarded": given_up}) if json_ else print(f"Part {given_up} is given up.")
            return
        told = _trackers(opened, tensorboard, mlflow, experiment, lineage, register) if speaks else []
        with learning(speaks) as progress:
            outcome = opened.resume(
                data, evaluate=evaluate, wait=wait, trackers=told, progress=progress, stop=stop, every_seconds=every
            )
    _tell(opened, outcome, json_, speaks)


def _trackers(
    store: "Store",
    tensorboard: str | None,
    mlflow: str | None,
    experiment: str,
    lineage: str | None,
    register: str | None,
) -> "list[Tracker]":
    from postprior.serving.trackers import MLflow, TensorBoard

    # Looked for before anything is learned: a tracker that fails afterwards is no more than a warning.
    for wanted, package in ((tensorboard, "tensorboard"), (mlflow, "mlflow")):
        if wanted and importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"--{package} needs the package {package}: pip install 'postprior[{package}]'")
    name = lineage or store.address.rstrip("/").rpartition("/")[2]
    told: list[Tracker] = [TensorBoard(tensorboard)] if tensorboard else []
    if mlflow:
        # Its bars redraw their line in a log too.
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        told.append(MLflow(name, experiment=experiment, tracking_uri=mlflow, model_name=register))
    return told


def _tell(store: "Store", outcome: "Outcome", as_json: bool, speaks: bool) -> None:
    """Print what came of it; a gate that failed is an exit status of its own."""
    aliases = store.aliases
    if as_json and speaks:
        screen.document(_plain(outcome, aliases))
    elif speaks:
        screen.lines(_words(store, outcome, aliases))
    if not outcome.passed:
        raise typer.Exit(Exit.GATE)


def _words(store: "Store", outcome: "Outcome", aliases: dict[str, str]) -> list[tuple[str, str]]:
    count = store.show(outcome.belief)["part"]["num_examples"]
    before = screen.measures(outcome.before, ("nll", "rmse", "accuracy", "epistemic_share"))
    rows = [("part", f"{outcome.part}, {count:,} examples"), ("before", f"{before} (under the belief before it)")]
    rows += [("overlap", each.sentence) for each in outcome.overlaps]
    rows += [("surprise", each.sentence) for each in outcome.surprises if each.is_warning]
    if update := outcome.update:
        rows.append(("learned", f"{update.num_steps:,} steps, KL {update.kl:,.1f} nats, {update.seconds:.1f} s"))
    return rows + ending(outcome, aliases)


def _plain(outcome: "Outcome", aliases: dict[str, str]) -> dict[str, Any]:
    update = outcome.update
    return {
        "belief": outcome.belief,
        "part": outcome.part,
        "passed": outcome.passed,
        "promoted": outcome.promoted,
        "before": dict(outcome.before),
        "after": None if outcome.after is None else dict(outcome.after),
        "gate": outcome.verdict.to_json() if outcome.verdict else None,
        "surprises": [{**asdict(each), "warning": each.is_warning} for each in outcome.surprises],
        "overlaps": [asdict(each) for each in outcome.overlaps],
        "update": update and {"kl": update.kl, "steps": update.num_steps, "seconds": update.seconds},
        "aliases": aliases,
    }
