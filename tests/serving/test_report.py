"""The report's page: what it says, what cannot break out of it, and what a browser makes of it."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from postprior.errors import MissingExtraError, StoreError
from postprior.serving.report import Detail, Learned, Report, page, write
from serving import chromium
from serving.chromium import Chromium, Page
from serving.made_up import event, held_out, learned, report

pytest.importorskip("jinja2", reason="needs the extra report")

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"

SIZES = {
    "none": report(0, layers=(), layers_about="The first belief has none before it.", held_out=None),
    "one": report(1),
    "six": report(6),
    "stopped": report(parts=[learned(1), learned(2, stopped=True), learned(3)]),
    "thousand": report(1000),
    "regression": report(
        parts=[learned(i, before={"nll": -2.0, "rmse": 0.4}, after={"rmse": 0.3 / i}) for i in range(1, 5)],
        held_out=replace(held_out(pictures=False), bins=()),
    ),
}


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found is not None
    return json.loads(found[1])


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", " ", html, flags=re.S))


@pytest.mark.parametrize("size", SIZES)
def test_the_numbers_of_every_part_are_in_the_page(size: str) -> None:
    html = page(SIZES[size])
    data = data_of(html)
    parts = SIZES[size].parts
    assert data["parts"] == [part.name for part in parts]
    for name, chart in data["charts"].items():
        for line in chart["lines"]:
            assert len(line["values"]) == len(parts)
            if name in ("accuracy", "nll", "ece", "rmse"):
                measured = [part.before if line["label"] == "before" else part.after for part in parts]
                shown = [line["label"] == "before" or part.stopped == (line["label"] == "stopped") for part in parts]
                expected = [each.get(name) if show else None for each, show in zip(measured, shown, strict=True)]
                assert line["values"] == expected
    rows = re.findall(r'<th scope="row" class="text">([^<]*)</th>', html)
    assert rows == [part.name for part in parts]


def test_what_was_not_measured_is_not_drawn() -> None:
    assert set(data_of(page(SIZES["regression"]))["charts"]) == {"rmse", "nll", "surprise", "kl"}
    before = data_of(page(report(2, parts=[learned(1, after={}), learned(2, after={})])))
    assert [line["label"] for line in before["charts"]["nll"]["lines"]] == ["before"]
    assert data_of(page(SIZES["none"]))["charts"] == {}


def test_what_is_missing_says_how_to_get_it() -> None:
    text = text_of(page(report(2, held_out=None, parts=[learned(1, after={})], layers=(), layers_about="Nothing.")))
    assert text.count("make the report again with --data HELD_OUT") == 2
    assert "absorb with --evaluate HELD_OUT" in text
    assert "there are not enough yet" in text
    assert "Nothing." in text


def test_a_first_part_that_dwarfs_the_rest_is_drawn_on_a_logarithmic_axis() -> None:
    def nll_of(*values: float) -> dict[str, Any]:
        parts = [Learned(name=str(value), num_examples=1, before={"nll": value}) for value in values]
        return data_of(page(report(2, parts=parts)))["charts"]["nll"]

    assert nll_of(400.0, 2.0, 1.0)["logarithmic"]
    assert "logarithmic" in nll_of(400.0, 2.0, 1.0)["title"]
    assert not nll_of(3.0, 2.0, 1.0)["logarithmic"]
    assert not nll_of(400.0, -2.0, 1.0)["logarithmic"]  # densities may exceed 1


def test_warnings_come_first_and_the_newest_of_them() -> None:
    odd = [event(i, title=f"Part {i}", details=(Detail("surprise", f"sentence {i}", "warning"),)) for i in range(20)]
    html = page(report(events=odd[::-1]))
    top = html[: html.index('id="parts"')]
    assert [int(number) for number in re.findall(r"sentence (\d+)", top)] == [19, 18, 17, 16, 15, 14, 13, 12]
    assert "12 more are in the" in top
    assert "Worth a look" not in page(report(events=[event(1)]))


def evil_report() -> Report:
    base = report(6)
    assert base.held_out is not None
    examples = [replace(each, truth=EVIL, guesses=((EVIL, 0.5),)) for each in base.held_out.examples]
    return replace(
        base,
        title=EVIL,
        parts=[learned(i, f"{i}{EVIL}", remarks=(EVIL,)) for i in range(1, 7)],
        layers_about=EVIL,
        layers=[replace(layer, name=EVIL) for layer in base.layers],
        events=[replace(each, title=EVIL, marks=(EVIL,), details=(Detail(EVIL, EVIL, "bad"),)) for each in base.events],
        facts=[(EVIL, EVIL)],
        held_out=replace(base.held_out, examples=tuple(examples), columns=(EVIL,)),
    )


def test_no_name_breaks_out_of_its_place() -> None:
    html = page(evil_report())
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert data_of(html)["parts"][0] == f"1{EVIL}"
    # The two scripts that are ours, and the data.
    assert len(re.findall(r"<script\b", html)) == 3


def test_the_page_is_the_same_every_time_and_names_no_address() -> None:
    html = page(report())
    assert html == page(report())
    assert "uPlot" in html
    assert "Copyright (c) 2022 Leon Sorokin" in html
    # A licence and the name of SVG's namespace aside, nothing in it is an address.
    assert set(re.findall(r'(?:src|href)="([^"#]*)', html)) <= {
        *("", "data:,"),
        *re.findall(r'src="(data:image/png;base64,[^"]+)"', html),
    }


def test_it_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write(report(), tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == page(report())
    assert list(tmp_path.iterdir()) == [path]
    write(report(2), path)
    assert path.read_text(encoding="utf-8") == page(report(2))
    with pytest.raises(StoreError, match=r"there is no folder .*missing; make it first"):
        write(report(), tmp_path / "missing" / "report.html")
    with pytest.raises(StoreError, match="is a folder: give the name of a file"):
        write(report(), tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"postprior\[report\]"):
        page(report())


# In a browser.


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if chromium.FOUND is None:
        pytest.skip(chromium.ABSENT)
    with Chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


DRAWN = """
(() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (name) => {
    probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data];
  };
  const [before, after, bad] = [rgb("--before"), rgb("--after"), rgb("--bad")];
  const near = (data, i, color) => [0, 1, 2].every((c) => Math.abs(data[i + c] - color[c]) < 8) && data[i + 3] > 200;
  return Object.fromEntries([...document.querySelectorAll("[data-chart]")].map((place) => {
    const canvas = place.querySelector("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const count = (color) => {
      let found = 0;
      for (let i = 0; i < data.length; i += 4) found += near(data, i, color);
      return found;
    };
    return [place.dataset.chart, { before: count(before), after: count(after), bad: count(bad) }];
  }));
})()
"""
"""How many pixels each chart has in the colors of its lines."""

UNFOLD = "document.querySelectorAll('details').forEach((each) => (each.open = true))"

TOO_WIDE = """
[...document.querySelectorAll("body *")]
  .filter((each) => !each.closest(".scroll, .u-wrap") && each.getBoundingClientRect().right > innerWidth + 1)
  .map((each) => each.outerHTML.slice(0, 120))
"""


@pytest.mark.parametrize(("size", "width"), [*((size, 400) for size in SIZES), ("six", 1200)])
def test_charts_are_drawn_in_both_themes_and_nothing_is_too_wide(
    browser: Chromium, size: str, width: int, tmp_path: Path
) -> None:
    path = write(SIZES[size], tmp_path / "report.html")
    charts = data_of(path.read_text(encoding="utf-8"))["charts"]
    for dark in (False, True):
        with browser.page(path, width, dark=dark) as shown:
            drawn = shown.value(DRAWN)
            assert set(drawn) == set(charts)
            for name, chart in charts.items():
                for line in chart["lines"]:
                    assert drawn[name][line["color"]] >= 20, (name, line["label"], drawn)
            shown.value(UNFOLD)
            assert shown.value("document.documentElement.scrollWidth") <= width
            assert shown.value(TOO_WIDE) == []
            assert shown.complaints() == []
            assert shown.requested() <= {"file", "data"}


def brightness(shown: Page) -> float:
    numbers = re.findall(r"[\d.]+", shown.value("getComputedStyle(document.body).backgroundColor"))
    return sum(map(float, numbers[:3])) / 3


def test_the_theme_follows_the_system_until_the_reader_decides(browser: Chromium, tmp_path: Path) -> None:
    path = write(report(), tmp_path / "report.html")
    with browser.page(path, 800) as shown:
        assert brightness(shown) > 200
        light = shown.value("document.querySelector('canvas').toDataURL()")
        shown.prefer(dark=True)
        assert brightness(shown) < 60
        assert shown.value("document.querySelector('canvas').toDataURL()") != light
        shown.value("document.getElementById('theme').click()")
        assert brightness(shown) > 200
        assert shown.value("document.querySelector('canvas').toDataURL()") == light
        assert shown.value("document.getElementById('theme').ariaLabel") == "Show the page dark"
        assert shown.complaints() == []


CONTRAST = """
(() => {
  const root = getComputedStyle(document.documentElement);
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (name) => {
    probe.fillStyle = root.getPropertyValue(name).trim();
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3).map((byte) => {
      const c = byte / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const inks = ["text", "faint", "link", "good", "warning", "bad", "before", "after"];
  return Math.min(...inks.flatMap((ink) => ["page", "card"].map((paper) => {
    const [low, high] = [luminance("--" + ink), luminance("--" + paper)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  })));
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_ink_can_be_read_on_every_paper(browser: Chromium, dark: bool, tmp_path: Path) -> None:
    with browser.page(write(report(), tmp_path / "report.html"), 800, dark=dark) as shown:
        assert shown.value(CONTRAST) >= 4.5  # what WCAG asks of text


def test_a_name_that_is_a_script_stays_a_name(browser: Chromium, tmp_path: Path) -> None:
    with browser.page(write(evil_report(), tmp_path / "report.html"), 400) as shown:
        assert shown.value("document.querySelector('h1').textContent") == EVIL
        assert shown.value("document.scripts.length") == 3
        assert shown.value("document.querySelectorAll('img[src=x]').length") == 0
        shown.value(UNFOLD)
        assert shown.value("document.documentElement.scrollWidth") <= 400
        assert shown.complaints() == []


def test_what_did_break_out_would_be_refused(browser: Chromium, tmp_path: Path) -> None:
    with browser.page(write(report(), tmp_path / "report.html"), 400) as shown:
        shown.value("document.body.append(Object.assign(document.createElement('script'), {textContent: 'broke = 1'}))")
        assert shown.value("typeof broke") == "undefined"
        refused = shown.value("fetch('https://example.org').then(() => 'answered', () => 'refused')")
        assert refused == "refused"
        assert sum("Content Security Policy" in complaint for complaint in shown.complaints()) >= 2


def test_a_warning_leads_to_its_event_though_that_is_folded(browser: Chromium, tmp_path: Path) -> None:
    old = event(1, title="Part odd", details=(Detail("surprise", "nll is 9", "warning"),))
    whole = report(events=[*(event(i) for i in range(100, 1, -1)), old])
    with browser.page(write(whole, tmp_path / "report.html"), 400) as shown:
        odd = "document.getElementById('event-1')"
        assert not shown.value(f"{odd}.checkVisibility()")
        shown.value("document.querySelector('.looks a').click()")
        shown.value("new Promise(done => setTimeout(done, 200))")
        assert shown.value(f"{odd}.checkVisibility()")
        assert 0 <= shown.value(f"{odd}.getBoundingClientRect().top") < 900


def test_the_part_under_the_pointer_is_named_in_every_chart(browser: Chromium, tmp_path: Path) -> None:
    long = "a part with a name as long as they come, " * 4
    whole = report(parts=[learned(1), learned(2, long), learned(3)])
    with browser.page(write(whole, tmp_path / "report.html"), 800) as shown:
        shown.value("document.querySelector('.u-over').scrollIntoView({block: 'center'})")
        x, y, width = shown.value(
            "(({x, y, width}) => [x, y, width])(document.querySelector('.u-over').getBoundingClientRect())"
        )
        shown.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width / 2, y=y + 20)
        assert shown.complaints() == []
        legends = shown.value("[...document.querySelectorAll('.u-legend')].map((each) => each.innerText)")
        assert len(legends) == 4
        for legend in legends:
            assert "2, a part with a name as lo…" in legend
        assert legends[0].endswith("before0.6after0.75")


def test_paper_is_light_and_nothing_is_folded(browser: Chromium, tmp_path: Path) -> None:
    with browser.page(write(report(), tmp_path / "report.html"), 800, dark=True) as shown:
        shown.prefer(dark=True, media="print")
        assert brightness(shown) == 255
        assert shown.value("getComputedStyle(document.querySelector('nav')).display") == "none"
        shown.value("dispatchEvent(new Event('beforeprint'))")
        assert shown.value("[...document.querySelectorAll('details')].every((each) => each.open)")
        assert shown.value(DRAWN)["nll"]["after"] >= 20  # in the colors of paper
        assert shown.complaints() == []


def test_those_who_do_not_see_it_are_told(browser: Chromium, tmp_path: Path) -> None:
    with browser.page(write(report(), tmp_path / "report.html"), 800) as shown:
        levels = shown.value("[...document.querySelectorAll('h1, h2')].map((each) => each.tagName)")
        assert levels == ["H1", *["H2"] * (len(levels) - 1)]
        labels = shown.value("[...document.querySelectorAll('[role=img]')].map((each) => each.ariaLabel)")
        assert labels[1].startswith("NLL, nats an example, by part: before 2.4 at part 1, ")
        assert all(labels)
        assert shown.value("[...document.images].every((each) => each.alt)")
        assert shown.value("[...document.querySelectorAll('.scroll')].every((each) => each.tabIndex === 0)")
        assert shown.value("document.querySelectorAll('.scroll th:not([scope])').length") == 0
