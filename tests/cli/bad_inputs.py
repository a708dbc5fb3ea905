"""What users get wrong, and what they are to be told: the table that test_cli_bad_inputs.py goes through."""

import importlib
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from prepared_store import arrays, write_npz

from postprior.store.sealed import seal

MOST_BYTES = 2_000_000
"""What a part may hold while the table is gone through."""

MLP = "--network mlp --argument in_features=3 --argument num_outputs=2"


@dataclass(frozen=True)
class Bad:
    """A command line, the status it ends in, and words that its message must hold."""

    line: str
    code: int
    words: tuple[str, ...]
    prepare: Callable[[Path], object] | None = None
    """Makes what the line needs, in the folder where it runs."""


def npz(**values: object) -> Callable[[Path], None]:
    """bad.npz with these arrays instead of good ones."""

    def prepare(folder: Path) -> None:
        x, y = arrays(9)
        np.savez(folder / "bad.npz", **{"x": x, "y": y, **values})  # pyright: ignore[reportArgumentType]

    return prepare


def file(name: str, text: str | bytes) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    return prepare


def cut(name: str, source: str) -> Callable[[Path], None]:
    """The first half of a file under another name."""
    return lambda folder: (folder / name).write_bytes(
        (folder / source).read_bytes()[: (folder / source).stat().st_size // 2]
    )


def with_value(row: int, value: float) -> np.ndarray:
    x, _ = arrays(9)
    x[row, 1] = value
    return x


def truncated_parquet(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": [1.0, 2.0], "label": [0, 1]}), folder / "whole.parquet")
    (folder / "bad.parquet").write_bytes((folder / "whole.parquet").read_bytes()[:-20])


def false_header(folder: Path) -> None:
    """A kilobyte that says it holds 64 GiB."""
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    header += b"{'descr': '<f8', 'fortran_order': False, 'shape': (8589934592, 1)}".ljust(117) + b"\n"
    with zipfile.ZipFile(folder / "bad.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header + bytes(100_000))
        archive.writestr("y.npy", header + bytes(100_000))


def zip_bomb(folder: Path) -> None:
    """Twice as much as a part may hold (MOST_BYTES), in a thousandth of it."""
    np.savez_compressed(folder / "bad.npz", x=np.zeros((MOST_BYTES // 6, 3), np.float32), y=np.zeros(MOST_BYTES // 6))


def broken_pictures(folder: Path) -> None:
    for name in ("cat", "dog"):
        (folder / "pictures" / name).mkdir(parents=True)
        (folder / "pictures" / name / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing more")


def pickled(name: str) -> Callable[[Path], None]:
    return file(name, pickle.dumps({"weight": [1.0]}))


def other_weights(folder: Path) -> None:
    weights = {"features.1.weight": torch.zeros(5, 5), "classifier.weight": torch.zeros(2, 5)}
    safetensors.torch.save_file(weights, folder / "weights.safetensors")


def head(folder: Path) -> Path:
    """The folder of the head's belief."""
    last = sorted((folder / "store/journal").glob("0*.json"))[-1]
    return folder / "store/beliefs" / json.loads(last.read_text())["aliases"]["head"]


def resealed(path: Path, **changes: object) -> None:
    """The file with other content, and a checksum that agrees with it: what an attacker would write."""
    path.write_bytes(seal({**json.loads(path.read_text()), **changes}))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def interrupted(folder: Path, evaluate: str | None = None) -> None:
    """An absorption of part-4.npz that was begun and not finished."""
    from postprior.errors import StoppedError
    from postprior.pipeline.store import Store

    try:
        Store.open(folder / "store").absorb(folder / "part-4.npz", evaluate=evaluate, stop=lambda: True)
    except StoppedError:
        return
    raise AssertionError("it was to be stopped")


def then(*steps: Callable[[Path], object]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        for step in steps:
            step(folder)

    return prepare


MODULES = ("nets", "broken_nets", "old_nets")
"""What the table writes and imports."""

NETS = """
class Odd: pass
def raises(): raise KeyError("no such width")
def nothing(): return None
def returns_text(): return "data"
number = 3
"""

INIT: dict[str, Bad] = {
    "where a store stands": Bad(f"init store {MLP}", 1, ("store", "not empty", "another place")),
    "where a file stands": Bad(f"init part-0.npz {MLP}", 1, ("part-0.npz",)),
    "where nothing can be": Bad(f"init /dev/null/store {MLP}", 1, ("/dev/null/store",)),
    "at an unknown protocol": Bad(f"init nowhere://bucket/store {MLP}", 1, ("nowhere", "Protocol not known")),
    "without a network": Bad("init new", 2, ("--network",)),
    "an unknown network": Bad("init new --network lenet6", 1, ("lenet6", "lenet5", "module:function")),
    "a module not there": Bad("init new --network nomodule.here:make", 1, ("nomodule.here", "PYTHONPATH")),
    "a function not there": Bad("init new --network json:make", 1, ("json", "no 'make'")),
    "no function": Bad(
        "init new --network nets:number", 1, ("nets:number", "int", "expected a function"), file("nets.py", NETS)
    ),
    "a network that raises": Bad(
        "init new --network nets:raises", 1, ("nets:raises", "KeyError", "mend"), file("nets.py", NETS)
    ),
    "a network that is none": Bad(
        "init new --network nets:nothing", 1, ("nets:nothing", "NoneType", "torch.nn.Module"), file("nets.py", NETS)
    ),
    "a module that cannot be imported": Bad(
        "init new --network broken_nets:make",
        1,
        ("broken_nets", "ZeroDivisionError"),
        file("broken_nets.py", "1 / 0\n"),
    ),
    "arguments missing": Bad("init new --network mlp", 2, ("mlp", "in_features", "it takes")),
    "an unknown argument": Bad(f"init new {MLP} --argument depth=3", 2, ("depth", "it takes")),
    "an argument without a value": Bad(f"init new {MLP} --argument hidden", 2, ("hidden", "NAME=VALUE")),
    "an argument twice": Bad(f"init new {MLP} --argument in_features=4", 2, ("in_features", "twice")),
    "text for a number of features": Bad(
        "init new --network mlp --argument in_features=four --argument num_outputs=2", 2, ("four", "it takes")
    ),
    "a negative number of features": Bad(
        "init new --network mlp --argument in_features=-4 --argument num_outputs=2", 1, ("mlp", "mend")
    ),
    "an unknown family": Bad(f"init new {MLP} --family gaussian", 2, ("gaussian", "factorized")),
    "an unknown likelihood": Bad(f"init new {MLP} --likelihood normal", 2, ("normal", "gaussian")),
    "a negative prior": Bad(f"init new {MLP} --prior-sd -1", 2, ("prior_sd", "-1")),
    "a prior in words": Bad(f"init new {MLP} --prior-sd wide", 2, ("prior_sd", "wide", "fan_in")),
    "a prior of NaN": Bad(f"init new {MLP} --prior-sd nan", 2, ("prior_sd", "nan")),
    "a pattern that fits nothing": Bad(f"init new {MLP} --point nothing.here", 2, ("nothing.here",)),
    "no epochs": Bad(f"init new {MLP} --epochs 0", 2, ("epochs=0", "whole number from 1")),
    "epochs in words": Bad(f"init new {MLP} --epochs many", 2, ("--epochs", "integer")),
    "epochs in words, by --set": Bad(f"init new {MLP} --set epochs=many", 2, ("epochs='many'", "whole number")),
    "half an epoch": Bad(f"init new {MLP} --set epochs=1.5", 2, ("epochs='1.5'", "whole number")),
    "a setting without a value": Bad(f"init new {MLP} --set epochs", 2, ("epochs", "NAME=VALUE")),
    "a setting twice": Bad(f"init new {MLP} --set epochs=3 --epochs 4", 2, ("epochs", "twice")),
    "an unknown setting": Bad(f"init new {MLP} --set epoch=3", 2, ("epoch is not a setting", "epochs")),
    "an unknown choice": Bad(f"init new {MLP} --set schedule=cosine", 2, ("schedule='cosine'", "linear")),
    "a function as a setting": Bad(f"init new {MLP} --set augment=flip", 2, ("augment", "function")),
    "a temperature of zero": Bad(f"init new {MLP} --temperature 0", 2, ("temperature=0", "above 0")),
    "a temperature of NaN": Bad(f"init new {MLP} --temperature nan", 2, ("temperature=nan", "finite")),
    "an unknown device": Bad(f"init new {MLP} --device gpu", 2, ("gpu", "cannot be used")),
    "an unknown normalisation": Bad(f"init new {MLP} --normalise minmax --like part-0.npz", 2, ("minmax", "standard")),
    "an unknown normalisation, without data": Bad(f"init new {MLP} --normalise minmax", 2, ("minmax", "standard")),
    "data to be like that are not there": Bad(f"init new {MLP} --like gone.npz", 1, ("gone.npz", "check the path")),
    "a class twice": Bad(f"init new {MLP} --classes yes,yes", 2, ("classes", "each once")),
    "pretrained weights not there": Bad(
        f"init new {MLP} --pretrained gone.safetensors --pretrained-sd 0.1", 1, ("gone.safetensors", "check the path")
    ),
    "a pickle called safetensors": Bad(
        f"init new {MLP} --pretrained w.safetensors --pretrained-sd 0.1",
        1,
        ("w.safetensors", "no safetensors"),
        pickled("w.safetensors"),
    ),
    "weights of another network": Bad(
        f"init new {MLP} --pretrained weights.safetensors --pretrained-sd 0.1 --carry features.1.weight",
        1,
        ("features.1.weight", "(5, 5)", "another network"),
        other_weights,
    ),
    "pretrained weights without a width": Bad(
        f"init new {MLP} --pretrained weights.safetensors", 2, ("pretrained_sd", "old_data"), other_weights
    ),
}

PART: dict[str, Bad] = {
    "no such file": Bad("absorb store gone.npz", 1, ("gone.npz", "check the path")),
    "no such format": Bad(
        "absorb store bad.txt", 1, ("bad.txt", "no known format", ".parquet"), file("bad.txt", "1 2 3")
    ),
    "an npz that is none": Bad("absorb store bad.npz", 1, ("bad.npz",), file("bad.npz", "no zip at all")),
    "a pickle called npz": Bad("absorb store bad.npz", 1, ("bad.npz",), pickled("bad.npz")),
    "half an npz": Bad("absorb store bad.npz", 1, ("bad.npz",), cut("bad.npz", "part-4.npz")),
    "an npz of objects": Bad("absorb store bad.npz", 1, ("bad.npz",), npz(x=np.array([{"a": 1}] * 40, object))),
    "a header that lies": Bad("absorb store bad.npz", 1, ("bad.npz", "by its header"), false_header),
    "a zip bomb": Bad("absorb store bad.npz", 1, ("bad.npz", "POSTPRIOR_MAX_BYTES"), zip_bomb),
    "an npz without x": Bad(
        "absorb store bad.npz", 1, ("bad.npz", "inputs"), lambda folder: np.savez(folder / "bad.npz", y=np.arange(4))
    ),
    "an npz without targets": Bad(
        "absorb store bad.npz", 1, ("bad.npz", "target"), lambda folder: np.savez(folder / "bad.npz", x=arrays(9)[0])
    ),
    "more targets than inputs": Bad(
        "absorb store bad.npz", 1, ("bad.npz", "as many targets"), npz(y=np.arange(41) % 2)
    ),
    "an empty part": Bad(
        "absorb store bad.npz",
        1,
        ("bad.npz", "no example"),
        npz(x=np.zeros((0, 3), np.float32), y=np.zeros(0, np.int64)),
    ),
    "a NaN": Bad("absorb store bad.npz", 1, ("example 7", "nan", "mend or drop"), npz(x=with_value(7, float("nan")))),
    "an infinity": Bad("absorb store bad.npz", 1, ("example 0", "inf"), npz(x=with_value(0, float("inf")))),
    "a label out of range": Bad(
        "absorb store bad.npz", 1, ("example 3", "2"), npz(y=np.where(np.arange(40) == 3, 2, 0))
    ),
    "a negative label": Bad("absorb store bad.npz", 1, ("example 3", "-1"), npz(y=np.where(np.arange(40) == 3, -1, 0))),
    "labels between classes": Bad("absorb store bad.npz", 1, ("labels", "whole numbers"), npz(y=np.full(40, 0.5))),
    "names where numbers were": Bad("absorb store rows-1.csv", 1, ("rows-1.csv", "expected a number")),
    "another shape": Bad("absorb store bad.npz", 1, ("bad.npz", "(4,)", "(3,)"), npz(x=np.zeros((40, 4), np.float32))),
    "pixels where numbers were": Bad(
        "absorb store bad.npz", 1, ("bad.npz", "uint8", "convert"), npz(x=np.zeros((40, 3), np.uint8))
    ),
    "a first part of another shape": Bad(
        "absorb fresh bad.npz",
        1,
        ("shape (40, 4)", "made for"),
        then(npz(x=np.ones((40, 4), np.float32)), lambda folder: fresh(folder)),
    ),
    "a truncated parquet": Bad("absorb store bad.parquet", 1, ("bad.parquet",), truncated_parquet),
    "a parquet that is none": Bad("absorb store bad.parquet", 1, ("bad.parquet",), file("bad.parquet", "PAR1 nothing")),
    "a ragged csv": Bad("absorb named bad.csv", 1, ("bad.csv",), file("bad.csv", "a,b,c,label\n1,2,3,yes\n1,2,no\n")),
    "words in a column of numbers": Bad(
        "absorb named bad.csv", 1, ("bad.csv", "b", "high"), file("bad.csv", "a,b,c,label\n1,2,3,yes\n1,high,2,no\n")
    ),
    "a column missing": Bad(
        "absorb named bad.csv", 1, ("bad.csv", "add 'c'"), file("bad.csv", "a,b,label\n1,2,yes\n1,3,no\n")
    ),
    "a csv without targets": Bad("absorb named bad.csv", 1, ("bad.csv", "target"), file("bad.csv", "a,b,c\n1,2,3\n")),
    "a csv without rows": Bad("absorb named bad.csv", 1, ("bad.csv", "no example"), file("bad.csv", "a,b,c,label\n")),
    "an empty csv": Bad("absorb named bad.csv", 1, ("bad.csv",), file("bad.csv", "")),
    "an unknown class": Bad(
        "absorb named bad.csv",
        1,
        ("bad.csv", "example 1", "perhaps"),
        file("bad.csv", "a,b,c,label\n1,2,3,yes\n1,3,2,perhaps\n"),
    ),
    "an empty folder": Bad(
        "absorb store pictures", 1, ("pictures", "subfolder"), lambda folder: (folder / "pictures").mkdir()
    ),
    "broken pictures": Bad("absorb store pictures", 1, ("1.png", "cannot be read as a picture"), broken_pictures),
    "text among pictures": Bad(
        "absorb store pictures", 1, ("notes.txt", "no picture"), file("pictures/cat/notes.txt", "hi")
    ),
    "a function not there": Bad("absorb store json:gone", 1, ("json:gone", "expected a function")),
    "a function that raises": Bad(
        "absorb store nets:raises", 1, ("nets:raises", "KeyError", "mend"), file("nets.py", NETS)
    ),
    "a function that returns nonsense": Bad(
        "absorb store nets:returns_text", 1, ("nets:returns_text",), file("nets.py", NETS)
    ),
}


def fresh(folder: Path) -> None:
    """A store that has seen no data."""
    from postprior.pipeline.store import Store

    Store.create(folder / "fresh", "mlp", arguments={"in_features": 3, "num_outputs": 2, "hidden": [8]}, epochs=1)


def point(folder: Path) -> None:
    """A store whose beliefs are single values."""
    from postprior.pipeline.store import Store

    plan = {"arguments": {"in_features": 3, "num_outputs": 2, "hidden": [4]}, "family": "point", "epochs": 1}
    Store.create(folder / "point", "mlp", **plan).absorb(folder / "part-0.npz")


ABSORB: dict[str, Bad] = {
    "a part again": Bad("absorb store part-1.npz", 4, ("part-1", "already", "--allow-repeat")),
    "its examples under another name": Bad(
        "absorb store part-1.npz --part other", 4, ("exactly the examples", "part-1")
    ),
    "its name with other examples": Bad("absorb store part-4.npz --part part-1", 4, ("used name", "--part")),
    "a name of no letters": Bad("absorb store part-4.npz --part ''", 2, ("part", "name")),
    "a name with a line in it": Bad("absorb store part-4.npz --part 'a\nb'", 2, ("part", "printable")),
    "a gate that is none": Bad(
        "absorb store part-4.npz --evaluate part-5.npz --gate good", 2, ("'good'", "nll<=champion")
    ),
    "a gate of a missing number": Bad(
        "absorb store part-4.npz --evaluate part-5.npz --gate nll<=", 2, ("nll<=", "comparison")
    ),
    "a gate without data": Bad("absorb store part-4.npz --gate nll<=1", 2, ("--evaluate",)),
    "an empty name for a branch": Bad("absorb store part-4.npz --branch ''", 1, ("alias", "is no name")),
    "held-out data not there": Bad("absorb store part-4.npz --evaluate gone.npz", 1, ("gone.npz", "check the path")),
    "held-out data of another shape": Bad(
        "absorb store part-4.npz --evaluate bad.npz", 1, ("bad.npz", "(4,)"), npz(x=np.zeros((40, 4), np.float32))
    ),
    "onto nothing": Bad("absorb store part-4.npz --onto paris", 1, ("paris", "aliases are")),
    "a branch that leads out": Bad("absorb store part-4.npz --branch ../paris", 1, ("../paris", "no name")),
    "a branch called champion": Bad("absorb store part-4.npz --branch champion", 1, ("champion", "another name")),
    "a branch called candidate": Bad("absorb store part-4.npz --branch candidate", 1, ("candidate", "another name")),
    "negative epochs": Bad("absorb store part-4.npz --epochs -3", 2, ("epochs=-3", "whole number from 1")),
    "a rate in words": Bad("absorb store part-4.npz --set learning_rate=slow", 2, ("learning_rate='slow'", "a number")),
    "an unknown setting": Bad("absorb store part-4.npz --set rate=1", 2, ("rate is not a setting", "learning_rate")),
    "an unknown option": Bad("absorb store part-4.npz --epoch 3", 2, ("--epoch",)),
    "seconds below zero": Bad("absorb store part-4.npz --every -1", 2, ("--every",)),
    "an unknown device": Bad("absorb store part-4.npz --device gpu", 2, ("gpu", "cannot be used")),
    "no data named": Bad("absorb store", 2, ("DATA",)),
    "no store there": Bad("absorb gone part-4.npz", 1, ("gone", "holds no store", "postprior init")),
    "a store that is a file": Bad("absorb part-0.npz part-4.npz", 1, ("part-0.npz", "holds no store")),
    "a folder that is no store": Bad("absorb . part-4.npz", 1, ("holds no store",)),
    "while another part is unfinished": Bad("absorb store part-5.npz", 6, ("part-4", "postprior resume"), interrupted),
    "a network that is gone": Bad(
        "absorb vanished part-0.npz", 1, ("old_nets:make", "PYTHONPATH"), lambda folder: vanished(folder)
    ),
}


def vanished(folder: Path) -> None:
    """A store whose network's module is no longer there."""
    from postprior.pipeline.store import Store

    (folder / "old_nets.py").write_text("from torch import nn\ndef make(): return nn.Linear(3, 2)\n")
    Store.create(folder / "vanished", "old_nets:make")
    (folder / "old_nets.py").unlink()
    del sys.modules["old_nets"]
    importlib.invalidate_caches()


RESUME: dict[str, Bad] = {
    "nothing": Bad("resume store", 1, ("nothing to resume",)),
    "nothing, to discard": Bad("resume store --discard", 1, ("nothing to discard",)),
    "a part whose data are gone": Bad(
        "resume store",
        1,
        ("part-4.npz", "check the path"),
        then(interrupted, lambda folder: (folder / "part-4.npz").unlink()),
    ),
    "a part whose held-out data are gone": Bad(
        "resume store",
        1,
        ("part-5.npz", "check the path"),
        then(lambda folder: interrupted(folder, "part-5.npz"), lambda folder: (folder / "part-5.npz").unlink()),
    ),
    "a part whose data are others": Bad(
        "resume store",
        1,
        ("part-4.npz", "other examples", "--discard"),
        then(interrupted, lambda folder: write_npz(folder / "part-4.npz", 99)),
    ),
    "from a damaged intent": Bad(
        "resume store",
        1,
        ("intent.json", "checksum"),
        then(interrupted, lambda folder: flipped(folder / "store/draft/intent.json")),
    ),
    "from a damaged checkpoint": Bad(
        "resume store",
        1,
        ("checkpoint.safetensors", "checksum"),
        then(interrupted, lambda folder: flipped(folder / "store/draft/checkpoint.safetensors")),
    ),
}

DAMAGE: dict[str, Bad] = {
    "a bit of a manifest": Bad(
        "absorb store part-4.npz",
        1,
        ("manifest.json", "damaged", "copy"),
        lambda folder: flipped(head(folder) / "manifest.json"),
    ),
    "a bit of the tensors": Bad(
        "evaluate store part-4.npz --at head",
        1,
        ("belief.safetensors", "checksum", "copy"),
        lambda folder: flipped(head(folder) / "belief.safetensors"),
    ),
    "a bit of the tensors, met by absorb": Bad(
        "absorb store part-4.npz",
        1,
        ("belief.safetensors", "checksum"),
        lambda folder: flipped(head(folder) / "belief.safetensors"),
    ),
    "a bit of the journal": Bad(
        "log store",
        1,
        ("journal/00000003.json", "damaged"),
        lambda folder: flipped(folder / "store/journal/00000003.json"),
    ),
    "an entry missing": Bad(
        "log store",
        1,
        ("journal/00000002.json", "missing"),
        lambda folder: (folder / "store/journal/00000002.json").unlink(),
    ),
    "a bit of the store's own file": Bad(
        "show store", 1, ("store.json", "damaged"), lambda folder: flipped(folder / "store/store.json")
    ),
    "a format of the future": Bad(
        "show store",
        1,
        ("store.json", "format 99", "newer"),
        lambda folder: resealed(folder / "store/store.json", format=99),
    ),
    "a manifest of the future": Bad(
        "show store",
        1,
        ("manifest.json", "format 99", "newer"),
        lambda folder: resealed(head(folder) / "manifest.json", format=99),
    ),
    "a path that leads out": Bad(
        "show store",
        1,
        ("no id of a belief",),
        lambda folder: resealed(head(folder) / "manifest.json", parents=["../../../etc"]),
    ),
    "an alias that leads out": Bad(
        "show store",
        1,
        ("no id of a belief",),
        lambda folder: resealed(folder / "store/journal/00000005.json", aliases={"head": "../../etc"}),
    ),
    "a recipe of another version": Bad(
        "show store",
        1,
        ("recipe", "another version"),
        lambda folder: resealed(folder / "store/store.json", recipe={"network": "mlp"}),
    ),
    "a pickle as the tensors": Bad(
        "evaluate store part-4.npz --at head",
        1,
        ("belief.safetensors", "checksum"),
        lambda folder: (head(folder) / "belief.safetensors").write_bytes(pickle.dumps([1])),
    ),
    "found by verify": Bad(
        "verify store",
        7,
        ("belief.safetensors", "checksum", "1 problem"),
        lambda folder: flipped(head(folder) / "belief.safetensors"),
    ),
    "a stranger found by verify": Bad(
        "verify store", 7, ("notes.txt", "not a file of the store"), file("store/beliefs/notes.txt", "hi")
    ),
}

ASK: dict[str, Bad] = {
    "before the first": Bad("show store head~99", 1, ("head~99", "before the first")),
    "an unknown belief": Bad("show store paris", 1, ("paris", "aliases are")),
    "too short a beginning": Bad("show store 0f", 1, ("0f", "4 digits")),
    "a reference that is none": Bad("evaluate store part-4.npz --at ../head", 1, ("../head", "expected an alias")),
    "with an unknown belief": Bad("diff store head paris", 1, ("paris", "aliases are")),
    "the log of nothing": Bad("log store --at paris", 1, ("paris",)),
    "no entries": Bad("log store -n 0", 2, ("-n",)),
    "without targets": Bad(
        "evaluate store bad.npz", 1, ("bad.npz", "target"), lambda folder: np.savez(folder / "bad.npz", x=arrays(9)[0])
    ),
    "of another shape": Bad(
        "predict store bad.npz -o p.csv", 1, ("(4,)", "(3,)"), npz(x=np.zeros((40, 4), np.float32))
    ),
    "a NaN": Bad("predict store bad.npz -o p.csv", 1, ("example 7", "nan"), npz(x=with_value(7, float("nan")))),
    "into an unknown format": Bad("predict store part-4.npz -o p.xlsx", 2, ("p.xlsx", ".parquet")),
    "into a missing folder": Bad("predict store part-4.npz -o gone/p.csv", 1, ("gone", "make it first")),
    "into a folder": Bad(
        "predict store part-4.npz -o rows.csv",
        1,
        ("rows.csv", "is a folder"),
        lambda folder: (folder / "rows.csv").mkdir(),
    ),
    "by no samples": Bad("predict store part-4.npz --samples 0", 2, ("--samples",)),
    "no store there": Bad("verify gone", 1, ("gone", "holds no store")),
    "an unknown verb": Bad("absorbe store part-4.npz", 2, ("absorbe",)),
}

MOVE: dict[str, Bad] = {
    "promote nothing": Bad("promote store paris", 1, ("paris", "aliases are")),
    "promote where there is no candidate": Bad("promote fresh", 1, ("candidate", "aliases are"), fresh),
    "roll back before the first": Bad("rollback fresh", 1, ("before the first",), fresh),
    "roll back to an empty name": Bad("rollback store --to ''", 1, ("names no belief",)),
    "roll back aside": Bad("rollback store --to berlin", 1, ("berlin", "no ancestor of head")),
    "roll back while a part is unfinished": Bad("rollback store", 6, ("part-4", "resume"), interrupted),
    "an alias with a meaning": Bad("alias store head berlin", 1, ("head", "another name")),
    "an alias that leads out": Bad("alias store ../evil head", 1, ("../evil", "no name")),
    "an alias like an id": Bad(f"alias store {'a' * 64} head", 1, ("no name",)),
    "an alias to nothing": Bad("alias store mine paris", 1, ("paris", "aliases are")),
    "an alias without a belief": Bad("alias store mine", 2, ("--remove",)),
    "remove an alias not there": Bad("alias store mine --remove", 1, ("mine", "no alias")),
    "merge one": Bad("merge store berlin --base head", 1, ("two beliefs or more",)),
    "merge the same twice": Bad("merge store berlin berlin --base head", 1, ("each once",)),
    "merge without a base": Bad("merge store berlin lisbon", 2, ("--base",)),
    "merge from another base": Bad(
        "merge store berlin lisbon --base lisbon", 1, ("did not grow from lisbon", "--base")
    ),
    "merge with evidence in common": Bad("merge store berlin lisbon --base head~1", 1, ("part-1", "twice")),
    "merge nothing": Bad("merge store berlin paris --base head", 1, ("paris", "aliases are")),
    "merge into a name that leads out": Bad(
        "merge store berlin lisbon --base head --into ../x", 1, ("../x", "no name")
    ),
    "merge into champion": Bad(
        "merge store berlin lisbon --base head --into champion", 1, ("champion", "another name")
    ),
    "forget a part not known": Bad("forget store --part part-9", 1, ("part-9", "part-0")),
    "forget a part of a branch": Bad("forget store --part part-2", 1, ("part-2", "part-1")),
    "forget from single values": Bad("forget point --part part-0", 1, ("part-0", "rollback"), point),
    "forget nothing named": Bad("forget store", 2, ("--part",)),
}

LEAVE: dict[str, Bad] = {
    "an unknown format": Bad("export store -o model.h5", 2, ("model.h5", ".onnx")),
    "a missing folder": Bad("export store -o gone/model.onnx", 1, ("gone", "make it first")),
    "an unknown belief": Bad("export store -o model.onnx --at paris", 1, ("paris",)),
    "before any data": Bad("export fresh -o model.onnx", 1, ("no data", "--like"), fresh),
    "like data not there": Bad("export store -o model.onnx --like gone.npz", 1, ("gone.npz",)),
    "without a file named": Bad("export store", 2, ("--output",)),
    "a report in a missing folder": Bad("report store -o gone/report.html", 1, ("gone", "make it first")),
    "a report on data not there": Bad("report store -o report.html --data gone.npz", 1, ("gone.npz",)),
    "a report of nothing": Bad("report store -o report.html --at paris", 1, ("paris",)),
}

TABLES = {
    "init": INIT,
    "part": PART,
    "absorb": ABSORB,
    "resume": RESUME,
    "damage": DAMAGE,
    "ask": ASK,
    "move": MOVE,
    "leave": LEAVE,
}
CASES = {f"{verb}: {name}": bad for verb, table in TABLES.items() for name, bad in table.items()}
