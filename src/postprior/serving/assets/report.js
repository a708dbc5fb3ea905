// Draws the charts, anew when the theme changes, for their colours are those of the page.
"use strict";
const { parts, charts } = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const numbers = parts.map((_, i) => i + 1);
const few = parts.length <= 60;
const LONGEST = 24;
const STEPS = [0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
let drawn = [];

const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const shown = (value) => (value == null ? "–" : digits.format(value));
const named = (number) => {
  if (number == null) return "–";
  const name = [...parts[number - 1]];
  return `${number}, ${name.length > LONGEST ? name.slice(0, LONGEST).join("") + "…" : name.join("")}`;
};

const powers = (_, splits) => splits.map((value) => (Math.abs(Math.log10(value) % 1) < 1e-6 ? value : null));
const ofParts = (_, splits) => splits.map((value) => (value >= 1 && value <= parts.length ? value : null));

const logarithmic = (grid) => ({
  filter: powers,
  grid: { ...grid, filter: powers },
  values: (_, splits) => splits.map((value) => (value == null ? "" : shown(value))),
});

function line({ label, color: role }, _, all) {
  return {
    label,
    stroke: color(role),
    width: 2,
    dash: role === "before" && all.length > 1 ? [7, 3] : [],
    spanGaps: true,
    points: { show: few || role === "bad", size: 7, fill: color(role) },
    ...(role === "bad" ? { paths: () => null } : {}),
    value: (_, value) => shown(value),
  };
}

function draw(place) {
  const chart = charts[place.dataset.chart];
  const grid = { stroke: color("line"), width: 1 };
  const axis = { stroke: color("faint"), grid, ticks: { show: false } };
  const series = chart.lines.map(line);
  const data = [numbers, ...chart.lines.map(({ values }) => values)];
  if (chart.limit !== null) {
    const limit = { label: "limit", stroke: color("bad"), width: 1, dash: [3, 4], points: { show: false } };
    series.push({ ...limit, value: (_, value) => shown(value) });
    data.push(numbers.map(() => chart.limit));
  }
  place.replaceChildren();
  const options = {
    width: place.clientWidth,
    height: 220,
    cursor: { sync: { key: "parts" } },
    scales: {
      x: { time: false, range: (_, low, high) => [low - 0.5, high + 0.5] },
      y: chart.logarithmic ? { distr: 3 } : {},
    },
    axes: [
      { ...axis, filter: ofParts, grid: { ...grid, filter: ofParts }, incrs: STEPS, space: 36, size: 30 },
      { ...axis, size: 58, ...(chart.logarithmic ? logarithmic(grid) : {}) },
    ],
    series: [{ label: "part", value: (_, number) => named(number) }, ...series],
  };
  return new uPlot(options, data, place);
}

function redraw() {
  drawn.forEach((plot) => plot.destroy());
  drawn = [...document.querySelectorAll("[data-chart]")].map(draw);
}

function resize() {
  for (const plot of drawn) {
    const width = plot.root.parentElement.clientWidth;
    if (width !== plot.width) plot.setSize({ width, height: plot.height });
  }
}

const wish = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");
const isDark = () => (root.dataset.theme ?? (wish.matches ? "dark" : "light")) === "dark";
function themed() {
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Show the page ${isDark() ? "light" : "dark"}`);
  redraw();
}
button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  themed();
});
wish.addEventListener("change", themed);
matchMedia("print").addEventListener("change", redraw);
addEventListener("resize", resize);
// On paper nothing can be unfolded.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));
// A link into a folded list unfolds it.
addEventListener("hashchange", () => {
  const folded = document.getElementById(location.hash.slice(1))?.closest("details");
  if (folded && !folded.open) {
    folded.open = true;
    document.getElementById(location.hash.slice(1)).scrollIntoView();
  }
});
themed();
