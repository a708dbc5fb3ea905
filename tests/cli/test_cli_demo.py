"""`postprior demo` on few steps: the whole path, and that the table says what the runs said."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from postprior.cli.app import app
from postprior.paper import digits, records


def test_the_demo_writes_table_picture_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, method in digits.METHODS.items():
        monkeypatch.setitem(digits.METHODS, name, replace(method, settings=replace(method.settings, steps=2)))
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    about = json.loads((tmp_path / "demo" / "digits.json").read_text())
    assert len(about["runs"]) == 2 * len(digits.METHODS)
    assert about["methods"]["FT"]["settings"]["steps"] == 2
    assert (about["command"], about["seeds"], about["shuffled"]) == ("postprior demo --seeds 1", [0], False)
    assert about["commit"] == records.commit()
    assert about["device"].startswith("cpu")
    assert [(end["method"], end["num_parts"]) for end in about["endings"]] == [
        (name, parts) for parts in (1, 10) for name in digits.METHODS
    ]
    assert (tmp_path / "demo" / "digits.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "demo" / "digits.md").read_text().splitlines()
    assert len(lines) == 2 + 2 * len(digits.METHODS)
    last = next(r for r in about["runs"] if r["method"] == "MNF" and r["num_parts"] == 10)
    assert f"| MNF | 10 | {100 * last['accuracy'][-1]:.1f} | {last['nll'][-1]:.3f} |" in lines[-1]
    assert len(last["nll"]) == 10
    assert "MNF in 10 parts, seed 0" in result.stderr


def test_intervals_are_students() -> None:
    mean, half = digits.mean_and_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half == pytest.approx(2.776445 * 2.5**0.5 / 5**0.5, rel=1e-6)
    assert digits.mean_and_interval([1.5]) == (1.5, None)


def test_endings_are_of_the_last_part_over_all_seeds() -> None:
    runs = [
        digits.Run("FT", 2, seed, (0.1, accuracy), (9.0, 0.2), 0.05, seconds=2.0 * seed)
        for seed, accuracy in ((0, 0.9), (1, 0.8))
    ]
    (end,) = digits.endings(runs)
    half = 12.7062047 * 0.05 * 2**0.5 / 2**0.5
    assert (end.method, end.num_parts, end.num_seeds) == ("FT", 2, 2)
    assert end.accuracy == pytest.approx((0.85, half), rel=1e-6)
    assert end.nll == pytest.approx((0.2, 0.0))
    assert digits.row(end) == ("FT", "2", f"85.0 ± {100 * half:.1f}", "0.200 ± 0.000", "0.050 ± 0.000", "1.0")
    (alone,) = digits.endings(runs[:1])
    assert digits.row(alone) == ("FT", "2", "90.0", "0.200", "0.050", "0.0")


def test_recorded_parts_and_shuffled_ones_share_the_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    class Spy(digits.Learner):
        def absorb(self, data, **settings):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN202
            seen.append(data[0])
            return super().absorb(data, steps=1)

    monkeypatch.setattr(digits, "Learner", Spy)
    digits.run("FT", 10, 0)
    digits.run("FT", 10, 0, shuffled=True)
    recorded, shuffled = torch.cat(seen[:10]).flatten(1), torch.cat(seen[10:]).flatten(1)
    assert len(recorded) == 1797 - digits.NUM_TEST
    assert not torch.equal(recorded, shuffled)
    assert torch.equal(recorded.unique(dim=0), shuffled.unique(dim=0))


def test_where_images_are_set_aside_the_test_images_are_never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[torch.Tensor] = []
    asked: list[torch.Tensor] = []

    class Spy(digits.Learner):
        def absorb(self, data, **settings):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN202
            learned.append(data[0])
            return super().absorb(data, steps=1)

        def predict(self, inputs, **options):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN202
            asked.append(inputs)
            return super().predict(inputs, num_samples=1)

    monkeypatch.setattr(digits, "Learner", Spy)
    digits.run("FT", 1, 0)
    digits.run("FT", 2, 0, set_aside=297)
    train, test, aside = learned[0], asked[0], asked[1]
    assert torch.equal(asked[1], asked[2])
    assert (len(train), len(test), len(aside)) == (1297, 500, 297)
    # Every image occurs once, so that rows tell images apart.
    again = torch.cat([*learned[1:], aside]).flatten(1)
    assert len(torch.cat([train, test]).flatten(1).unique(dim=0)) == 1797
    assert torch.equal(again.unique(dim=0), train.flatten(1).unique(dim=0))
