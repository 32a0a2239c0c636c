// Limits by fullness, what binds now, and the last hour.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { h, put } from "./dom.js";
import { compact, latency, number, share } from "./format.js";
import { empty, field, fillWith, form, fullness, heading, limitLink, pager, panel, partOf, statusOf, table, tag } from "./parts.js";

const PAGE_SIZE = 50;
const STEP_MS = 10_000;
const STEPS = 360;
/** Time between two reads of a list that the event stream does not have, such as one with a prefix. */
const REREAD_MS = 5_000;

export function show(context) {
  return [
    heading("Limits", "What is nearly full, and what denies calls now. Live from this node."),
    hour(context),
    h("div", { class: "grid wide" }, list(context), binding(context)),
  ];
}

/** The charts of the last hour. */
function hour({ signal, on }) {
  const reserves = chart({
    label: "Reserves per second in the last hour",
    series: [{ name: "allowed", colour: "calm" }, { name: "denied", colour: "bad" }, { name: "refused", colour: "warn" }],
    format: (value) => compact(value),
    stacked: true,
    summary: ({ values }) => `Now ${compact(values[0].at(-1) ?? 0)} allowed and ${compact(values[1].at(-1) ?? 0)} denied per second.`,
  });
  const times = chart({
    label: "Latency of reserves in the last hour",
    series: [{ name: "median", colour: "calm" }, { name: "99%", colour: "warn" }],
    format: latency,
    summary: ({ values }) => `Now ${latency(values[1].at(-1))} for 99 of 100.`,
  });
  const points = new Map();
  let until = Math.ceil(Date.now() / STEP_MS) * STEP_MS;

  function draw() {
    const axis = Array.from({ length: STEPS }, (_, place) => until - (STEPS - place) * STEP_MS);
    const column = (name, perSecond) => axis.map((time) => {
      const value = points.get(time)?.[name];
      return perSecond ? (value ?? 0) / (STEP_MS / 1_000) : (value ?? null);
    });
    const failedAndRefused = axis.map((time) => ((points.get(time)?.refused ?? 0) + (points.get(time)?.failed ?? 0)) / (STEP_MS / 1_000));
    reserves.update({ times: axis, values: [column("allowed", true), column("denied", true), failedAndRefused] });
    times.update({ times: axis, values: [column("p50_us"), column("p99_us")] });
  }

  function take(point) {
    points.set(point.at_unix_ms, point);
    for (const at of points.keys()) if (at < until - STEPS * STEP_MS) points.delete(at);
  }

  async function read() {
    const answer = await get("/v1/charts", {}, signal);
    // The last step is not over: half a step would look like a drop.
    until = answer.until_unix_ms - STEP_MS;
    answer.points.filter((point) => point.at_unix_ms < until).forEach(take);
    draw();
  }

  on("chart", (point) => {
    until = Math.max(until, point.at_unix_ms + STEP_MS);
    take(point);
    draw();
  });
  on("state", (state) => state === "live" && read().catch(() => {}));
  draw();
  read().catch(() => {});
  return h(
    "div",
    { class: "grid" },
    panel("Reserves per second", "last hour, this node", reserves.node),
    panel("Latency", "last hour, this node", times.node),
  );
}

/** Limits that denied calls within the last minute, or are full. */
function binding({ on, usage }) {
  const place = h("div");
  const denials = table("Limits that bind now", [
    { title: "Limit", cell: (one) => limitLink(one.key) },
    { title: "Denials", class: "num", cell: (one) => (one.amount === undefined ? "–" : number(one.amount)) },
    { title: "State", cell: (one) => (one.isFull ? tag("full", "bad") : tag("free again")) },
  ], (one) => one.key);

  function update(event) {
    if (!event) return;
    const full = event.usage.filter((limit) => share(limit) >= 1);
    const isFull = new Set(full.map((limit) => limit.key));
    const rows = event.denied.map((one) => ({ ...one, isFull: isFull.has(one.key) }));
    const denied = new Set(rows.map((one) => one.key));
    rows.push(...full.filter((limit) => !denied.has(limit.key)).map((limit) => ({ key: limit.key, amount: 0, isFull: true })));
    denials.update(rows.slice(0, 12));
    if (rows.length === 0) put(place, empty("Nothing binds", "No limit is full, and none denied a call within the last minute."));
    else if (denials.node.parentNode !== place) put(place, denials.node);
  }

  put(place, empty("No data yet", "The first figures come with live data, within two seconds."));
  on("usage", update);
  update(usage());
  return panel("Binds now", "denied within one minute", place);
}

/** The list of limits, paged by the server. */
function list(context) {
  const { signal, on } = context;
  const query = { sort: "fullness", prefix: "", after: "" };
  const place = h("div");
  const foot = h("div");
  const rows = table("Limits", [
    { title: "Limit", cell: (limit) => h("div", { class: "row" }, limitLink(limit.key), h("span", { class: "note opt" }, limit.kind)) },
    { title: "Fullness", cell: fullness },
    { title: "State", cell: statusOf },
    { title: "Reserved", class: "num opt", cell: (limit) => partOf(limit.reserved, limit.capacity) },
  ], (limit) => limit.key);
  let lastRead = 0;

  function shown({ usage, next }) {
    if (usage.length === 0) {
      put(foot);
      return query.prefix === ""
        ? empty("No limits yet", "Create one with earmark limits put, or apply a file with earmark apply.")
        : empty("No limit begins like this", "Give another beginning of a key.");
    }
    rows.update(usage);
    const count = query.sort === "key" ? `${number(usage.length)} limits` : `The ${number(usage.length)} first by ${query.sort}`;
    const more = next ? () => { query.after = next; read(); } : null;
    const first = query.after === "" ? null : () => { query.after = ""; read(); };
    put(foot, pager(count, { next: more, first }));
    return rows.node.parentNode === place ? null : rows.node;
  }

  function read(quiet = false) {
    lastRead = Date.now();
    return fillWith(place, () => get("/v1/usage", { ...query, page_size: PAGE_SIZE }, signal), shown, { quiet });
  }

  on("usage", (event) => {
    if (query.sort === "fullness" && query.prefix === "") {
      const answer = shown({ usage: event.usage, next: null });
      if (answer) put(place, answer);
    } else if (Date.now() - lastRead >= REREAD_MS) read(true);
  });
  on("state", (state) => state === "live" && read(true));

  const prefix = h("input", { name: "prefix", type: "search", autocomplete: "off", placeholder: "gpt-4o:" });
  const sort = h("select", { name: "sort", on: { change: () => search() } }, ...["fullness", "debt", "key"].map((name) => h("option", { value: name }, name)));
  function search() {
    Object.assign(query, { prefix: prefix.value.trim(), sort: sort.value, after: "" });
    read();
  }
  const filter = form("Filter limits", search, field("Key begins with", prefix), field("Order", sort), h("button", { type: "submit" }, "Show"));
  read();
  return panel("Limits", filter, place, foot);
}
