"""`postprior init`: the one verb that starts from scratch."""

from typing import Annotated

import typer

from postprior.cli import options, screen

BELIEF, PRETRAINED, DATA = "What is believed", "From a pretrained network", "What the data are"


def init(
    store: options.StoreAt,
    network: Annotated[
        str,
        typer.Option(
            metavar="NET", help="lenet5, 3conv3fc, resnet32x32, smallconvnet, mlp, or package.module:function."
        ),
    ],
    argument: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="What the network is called with; as often as there are arguments."),
    ] = None,
    likelihood: Annotated[
        str, typer.Option(help="categorical, bernoulli, gaussian or poisson.", rich_help_panel=BELIEF)
    ] = "categorical",
    family: Annotated[
        str, typer.Option(help="point, factorized, channelwise or multiplicative.", rich_help_panel=BELIEF)
    ] = "factorized",
    prior_sd: Annotated[
        str, typer.Option(metavar="SD", help="Of every weight before any part; or fan_in.", rich_help_panel=BELIEF)
    ] = "1.0",
    point: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Parameters learned as one value.", rich_help_panel=BELIEF)
    ] = None,
    frozen: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Parameters that stay as they are.", rich_help_panel=BELIEF)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the network and of all learning.", rich_help_panel=BELIEF)] = 0,
    pretrained: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its weights: a .safetensors file.", rich_help_panel=PRETRAINED)
    ] = None,
    carry: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Parameters carried over; otherwise all.", rich_help_panel=PRETRAINED),
    ] = None,
    pretrained_sd: Annotated[
        float | None,
        typer.Option(metavar="SD", help="How far each may be from the truth.", rich_help_panel=PRETRAINED),
    ] = None,
    old_data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="What it learned from, to tell that (Laplace).", rich_help_panel=PRETRAINED),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Tells normalisation and classes before part one.", rich_help_panel=DATA),
    ] = None,
    normalise: Annotated[
        str, typer.Option(metavar="HOW", help="standard, none, unit, or MEAN,SD.", rich_help_panel=DATA)
    ] = "standard",
    classes: Annotated[
        str | None, typer.Option(metavar="NAMES", help="All that labels may ever be, in order.", rich_help_panel=DATA)
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Which column holds the targets.", rich_help_panel=DATA)
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help="Which ones are the inputs.", rich_help_panel=DATA)
    ] = None,
    epochs: options.Epochs = None,
    temperature: options.Temperature = None,
    learning_rate: options.LearningRate = None,
    batch_size: options.BatchSize = None,
    set_: options.Set = None,
    device: options.Device = "cpu",
    json_: options.Json = False,
) -> None:
    """Make a store where nothing stands: a network, and what is believed of its weights before any part.

    All that is said here holds for every later part; `absorb` may change
    settings of learning for one. Where several names are taken, commas stand
    between them.

    \b
    [bold]Examples[/bold]
    postprior init digits --network lenet5
    [dim]# columns of numbers, in a store on S3; data scarce, so keep it cautious[/dim]
    postprior init s3://models/churn --network mlp --argument in_features=12 --argument num_outputs=2 --epochs 50
    [dim]# a network of your own that was trained before[/dim]
    postprior init scans --network mypackage.nets:make --pretrained scans.safetensors --pretrained-sd 0.05
    """
    from postprior.pipeline.store import Store

    options_of_learning = options.settings(
        set_, epochs=epochs, temperature=temperature, learning_rate=learning_rate, batch_size=batch_size
    )
    made = Store.create(
        store,
        network,
        likelihood=likelihood,
        device=device,
        arguments=options.arguments(argument),
        family=family,
        prior_sd=options.number_or_name(prior_sd),
        point=options.split(point) or (),
        frozen=options.split(frozen) or (),
        seed=seed,
        pretrained=pretrained,
        carry=options.split(carry) or (),
        pretrained_sd=pretrained_sd,
        old_data=old_data,
        like=like,
        normalise=options.normalisation(normalise),
        classes=options.split(classes),
        target=target,
        inputs=options.split(inputs),
        **options_of_learning,
    )
    id = made.aliases["head"]
    if json_:
        screen.document({"store": made.address, "belief": id, "aliases": made.aliases})
        return
    weights = sum(each.mean().numel() for each in made.belief().weights.values())
    print(f"{made.address}: {network}, {weights:,} weights, {family}; the first belief is {id[: screen.SHORT]}.")
    print(f"Next: postprior absorb {store} DATA")
