"""Bad beginnings and bad parts, and what users are to be told of them."""

import numpy as np
from bad_makers import (
    NETS,
    Bad,
    broken_pictures,
    cut,
    false_header,
    file,
    fresh,
    npz,
    other_weights,
    pickled,
    then,
    truncated_parquet,
    with_value,
    zip_bomb,
)
from prepared_store import arrays

MLP = "--network mlp --argument in_features=3 --argument num_outputs=2"

INIT: dict[str, Bad] = {
    "where a store stands": Bad(f"init store {MLP}", 1, ("store", "not empty", "another place")),
    "where a file stands": Bad(f"init part-0.npz {MLP}", 1, ("part-0.npz",)),
    "where nothing can be": Bad(f"init /dev/null/store {MLP}", 1, ("/dev/null/store",)),
    "at an unknown protocol": Bad(f"init nowhere://bucket/store {MLP}", 1, ("nowhere", "Protocol not known")),
    "without a network": Bad("init new", 2, ("--network",)),
    "an unknown network": Bad("init new --network lenet6", 1, ("lenet6", "lenet5", "module:function")),
    "a module not there": Bad("init new --network nomodule.here:make", 1, ("nomodule.here", "PYTHONPATH")),
    "a function not there": Bad("init new --network torch.nn:make", 1, ("torch.nn", "no 'make'")),
    "a function of Python's own": Bad("init new --network os:system", 1, ("os:system", "belongs to Python itself")),
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
