"""Arguments that several verbs take, and text from the command line as values."""

import json
import typing
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from postprior.errors import SettingError

DATA = "A .npz, .parquet or .csv file, a folder of pictures by class, a saved dataset, or module:function."
ASKING, LEARNING, TRACKING = "What is asked", "How it learns", "Who else is told"

StoreAt = Annotated[str, typer.Argument(metavar="STORE", help="The store: a folder, or an address such as s3://...")]
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA)]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, and nothing else there.")]
At = Annotated[str, typer.Option(metavar="REF", help="The belief: an alias, an id or its beginning, head~3.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait while another process works on the store.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
Samples = Annotated[
    int | None, typer.Option(min=1, metavar="K", help="Weight samples that are averaged over, if not the usual number.")
]

Epochs = Annotated[int | None, typer.Option(help="Passes over a part.", rich_help_panel=LEARNING)]
Temperature = Annotated[
    float | None,
    typer.Option(help="What the KL counts: 1 is Bayes' rule, the paper has 0.05.", rich_help_panel=LEARNING),
]
LearningRate = Annotated[float | None, typer.Option(help="Of Adam.", rich_help_panel=LEARNING)]
BatchSize = Annotated[int | None, typer.Option(help="Examples a step.", rich_help_panel=LEARNING)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, such as steps=500.", rich_help_panel=LEARNING),
]


def settings(assignments: list[str] | None, **named: Any) -> dict[str, Any]:
    """The settings that were given, whether by an option of their own or by --set, each of its type."""
    from postprior.learning.settings import Settings, checked_names

    found = given(**named)
    kinds = typing.get_type_hints(Settings)
    for name, text in pairs("--set", assignments).items():
        checked_names({name: text})
        if name == "augment":
            raise SettingError(
                "augment is a function, which no text can be: augment in the function that gives the data"
            )
        if name in found:
            raise SettingError(f"{name} is given twice, by --{name.replace('_', '-')} and by --set: leave one")
        found[name] = _typed(name, text, kinds[name])
    return found


def arguments(assignments: list[str] | None) -> dict[str, Any]:
    """What a network's function is called with: JSON where it is JSON, else text."""
    return {name: _json_or_text(text) for name, text in pairs("--argument", assignments).items()}


def pairs(option: str, assignments: list[str] | None) -> dict[str, str]:
    """NAME=VALUE as a dictionary, every name once."""
    found: dict[str, str] = {}
    for assignment in assignments or ():
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if not equals or not name:
            raise SettingError(f"{option} {assignment!r}: expected NAME=VALUE")
        if name in found:
            raise SettingError(f"{option} {name} is given twice: leave one")
        found[name] = value.strip()
    return found


def given(**options: Any) -> dict[str, Any]:
    """Those that were given: the others have their defaults where they are used."""
    return {name: value for name, value in options.items() if value is not None}


def split(names: str | None) -> list[str] | None:
    """Names with commas between them."""
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def number_or_name(text: str) -> float | str:
    """A number where it is one."""
    try:
        return float(text)
    except ValueError:
        return text


def normalisation(text: str) -> Any:
    """A way by its name, or a mean and an sd (JSON lists, or two numbers with a comma between)."""
    found = _json_or_text(f"[{text}]" if "," in text and not text.startswith("[") else text)
    return tuple(found) if isinstance(found, list) else text


def _typed(name: str, text: str, kind: Any) -> Any:
    """The text as a value of a setting's type."""
    if get_origin(kind) is Literal:
        return text  # the settings know their choices, and say so
    kinds = [each for each in get_args(kind) or (kind,) if each in (bool, int, float, type(None))]
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                continue
    words = {bool: "true or false", int: "a whole number", float: "a number", type(None): "none"}
    raise SettingError(f"{name}={text!r}: expected {' or '.join(words[each] for each in kinds)}")


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
