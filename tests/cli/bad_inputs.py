"""What users get wrong, and what they are to be told: the table that test_cli_bad_inputs.py goes through."""

import pickle

import numpy as np
from bad_data import INIT, PART
from bad_makers import (
    Bad,
    file,
    flipped,
    fresh,
    head,
    interrupted,
    npz,
    point,
    resealed,
    then,
    vanished,
    with_value,
)
from prepared_store import arrays, write_npz

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
