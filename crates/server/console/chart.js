// Small charts of a series over time, drawn as SVG.

import { clock, clockSeconds } from "./format.js";
import { h, put, svg } from "./dom.js";

const HEIGHT = 132;
const LEFT = 44;
const BOTTOM = 18;
const TOP = 6;
/** A span below which times have seconds: minutes would be the same at both ends. */
const SECONDS_SPAN_MS = 600_000;
/** Width of a value without neighbours, which no line would show. */
const POINT = 4;

/** The next rounder number: 1, 2 or 5 times a power of ten. */
function rounder(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/**
 * A chart of one or more series.
 * `series`: name and colour of each; `format`: a value as text; `when`: a time as text; `stacked`: areas on top of each
 * other; `latest`: the name of the newest time; `summary`: the chart in words, for screen readers.
 */
export function chart({ label, series, format, when = timeOf, latest = "now", stacked = false, steps = false, summary }) {
  const drawing = svg("svg", { role: "img", "aria-label": label });
  const legend = h("div", { class: "legend" });
  const node = h("div", {}, h("div", { class: "chart" }, drawing), legend);
  let data = { times: [], values: series.map(() => []) };
  let hovered = null;

  function draw() {
    const width = Math.max(240, drawing.clientWidth || 420);
    const { times, values } = data;
    drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const heights = stacked ? stack(values) : values;
    const largest = Math.max(0, ...heights.flat().map((value) => value ?? 0));
    const top = rounder(largest);
    const first = times[0] ?? 0;
    const span = (times.at(-1) ?? 1) - first || 1;
    const x = (time) => LEFT + ((time - first) / span) * (width - LEFT - 4);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      const level = y(top * part);
      parts.push(svg("line", { class: "rule", x1: LEFT, x2: width, y1: level, y2: level }));
      parts.push(svg("text", { x: LEFT - 6, y: level + 4, "text-anchor": "end" }, format(top * part)));
    }
    if (times.length > 1) {
      for (const part of [0, 0.5, 1]) {
        const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
        const at = first + span * part;
        parts.push(svg("text", { x: x(at), y: HEIGHT - 3, "text-anchor": anchor }, when(at, span)));
      }
    }
    for (let place = series.length - 1; place >= 0; place -= 1) {
      const colour = `c-${series[place].colour}`;
      const below = stacked && place > 0 ? heights[place - 1] : null;
      if (stacked) parts.push(svg("path", { class: `area ${colour}`, d: area(times, heights[place], below, x, y) }));
      // The line of a stacked series is left out where it would lie on the one below.
      const own = stacked && place > 0 ? heights[place].map((height, index) => (values[place][index] > 0 ? height : null)) : heights[place];
      parts.push(svg("path", { class: `line ${colour}`, d: line(times, own, x, y, steps) }));
    }
    if (hovered !== null && times[hovered] !== undefined) {
      parts.push(svg("line", { class: "cursor", x1: x(times[hovered]), x2: x(times[hovered]), y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    put(drawing, ...parts);
    drawing.setAttribute("aria-label", `${label}. ${summary?.(data) ?? ""}`.trim());
    explain();
  }

  /** The legend, with the values under the pointer or the newest ones. */
  function explain() {
    const { times, values } = data;
    const place = hovered ?? times.length - 1;
    const shown = hovered === null ? latest : when(times[place], times.at(-1) - times[0]);
    put(
      legend,
      ...series.map(({ name, colour }, index) => {
        const value = values[index][place];
        return h("span", {}, h("i", { class: `k-${colour}` }), `${name} ${value === undefined || value === null ? "–" : format(value)}`);
      }),
      h("span", {}, times.length === 0 ? "" : shown),
    );
  }

  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (box.width - LEFT - 4);
    const last = data.times.length - 1;
    if (last < 1) return;
    hovered = Math.max(0, Math.min(last, Math.round(part * last)));
    draw();
  });
  drawing.addEventListener("pointerleave", () => {
    hovered = null;
    draw();
  });
  new ResizeObserver(draw).observe(drawing);

  return {
    node,
    update(next) {
      data = next;
      draw();
    },
  };
}

function timeOf(unixMs, span) {
  return span < SECONDS_SPAN_MS ? clockSeconds(unixMs) : clock(unixMs);
}

function stack(values) {
  const sums = [];
  values.forEach((series, place) => {
    sums.push(series.map((value, index) => (value ?? 0) + (place > 0 ? sums[place - 1][index] : 0)));
  });
  return sums;
}

function line(times, values, x, y, steps) {
  let path = "";
  let isOn = false;
  values.forEach((value, place) => {
    if (value === null || value === undefined) {
      isOn = false;
      return;
    }
    const at = x(times[place]).toFixed(1);
    const level = y(value).toFixed(1);
    const isAlone = !isOn && (values[place + 1] ?? null) === null;
    if (isAlone) path += `M${at - POINT / 2} ${level}h${POINT}`;
    else path += isOn ? (steps ? `H${at}V${level}` : `L${at} ${level}`) : `M${at} ${level}`;
    isOn = true;
  });
  return path;
}

function area(times, values, below, x, y) {
  if (times.length === 0) return "";
  const upper = values.map((value, place) => `${x(times[place]).toFixed(1)} ${y(value).toFixed(1)}`);
  const lower = times.map((time, place) => `${x(time).toFixed(1)} ${y(below ? below[place] : 0).toFixed(1)}`).reverse();
  return `M${upper.join("L")}L${lower.join("L")}Z`;
}
