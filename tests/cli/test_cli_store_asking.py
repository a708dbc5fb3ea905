"""evaluate, predict, log, show, diff and verify; promote, rollback, alias, merge, forget; export and report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepared_store import Run, content

from postprior.pipeline.store import Store


def test_evaluate(place: Path, run: Run) -> None:
    store = Store.open("store")
    expected = store.evaluate("part-4.npz", at="berlin", num_samples=7, seed=2)
    ran = run("evaluate", "store", "part-4.npz", "--at", "berlin", "--samples", "7", "--seed", "2", "--json")
    assert json.loads(ran.out) == {"belief": store.aliases["berlin"], "measures": expected}
    words = run("evaluate", "store", "part-4.npz", "--at", store.aliases["head"][:8]).out.splitlines()
    assert words[0].split() == ["examples", "40"]
    assert f"{store.evaluate('part-4.npz', at='head')['nll']:.4f}" in words[1]


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_predictions_into_a_file(place: Path, run: Run, ending: str) -> None:
    ran = run("predict", "named", "rows-1.csv", "-o", f"p.{ending}", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {"belief": Store.open("named").aliases["champion"], "rows": 40, "file": f"p.{ending}"}
    columns = ["predicted", "probability", "mean_no", "mean_yes", "entropy", "mutual_information"]
    if ending == "csv":
        assert (place / "p.csv").read_text().splitlines()[0] == ",".join(columns)
    elif ending == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        assert parquet.read_table("p.parquet").column_names == columns
    else:
        assert np.load("p.npz")["mean"].shape == (40, 2)


def test_predictions_to_look_at(place: Path, run: Run) -> None:
    lines = run("predict", "store", "part-4.npz").out.splitlines()
    assert lines[0].split() == ["row", "predicted", "probability", "entropy", "mutual_information"]
    assert lines[-1].startswith("... and 20 more rows: ")
    said = json.loads(run("predict", "store", "part-4.npz", "--json").out)
    expected = Store.open("store").predict("part-4.npz").columns()
    assert said["rows"] == 40
    assert said["predictions"] == {name: column.tolist() for name, column in expected.items()}


def test_log(place: Path, run: Run) -> None:
    said = json.loads(run("log", "store", "--json").out)
    assert [entry["event"] for entry in said] == ["absorb"] * 4 + ["init"]
    assert said[0].keys() == {"sequence", "time", "event", "belief", "aliases", "about"}
    text = run("log", "store").out
    assert [f"part-{number}" in text for number in range(5)] == [True, True, True, True, False]
    own = run("log", "store", "--at", "head", "-n", "2").out
    assert "Part part-1 learned" in own
    assert "Part part-0 learned" in own
    assert "Part part-2" not in own
    assert "from part part-0" in own, "what moved is told though the entry before is not asked for"
    assert len(json.loads(run("log", "store", "--at", "head", "-n", "2", "--json").out)) == 2


def test_show(place: Path, run: Run) -> None:
    store = Store.open("store")
    said = json.loads(run("show", "store", "berlin", "--json").out)
    assert said == {**store.show("berlin"), "aliases": ["berlin"], "knows": store.parts("berlin")}
    text = run("show", "store").out
    assert store.aliases["head"] in text
    assert "knows     2 parts: part-0, part-1" in text
    assert "knows     0 parts" in run("show", "store", "head~2").out


def test_diff(place: Path, run: Run) -> None:
    expected = Store.open("store").diff("head", "head~1")
    said = json.loads(run("diff", "store", "head", "head~1", "--json").out)
    assert said == {"one": "head", "other": "head~1", "layers": expected, "total": sum(expected.values())}
    rows = [line.split() for line in run("diff", "store", "head", "head~1").out.splitlines()]
    assert rows[0] == ["layer", "nats", "share"]
    assert rows[-1] == ["all", f"{sum(expected.values()):,.2f}"]
    assert {row[0] for row in rows[1:-1]} == set(expected)


def test_verify(place: Path, run: Run) -> None:
    assert run("verify", "store").out == "5 beliefs read: no problems.\n"
    assert json.loads(run("verify", "store", "--json").out) == {"beliefs": 5, "problems": []}
    card = next((place / "store/beliefs").glob("*/README.md"))
    card.write_text("other words")
    ran = run("verify", "store", "--json")
    assert ran.code == 7
    assert [problem["path"] for problem in json.loads(ran.out)["problems"]] == [str(card)]


def moved(run: Run, *line: str) -> dict[str, Any]:
    """The aliases after a move that went well."""
    ran = run(*line, "--json")
    assert ran.code == 0, ran.err
    entry = json.loads(ran.out)
    assert entry["event"] == line[0]
    assert entry["aliases"] == Store.open("store").aliases
    return entry["aliases"]


def test_moves(place: Path, run: Run) -> None:
    before = Store.open("store").aliases
    assert moved(run, "promote", "store", "lisbon")["champion"] == before["lisbon"]
    back = Store.open("store").archive.resolve("head~2")
    assert moved(run, "rollback", "store", "--to", "head~2")["head"] == back
    assert moved(run, "alias", "store", "mine", "berlin")["mine"] == before["berlin"]
    assert "mine" not in moved(run, "alias", "store", "mine", "--remove")
    words = run("promote", "store").out.splitlines()
    assert words[0].endswith("the aliases are now")
    assert ["champion", before["candidate"][:8]] in [line.split() for line in words]


def test_what_was_rolled_back_may_be_absorbed_anew(place: Path, run: Run) -> None:
    head = Store.open("store").aliases["head"]
    assert run("rollback", "store").code == 0
    ran = run("absorb", "store", "part-1.npz", "--json")
    assert json.loads(ran.out)["belief"] == head


def test_merge_then_forget(place: Path, run: Run) -> None:
    before = Store.open("store").aliases
    after = moved(run, "merge", "store", "berlin", "lisbon", "--base", "head", "--into", "both")
    assert (after["both"], after["head"]) == (after["candidate"], before["head"])
    assert [part["id"] for part in Store.open("store").parts("both")] == ["part-0", "part-1", "part-2", "part-3"]
    assert moved(run, "merge", "store", "berlin", "lisbon", "--base", "head")["head"] == after["both"]
    ran = run("forget", "store", "--part", "part-2")
    if ran.code == 0:
        assert "approximate" in ran.err
        assert [part["id"] for part in Store.open("store").parts()] == ["part-0", "part-1", "part-3"]
    else:
        assert "part-2 cannot be divided out" in ran.err


def test_forget_is_approximate_and_says_so(place: Path, run: Run) -> None:
    ran = run("forget", "store", "--part", "part-1", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["about"] == {"part": "part-1"}
    manifest = json.loads(run("show", "store", "--json").out)
    assert manifest["forgotten"]["approximate"] is True
    assert [part["id"] for part in manifest["knows"]] == ["part-0"]


def test_sweep(place: Path, run: Run) -> None:
    store = Store.open("store")
    stray = store.archive.put(store.belief(), {**store.show(), "kind": "stray"}, "# A card\n")
    del store  # while it lives it keeps sweeps away
    assert run("sweep", "store").out == "1 beliefs that nobody acknowledged were removed.\n"
    assert not (place / "store/beliefs" / stray).exists()
    assert json.loads(run("sweep", "store", "--json").out) == {"removed": 0}


@pytest.mark.parametrize(("ending", "mean"), [("onnx", False), ("pt2", True)])
@pytest.mark.filterwarnings("default")
def test_export(place: Path, run: Run, ending: str, mean: bool) -> None:
    if ending == "onnx":
        pytest.importorskip("onnxscript")
    ran = run("export", "store", "-o", f"model.{ending}", "--samples", "4", *(["--mean"] if mean else []), "--json")
    assert ran.code == 0, ran.err
    path = place / f"model.{ending}"
    belief = Store.open("store").aliases["champion"]
    assert json.loads(ran.out) == {"belief": belief, "file": path.name, "bytes": path.stat().st_size}
    if ending == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(path)
        found = session.run(None, {"input": np.load("part-4.npz")["x"]})
        assert found[0].shape == (40, 2)


def test_report(place: Path, run: Run) -> None:
    pytest.importorskip("jinja2")
    store = content(place / "store")
    ran = run("report", "store", "-o", "report.html", "--data", "part-4.npz", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {"belief": Store.open("store").aliases["head"], "file": "report.html"}
    assert "part-1" in (place / "report.html").read_text()
    assert content(place / "store") == store
