"""Tables and figures against numbers computed by hand."""

import csv
import io
import math
import sys
from pathlib import Path

import pytest

from paper.tiny_experiments import experiment, write_result
from postprior.errors import DataError, MissingExtraError
from postprior.paper import figure, records, table
from postprior.paper.configs import CONFIGURATIONS
from postprior.paper.summary import interval, sections, student_t

FFG_10, FFG_1 = experiment("ffg", num_parts=10), experiment("ffg", num_parts=1)
FT_10 = experiment("ft", "point", num_parts=10)

# Accuracies 0.90, 0.92, 0.94: mean 0.92, standard deviation 0.02, and with t = 4.302653 at two degrees of freedom the
# interval reaches 4.302653 * 0.02 / sqrt(3) = 0.049683 to either side.
HALF_WIDTH = 0.0496828


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, accuracy in enumerate((0.90, 0.92, 0.94)):
        write_result(tmp_path, FFG_10, seed, accuracy)
    write_result(tmp_path, FFG_1, 0, 0.95, nll=0.25)
    for seed, accuracy in ((0, 0.80), (2, 0.90)):
        write_result(tmp_path, FT_10, seed, accuracy, nll=2.0)
    return tmp_path


# From published tables of Student's t, two-sided 95%.
@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227)]
)
def test_student_t(freedom: int, t: float) -> None:
    assert student_t(freedom) == pytest.approx(t, abs=6e-5 if freedom == 1 else 6e-6)


def test_student_t_becomes_normal() -> None:
    assert student_t(20_000) == pytest.approx(1.95996, abs=2e-4)
    assert student_t(1, confidence=0.5) == pytest.approx(1.0)


def test_interval() -> None:
    found = interval([0.90, 0.92, 0.94])
    assert found.mean == pytest.approx(0.92)
    assert found.half_width == pytest.approx(HALF_WIDTH, rel=1e-5)
    assert interval([0.5]).half_width is None
    assert interval([0.5, 0.5]).half_width == 0


def test_markdown(folder: Path) -> None:
    text = table.write(folder)[0].read_text()
    lines = text.splitlines()
    assert lines[0] == "### mnist, quick"
    assert lines[4].startswith("| FT | - | 85.00 ± 63.53 (2) | - | 2.000 ± 0.000 (2) | - | 0.020 ± 0.000 (2) |")
    assert lines[5].startswith("| FFG | 95.00 (1) | 92.00 ± 4.97 (3) | 0.250 (1) | 0.500 ± 0.000 (3) |")
    assert lines[5].endswith("| 1.0 / 1.0 |")
    assert "Commit abc; on cpu, test." in lines[-1]
    assert {len(line.split("|")) for line in lines[2:6]} == {10}


def test_csv(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(table.write(folder)[1].read_text())))
    assert [(row["approach"], row["parts"], row["seeds"]) for row in rows] == [
        ("ffg", "1", "1"),
        ("ft", "10", "2"),
        ("ffg", "10", "3"),
    ]
    assert float(rows[2]["accuracy_mean"]) == pytest.approx(92.0)
    assert float(rows[2]["accuracy_half_width"]) == pytest.approx(100 * HALF_WIDTH, rel=1e-5)
    assert rows[0]["accuracy_half_width"] == ""
    assert rows[2]["hash"] == FFG_10.hash


def test_what_is_missing_is_said(folder: Path) -> None:
    (section,) = sections(records.read_all(folder))
    assert "mnist-ffg-t1-quick: no run with seed 1, 2" in section.missing
    assert "mnist-ft-t10-quick: no run with seed 1" in section.missing
    assert "mnist-mnf-t1-quick: no run" in section.missing
    assert not any(sentence.startswith("mnist-ffg-t10-quick") for sentence in section.missing)
    assert "- mnist-mnf-t1-quick: no run" in table.write(folder)[0].read_text()


def test_runs_with_other_settings_are_not_averaged(folder: Path) -> None:
    write_result(folder, experiment("ffg", num_parts=10, steps=9), 3, 0.1)
    (section,) = sections(records.read_all(folder))
    assert len(section.cell("ffg", 10).results) == 3
    assert "mnist-ffg-t10-quick: 1 runs with other settings: left out" in section.missing
    # Those with the settings that the code has now count, be they fewer.
    write_result(folder, CONFIGURATIONS["mnist"]["ffg"](10, "quick"), 4, 0.99)
    (section,) = sections(records.read_all(folder))
    assert [result.seed for result in section.cell("ffg", 10).results] == [4]


def test_runs_that_were_not_scored_on_the_test_set_are_left_out(folder: Path) -> None:
    write_result(folder, experiment("ffg", num_parts=10, num_validation=5), 0, 0.1)
    (section,) = sections(records.read_all(folder))
    assert section.cell("ffg", 10).over(lambda result: result.final.accuracy).mean == pytest.approx(0.92)
    assert "1 runs were scored on training images set aside: left out" in section.missing


def test_bars(folder: Path) -> None:
    by_task = {section.task: section for section in sections(records.read_all(folder))}
    drawn = figure.bars(by_task, "quick")
    mnist, cifar10, cifar5 = drawn.axes
    assert [ax.get_title() for ax in drawn.axes] == ["MNIST", "CIFAR-10", "CIFAR(5+5)"]
    t1, t10 = (kind for kind in mnist.containers if kind.get_label().startswith("T="))
    assert [bar.get_height() for bar in t1] == pytest.approx([95.0])
    assert [bar.get_height() for bar in t10] == pytest.approx([85.0, 92.0])
    assert [tick.get_text() for tick in mnist.get_xticklabels()] == ["FT", "FFG"]
    # FFG's two bars touch, T=1 to the left of T=10.
    assert t1[0].get_x() + t1[0].get_width() == pytest.approx(t10[1].get_x()) == pytest.approx(1.0)
    (ends,) = (segment for segment in t10.errorbar.lines[2][0].get_segments() if segment[0][0] > 1)
    assert [y for _, y in ends] == pytest.approx([92 - 100 * HALF_WIDTH, 92 + 100 * HALF_WIDTH], rel=1e-5)
    # A single seed has no interval: nothing is drawn, not even caps without a length.
    assert not any(len(segment) for segment in t1.errorbar.lines[2][0].get_segments())
    assert all(math.isnan(cap.get_ydata()[0]) for cap in t1.errorbar.lines[1])
    for empty in (cifar10, cifar5):
        assert [text.get_text() for text in empty.texts] == ["no results yet"]


def test_curves(folder: Path) -> None:
    by_task = {section.task: section for section in sections(records.read_all(folder))}
    accuracy, nll = figure.curves(by_task, "quick").axes[0], figure.curves(by_task, "quick").axes[3]
    lines = {line.get_label(): line for line in accuracy.get_lines()}
    assert list(lines) == ["FT", "FFG"]
    assert list(lines["FFG"].get_xdata()) == list(range(1, 11))
    assert list(lines["FFG"].get_ydata()) == pytest.approx([83.0 + part for part in range(10)])
    assert nll.get_lines()[0].get_ydata()[-1] == pytest.approx(2.0)


def test_figures_are_written_and_the_same_every_time(folder: Path) -> None:
    paths, missing = figure.write(folder)
    assert [path.name for path in paths] == [
        f"{f}-quick.{end}" for f in ("figure", "by-part") for end in ("png", "svg")
    ]
    assert "cifar10, quick: no run" in missing
    before = [path.read_bytes() for path in paths]
    figure.write(folder)
    assert [path.read_bytes() for path in paths] == before


def test_an_empty_folder(tmp_path: Path) -> None:
    for write in (table.write, figure.write):
        with pytest.raises(DataError, match=r"holds no results: run `postprior reproduce mnist --quick --out "):
            write(tmp_path)


def test_without_matplotlib(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'postprior\[figures\]'"):
        figure.write(folder)
