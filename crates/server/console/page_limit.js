// One limit: its usage, its definition and its recent decisions.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { h, put, text } from "./dom.js";
import { compact, duration, number } from "./format.js";
import { at, decisionTable, empty, figures, fillWith, fullness, heading, isSameDecision, pager, pairs, panel, statusOf, tag } from "./parts.js";
import { pauseButton } from "./pause.js";

const PAGE_SIZE = 50;
/** Samples of the usage that the page keeps: ten minutes. */
const SAMPLES_MAX = 300;

export function show(context) {
  const { parts, signal, on, session, announce } = context;
  const key = parts[0] ?? "";
  const base = `/v1/admin/limits/${encodeURIComponent(key)}`;
  const marks = h("span", { class: "tags" });
  const action = h("span", { class: "tags" });
  const state = h("div");
  const definition = h("div");
  const history = chart({
    label: "Reserved since this page was opened",
    series: [{ name: "reserved", colour: "calm" }, { name: "capacity", colour: "bad" }],
    format: (value) => compact(value),
    steps: true,
    summary: ({ values }) => `Now ${compact(values[0].at(-1) ?? 0)} of ${compact(values[1].at(-1) ?? 0)}.`,
  });
  const samples = { times: [], values: [[], []] };

  function took(usage) {
    samples.times.push(Date.now());
    samples.values[0].push(Number(usage.reserved));
    samples.values[1].push(Number(usage.capacity));
    if (samples.times.length > SAMPLES_MAX) [samples.times, ...samples.values].forEach((list) => list.shift());
    history.update(samples);
  }

  function current(usage) {
    took(usage);
    put(marks, statusOf(usage));
    const parts = [
      ["Fullness", fullness(usage)],
      ["Reserved", number(usage.reserved)],
      ["Available", number(usage.available)],
      ["Capacity", number(usage.capacity)],
      ["Debt", number(usage.debt)],
    ];
    if (usage.pending_decrease_to !== null && usage.pending_decrease_to !== undefined) parts.push(["Decreasing to", number(usage.pending_decrease_to)]);
    return figures(...parts);
  }

  function defined({ limit }) {
    const changed = (how) => {
      announce(`Limit ${how}`);
      readDefinition(true);
      readUsage(true);
    };
    const next = pauseButton(session, { key, ...limit }, changed);
    // The dialog returns the focus to its button, which must not be replaced by an equal one.
    if (!action.firstChild?.isEqualNode(next) || action.firstChild === null) {
      const hadFocus = action.contains(document.activeElement);
      put(action, next);
      if (hadFocus) action.querySelector("button")?.focus();
    }
    const { kind, unit, description, window_seconds: windowSeconds, timeout_seconds: timeoutSeconds, overage, period } = limit.definition;
    const paused = limit.paused_until_unix_ms > Date.now();
    return h(
      "div",
      { class: "body" },
      pairs(
        ["Kind", kind],
        ["Unit", unit ? text(unit) : ""],
        ["Description", description ? text(description) : ""],
        ["Window", windowSeconds ? duration(windowSeconds * 1_000) : ""],
        ["Timeout", timeoutSeconds ? duration(timeoutSeconds * 1_000) : ""],
        ["Period", period ? `${period}, UTC${offset(limit.definition.utc_offset_minutes)}` : ""],
        ["Account", limit.definition.account ? accountLink(limit.definition) : ""],
        ["Overage", overage],
        ["Enforced", limit.definition.enforce === false ? tag("no, shadow only", "warn") : "yes"],
        ["Shared", limit.definition.shared ? "with all namespaces" : ""],
        ["Template", limit.template ? text(limit.template, { class: "key" }) : ""],
        ["Paused until", paused ? at(limit.paused_until_unix_ms) : ""],
        ["Reason", paused && limit.pause_reason ? text(limit.pause_reason) : ""],
        ["Revision", number(limit.revision)],
      ),
    );
  }

  const readUsage = (quiet) => fillWith(state, () => get(`${base}/usage`, {}, signal), current, { quiet });
  const readDefinition = (quiet) => fillWith(definition, () => get(base, {}, signal), defined, { quiet });
  on("usage", () => readUsage(true));
  on("state", (now) => now === "live" && readDefinition(true));
  readUsage(false);
  readDefinition(false);
  const title = text(key, { class: "key" });
  return [
    heading(title, null, marks, action),
    h("div", {}, state),
    h("div", { class: "grid" }, panel("Reserved", "while this page is open", history.node), panel("Definition", "", definition)),
    decisions(context, key),
  ];
}

function offset(minutes = 0) {
  const sign = minutes < 0 ? "−" : "+";
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `${sign}${hours}:${String(rest).padStart(2, "0")}`;
}

function accountLink({ vault, account, asset }) {
  return h("a", { class: "key", href: `#/account/${encodeURIComponent(vault)}/${encodeURIComponent(account)}` }, text(`${vault} / ${account} (${asset})`));
}

/** The recent decisions about a limit. The log is filtered by the beginning of a key, so others are left out here. */
function decisions({ signal, on }, key) {
  const place = h("div");
  const foot = h("div");
  const rows = decisionTable("Recent decisions", key);
  let all = [];
  let after = "";
  const isOfLimit = (one) => one.limits.some((limit) => limit.key === key);

  function update(next) {
    if (all.length === 0) {
      put(place, empty("No decisions", "Nothing about this limit was denied, refused or overdrawn lately on this node."));
    } else {
      rows.update(all);
      if (rows.node.parentNode !== place) put(place, rows.node);
    }
    const more = next ? () => { after = next; read(); } : null;
    put(foot, next || after !== "" ? pager(`${number(all.length)} decisions`, { next: more, first: after === "" ? null : () => { after = ""; read(); } }) : null);
  }

  function read(quiet = false) {
    const query = { key, after, page_size: PAGE_SIZE };
    return fillWith(place, () => get("/v1/decisions", query, signal), (page) => {
      all = page.decisions.filter(isOfLimit);
      update(page.next);
    }, { quiet });
  }

  on("decision", (one) => {
    if (after !== "" || !isOfLimit(one) || all.some((other) => isSameDecision(one, other))) return;
    all = [one, ...all].slice(0, PAGE_SIZE);
    update(null);
  });
  on("state", (state) => state === "live" && after === "" && read(true));
  read();
  return panel("Recent decisions", "newest first, live", place, foot);
}
