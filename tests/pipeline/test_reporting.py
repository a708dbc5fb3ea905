"""What a report says of a store: it is what the store itself says, whatever was learned, undone or left out."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_store import ARGUMENTS, arrays, content, part, part_file, small_store
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from postprior import Store
from postprior.errors import PartError, StoreError
from postprior.pipeline.absorbing import HELDOUT_SAMPLES
from postprior.pipeline.reporting import gather
from postprior.serving.report import Event, Report, page
from serving import chromium
from serving.chromium import Chromium

Image = pytest.importorskip("PIL.Image", reason="needs the extra report")

GATE = "nll<=champion+0.2"


def report_of(store: Store, data: Any = None, **options: Any) -> Report:
    return gather(store._tools(), data, **options)  # pyright: ignore[reportPrivateUsage]


def badges(event: Event) -> list[str]:
    return [detail.badge for detail in event.details]


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with one of each event."""
    store = small_store(tmp_path_factory.mktemp("eventful"))
    held = part(100)
    for day in range(1, 5):
        store.absorb(part(day), part=f"day-{day}", evaluate=held, gate=GATE)
    x, y = part(5)
    store.absorb((x, 1 - y), part="mislabelled", evaluate=held, gate="nll<champion")
    store.rollback()
    store.promote("head~1")
    store.alias("kept", "head")
    store.alias("kept", None)
    store.absorb(part(6), part="left", branch="left")
    store.absorb((torch.cat([x[:30], part(3)[0][:30]]), torch.cat([y[:30], part(3)[1][:30]])), part="half-old")
    store.absorb(part(7), part="right", branch="right", onto="head~1")
    store.merge(["left", "right"], base="head~1", into="both")
    store.forget("half-old")
    store.absorb(part(1), part="day-1 again", allow_repeat=True)
    return store


def test_every_part_is_there_with_what_was_measured(eventful: Store) -> None:
    found = report_of(eventful)
    names = ["day-1", "day-2", "day-3", "half-old", "day-1 again"]
    assert [each.name for each in found.parts] == names
    absorbed = [entry for entry in eventful.log("head") if entry.event == "absorb"]
    for each, entry in zip(found.parts, reversed(absorbed), strict=True):
        assert entry.belief is not None
        manifest = eventful.show(entry.belief)
        assert each.before == manifest["metrics"]["before"]
        assert each.after == (manifest["metrics"]["after"] or {})
        assert each.kl == manifest["update"]["kl"]
        assert each.num_examples == 60
        assert each.surprise == {s["measure"]: s["score"] for s in manifest["surprises"]}
    assert len(found.parts[-1].surprise) == 2  # it has four before it
    assert found.parts[3].remarks[-1] == "divided out again since"
    assert "count again" in found.parts[4].remarks[-1]
    facts = dict(found.facts)
    assert (facts["Parts"], facts["Examples"]) == ("4", "240")
    assert facts["Weights"] == str(3 * 8 + 8 + 8 * 2 + 2)


def test_a_part_that_was_stopped_is_shown_where_it_was_met(eventful: Store) -> None:
    found = report_of(eventful, at=eventful.show("left")["parent"])  # day-3: what day-4 led to was rolled back
    assert [each.name for each in found.parts] == ["day-1", "day-2", "day-3"]
    (day_4,) = (entry.belief for entry in eventful.log() if entry.about.get("part") == "day-4")
    found = report_of(eventful, at=day_4)
    assert [each.name for each in found.parts if each.stopped] == ["mislabelled"]
    stopped = found.parts[-1]
    (entry,) = (entry for entry in eventful.log() if entry.about.get("part") == "mislabelled")
    assert entry.belief is not None
    assert stopped.after == eventful.show(entry.belief)["metrics"]["after"]
    assert stopped.remarks == ("stopped by its gate",)
    assert dict(found.facts)["Parts"] == "4"


def test_the_journal_is_told_whole(eventful: Store) -> None:
    found = report_of(eventful)
    assert [event.sequence for event in found.events] == [entry.sequence for entry in eventful.log()]
    told = {event.title: event for event in found.events}
    passed, failed = told["Part day-4 learned"], told["Part mislabelled stopped by its gate"]
    assert badges(passed) == ["learned", "gate passed", "moved"]
    assert badges(failed) == [
        "learned",
        *(["surprise"] if "surprise" in badges(failed) else []),
        "gate failed",
        "moved",
    ]
    assert "nll" in failed.details[-2].text
    assert "is not <" in failed.details[-2].text
    assert failed.details[-1].text.startswith("candidate from part day-4 (")
    assert re.match(
        r"champion and head from part day-4 \(\w{8}\) to part day-3 \(\w{8}\)", told["Rolled back"].details[0].text
    )
    assert told["Promoted"].details[-1].text.startswith("champion")
    moved = [event.details[0].text for event in found.events if event.title == "An alias was moved"]
    assert re.fullmatch(r"kept from part \S+ \(\w{8}\), to nothing: it was taken away", moved[0])
    assert re.fullmatch(r"kept to part \S+ \(\w{8}\)", moved[1])
    merged = told["Beliefs multiplied"].details[0]
    assert re.fullmatch(r"part left \(\w{8}\) and part right \(\w{8}\)", merged.text)
    assert badges(told["Part half-old divided out"])[0] == "approximate"
    assert "overlap" in badges(told["Part half-old learned"])
    assert "repeat" in badges(told["Part day-1 again learned"])
    marked = {mark: event.belief for event in found.events for mark in event.marks}
    assert marked == eventful.aliases


def test_layers_are_those_of_diff_and_sum_to_the_kl(eventful: Store) -> None:
    found = report_of(eventful)
    assert {layer.name: layer.nats for layer in found.layers} == eventful.diff("head", "head~1")
    assert sum(layer.nats for layer in found.layers) == pytest.approx(found.parts[-1].kl, rel=1e-5)
    assert sum(layer.num_weights for layer in found.layers) == 3 * 8 + 8 + 8 * 2 + 2
    assert found.layers_about.startswith("without part half-old (")
    assert report_of(eventful, at="left").layers_about.startswith("part day-3 (")


def test_it_is_seen_from_any_belief(eventful: Store) -> None:
    assert [each.name for each in report_of(eventful, at="both").parts][-2:] == ["left", "right"]
    first = report_of(eventful, at=eventful.log()[-1].belief)
    assert first.parts == []
    assert (first.layers, first.layers_about) == ([], "The first belief has none before it.")
    with pytest.raises(StoreError, match="nobody names no belief"):
        report_of(eventful, at="nobody")


def test_what_held_out_data_tell_is_what_the_store_answers(eventful: Store) -> None:
    x, y = part(100, 200)
    found = report_of(eventful, (x, y)).held_out
    assert found is not None
    assert found.measures == eventful.evaluate((x, y), at="head")
    answer = eventful.predict(x, at="head", num_samples=HELDOUT_SAMPLES)
    assert answer.entropy is not None
    assert answer.mutual_information is not None
    order = answer.entropy.argsort(descending=True, stable=True).tolist()
    assert [each.number for each in found.examples] == order[: len(found.examples)]
    for each in found.examples:
        assert each.doubt == pytest.approx(float(answer.entropy[each.number]))
        assert each.share == pytest.approx(float(answer.mutual_information[each.number]) / each.doubt, abs=1e-6)
        assert each.truth == str(int(y[each.number]))
        assert each.guesses[0] == (
            str(int(answer.mean[each.number].argmax())),
            pytest.approx(float(answer.mean[each.number].max())),
        )
        assert each.right is (each.guesses[0][0] == each.truth)
        assert each.values == tuple(f"{value:.5g}" for value in x[each.number].tolist())  # raw, as they were given
    assert found.columns == ("input 0", "input 1", "input 2")
    right = answer.mean.argmax(1) == y
    assert sum(bin.count for bin in found.bins) == 200
    assert sum(bin.count * bin.accuracy for bin in found.bins) == pytest.approx(float(right.sum()))
    gaps = sum(bin.count * abs(bin.accuracy - bin.confidence) for bin in found.bins) / 200
    assert gaps == pytest.approx(found.measures["ece"], abs=1e-5)


def test_columns_keep_their_names_and_classes_theirs(tmp_path: Path) -> None:
    x, y = arrays(0)
    rows = [f"{a},{b},{c},{'rain' if label else 'sun'}" for (a, b, c), label in zip(x.tolist(), y, strict=True)]
    path = tmp_path / "weather.csv"
    path.write_text("\n".join(["wind,cloud,warmth,label", *rows]), encoding="utf-8")
    store = small_store(tmp_path)
    store.absorb(path)
    found = report_of(store, path).held_out
    assert found is not None
    assert found.columns == ("wind", "cloud", "warmth")
    assert {each.truth for each in found.examples} == {"rain", "sun"}
    assert {name for each in found.examples for name, _ in each.guesses} <= {"rain", "sun"}


def pictures(seed: int, channels: int, dtype: Any = np.uint8) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 2, 40)
    x = generator.integers(0, 100, (40, channels, 6, 5)) + 100 * y[:, None, None, None]
    return x.astype(dtype), y


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_shown_as_they_were_given(channels: int, tmp_path: Path) -> None:
    store = small_store(tmp_path, arguments={"in_features": channels * 30, "num_outputs": 2, "hidden": [8]})
    x, y = pictures(0, channels)
    store.absorb((x, y), part="one")
    found = report_of(store, (x, y)).held_out
    assert found is not None
    assert found.columns == ()
    for each in found.examples:
        assert each.picture is not None
        shown = np.asarray(Image.open(io.BytesIO(each.picture)))
        expected = x[each.number, 0] if channels == 1 else x[each.number].transpose(1, 2, 0)
        np.testing.assert_array_equal(shown, expected)
    assert page(report_of(store, (x, y))).count("data:image/png;base64,") == len(found.examples)


def test_pictures_of_other_numbers_are_stretched(tmp_path: Path) -> None:
    store = small_store(tmp_path, arguments={"in_features": 30, "num_outputs": 2, "hidden": [8]})
    x, y = pictures(0, 1, np.float32)
    store.absorb((x / 7 - 3, y), part="one")
    found = report_of(store, (x / 7 - 3, y)).held_out
    assert found is not None
    assert found.examples[0].picture is not None
    shown = np.asarray(Image.open(io.BytesIO(found.examples[0].picture)))
    assert (shown.min(), shown.max()) == (0, 255)


def test_a_loader_that_shuffles_is_asked_once(tmp_path: Path) -> None:
    store = small_store(tmp_path, normalise="none")
    store.absorb(part(1), part="one")
    x, y = part(100, 90)
    dataset = TensorDataset(x, y)
    shuffled = DataLoader(dataset, 16, shuffle=True, generator=torch.Generator().manual_seed(3))
    found = report_of(store, shuffled).held_out
    assert found is not None
    plain = report_of(store, (x, y)).held_out
    assert plain is not None
    assert found.measures["ece"] == pytest.approx(plain.measures["ece"], abs=1e-6)
    assert found.measures["nll"] == pytest.approx(plain.measures["nll"], abs=1e-6)

    def seen(examples: Any) -> list[tuple[Any, ...]]:
        return [(each.truth, each.guesses[0][0], each.values) for each in examples]

    assert seen(found.examples) == seen(plain.examples)


def numbers(seed: int) -> tuple[Tensor, Tensor]:
    x, _ = part(seed)
    return x, x.sum(1, keepdim=True)


def test_a_regression_doubts_in_its_own_unit(tmp_path: Path) -> None:
    store = small_store(tmp_path, likelihood="gaussian", arguments={**ARGUMENTS, "num_outputs": 1})
    store.absorb(numbers(1), part="one", evaluate=numbers(2))
    whole = report_of(store, numbers(2))
    found = whole.held_out
    assert found is not None
    answer = store.predict(numbers(2)[0], at="head", num_samples=HELDOUT_SAMPLES)
    sd = answer.variance.sqrt().flatten()
    assert [each.number for each in found.examples] == sd.argsort(descending=True, stable=True).tolist()[:24]
    assert found.examples[0].doubt == pytest.approx(float(sd.max()), rel=1e-6)
    assert all(0 <= each.share <= 1 and each.right is None for each in found.examples)
    assert found.examples[0].guesses[0][0].endswith(f" ± {float(sd.max()):.4g}")
    assert found.bins == ()
    assert "rmse" in found.measures
    html = page(whole)
    assert "RMSE" in html
    assert "Accuracy" not in html


def test_yes_or_no_has_a_reliability(tmp_path: Path) -> None:
    store = small_store(tmp_path, likelihood="bernoulli", arguments={**ARGUMENTS, "num_outputs": 1})
    x, y = part(1)
    store.absorb((x, y[:, None].float()), part="one")
    found = report_of(store, (x, y[:, None].float())).held_out
    assert found is not None
    assert sum(bin.count for bin in found.bins) == 60
    assert sum(bin.count * bin.accuracy for bin in found.bins) / 60 == pytest.approx(found.measures["accuracy"])
    assert all(bin.confidence >= 0.5 for bin in found.bins)
    assert {each.truth for each in found.examples} == {"0", "1"}
    for each in found.examples:
        assert each.guesses[0][1] == pytest.approx(1 - (each.guesses[1][1] or 0))
        assert each.right is (each.guesses[0][0] == each.truth)


def test_points_have_no_divergence(tmp_path: Path) -> None:
    store = small_store(tmp_path, family="point")
    store.absorb(part(1), part="one")
    found = report_of(store)
    assert found.layers == []
    assert "single value" in found.layers_about


def test_a_report_reads_and_writes_nothing_else(eventful: Store, tmp_path: Path) -> None:
    folder = Path(eventful.address)
    before = content(folder)
    one = eventful.report(tmp_path / "one.html", part(100))
    other = eventful.report(tmp_path / "other.html", part(100))
    assert content(folder) == before
    assert one.read_bytes() == other.read_bytes()
    assert folder.as_posix() not in one.read_text(encoding="utf-8")  # it may be sent to others


def test_a_place_that_cannot_be_written_is_refused_first(eventful: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no folder"):
        eventful.report(tmp_path / "missing" / "report.html", tmp_path / "nothing.npz")


def test_held_out_data_that_do_not_fit_leave_no_file(eventful: Store, tmp_path: Path) -> None:
    x, y = part(100)
    with pytest.raises(PartError, match="expected floating numbers of shape"):
        eventful.report(tmp_path / "report.html", (x[:, :2], y))
    assert list(tmp_path.iterdir()) == []


def test_it_is_a_method_of_the_store_and_reads_files(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.absorb(part_file(tmp_path, 1))
    path = store.report(tmp_path / "report.html", part_file(tmp_path, 2))
    html = path.read_text(encoding="utf-8")
    assert "<h1>store</h1>" in html
    assert "part-1" in html


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if chromium.FOUND is None:
        pytest.skip(chromium.ABSENT)
    with Chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


def test_a_browser_shows_it_without_a_complaint(eventful: Store, browser: Chromium, tmp_path: Path) -> None:
    path = eventful.report(tmp_path / "report.html", part(100))
    for dark in (False, True):
        with browser.page(path, 400, dark=dark) as shown:
            assert shown.value("document.querySelectorAll('canvas').length") == 5
            assert shown.value("document.documentElement.scrollWidth") == 400
            assert shown.complaints() == []
            assert shown.requested() <= {"file", "data"}
