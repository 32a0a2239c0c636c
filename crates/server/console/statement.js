// The credit of an account: its statement by month and label, its spending by day, its grants and its plan.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { h, put, text } from "./dom.js";
import { compact, number, percent, utcDay } from "./format.js";
import { empty, field, figures, fillWith, form, panel, table } from "./parts.js";

const MOVEMENTS = [
  ["opening", "Opening"],
  ["issued", "Issued"],
  ["received", "Received"],
  ["transferred_in", "Transferred in"],
  ["spent", "Spent"],
  ["transferred_out", "Transferred out"],
  ["expired", "Expired"],
  ["retired", "Retired"],
  ["closing", "Closing"],
];

/** The beginning of a month in UTC, `offset` months after this one. */
function month(value, offset = 0) {
  const [year, place] = value.split("-").map(Number);
  return Date.UTC(year, place - 1 + offset);
}

/** The panel with the statement of one account. It is read when it is asked for: it reads the whole history. */
export function statementPanel(base, signal) {
  const place = h("div");
  const period = h("input", { type: "month", value: new Date().toISOString().slice(0, 7) });
  const label = h("input", { type: "text", autocomplete: "off", placeholder: "model", value: "model" });

  function read() {
    const isMonth = /^\d{4}-\d{2}$/.test(period.value);
    const query = isMonth ? { since: month(period.value), until: month(period.value, 1) } : {};
    query.group_by = label.value.trim();
    fillWith(place, () => get(`${base}/statement`, query, signal), ({ assets, next }) => {
      if (assets.length === 0) return empty("No entries", "The account had no credit until the end of this month.");
      const note = next ? h("p", { class: "note lead" }, "The label has more values than are shown. earmark statement lists all.") : null;
      return h("div", { class: "stack" }, ...assets.map((asset) => one(asset, query.group_by)), note);
    });
  }

  put(place, empty("A month of this account", "Opening and closing balance, and spending by a label such as model, user or key."));
  const ask = form("Statement", read, field("Month, in UTC", period), field("Spending by label", label), h("button", { type: "submit" }, "Show"));
  return panel("Statement", "", ask, place);
}

/** The statement of one asset. */
function one(asset, label) {
  const shown = MOVEMENTS.filter(([name]) => name === "opening" || name === "closing" || asset[name] !== "0");
  const lines = figures(["Asset", asset.asset, true], ...shown.map(([name, title]) => [title, number(asset[name])]));
  const groups = asset.groups ?? [];
  if (groups.length === 0) return h("div", {}, lines, label ? empty("Nothing was spent in this month") : null);
  const all = Number(asset.spent);
  const rows = table(`Spending by ${label}`, [
    { title: label, cell: (group) => (group.value === null ? h("span", { class: "note" }, "without this label") : text(group.value, { class: "key" })) },
    { title: "Spent", class: "num", cell: (group) => number(group.spent) },
    { title: "Share", cell: (group) => bar(Number(group.spent) / all) },
    { title: "Settlements", class: "num opt", cell: (group) => number(group.settlements) },
  ], (group) => group.value ?? "");
  rows.update([...groups].sort((a, b) => Number(b.spent) - Number(a.spent)));
  return h("div", {}, lines, rows.node);
}

/** A bar, and its share as text. */
function bar(part) {
  const fill = h("div", { class: "fill" });
  fill.style.width = `${(part * 100).toFixed(1)}%`;
  return h("div", { class: "bar" }, h("div", { class: "track", "aria-hidden": "true" }, fill), h("span", { class: "share" }, percent(part)));
}

/** The grants of an account in spending order, with their expiry: the panel, and how to read it again. */
export function grantsPanel(base, signal, at) {
  const place = h("div");
  const rows = table("Grants", [
    { title: "Asset", cell: (one) => one.asset },
    { title: "Remaining", class: "num", cell: (one) => number(one.remaining) },
    { title: "Held", class: "num opt", cell: (one) => number(one.held) },
    { title: "Priority", class: "num", cell: (one) => number(one.priority) },
    { title: "Expires", class: "nowrap", cell: (one) => (one.expires_at_unix_ms ? at(one.expires_at_unix_ms) : "never") },
  ], (one) => `${one.asset} ${one.priority} ${one.expires_at_unix_ms ?? ""}`);
  const read = (quiet) => fillWith(place, () => get(`${base}/grants`, {}, signal), ({ grants }) => {
    if (grants.length === 0) return empty("No credit");
    rows.update(grants);
    return rows.node.parentNode === place ? null : rows.node;
  }, { quiet });
  read(false);
  return { node: panel("Grants", "in spending order", place), read };
}

/** The plan of an account: the panel, and how to read it again. */
export function planPanel(vault, name, signal, at) {
  const place = h("div");
  const path = `/v1/vaults/${encodeURIComponent(vault)}/accounts`;
  const read = (quiet) => fillWith(place, () => get(path, { prefix: name, page_size: 1 }, signal), ({ accounts }) => {
    const plan = accounts.find((one) => one.account === name)?.plan;
    if (!plan) return empty("No plan", "A plan issues an amount once per calendar period. Set one with earmark write.");
    return figures(
      ["Asset", plan.asset, true],
      [`Per ${plan.period}`, number(plan.amount)],
      ["Carry-over", plan.carry_over === "none" ? "none" : `up to ${number(plan.carry_over.max)}`],
      ["Offset from UTC", `${plan.utc_offset_minutes} min`, true],
      ["Issues next", plan.next_at_unix_ms ? at(plan.next_at_unix_ms) : "once the clocks agree", true],
    );
  }, { quiet });
  read(false);
  return { node: panel("Plan", "", place), read };
}

const DAY_MS = 86_400_000;
/** Entries read for the chart at most: ten pages. */
const SPENDING_PAGES = 10;

/** A chart of what settlements took, by day. It is drawn when it is asked for: it reads the entries of the period. */
export function spendingPanel(base, signal) {
  const place = h("div");
  const days = h("select", { name: "days" }, ...[7, 30, 90].map((count) => h("option", { value: String(count) }, `${count} days`)));
  days.value = "30";

  function read() {
    const today = Math.floor(Date.now() / DAY_MS);
    const since = (today - Number(days.value) + 1) * DAY_MS;
    fillWith(place, () => settlements(base, since, signal), ({ spent, isWhole }) => {
      if (spent.size === 0) return empty("Nothing was spent", "No settlement took credit in this period.");
      const note = isWhole ? null : h("p", { class: "note lead" }, "Only the newest entries of this period are counted.");
      return h("div", {}, ...[...spent].map(([asset, byDay]) => spendingChart(asset, byDay, since, today)), note);
    });
  }

  put(place, empty("Spending by day", "What settlements took from this account, by day in UTC."));
  const ask = form("Spending", read, field("Period", days), h("button", { type: "submit" }, "Draw"));
  return panel("Spending", "", ask, place);
}

/** The amounts that settlements took since a time, by asset and day. */
async function settlements(base, since, signal) {
  const spent = new Map();
  let after;
  for (let page = 0; page < SPENDING_PAGES; page += 1) {
    const query = { since, order: "desc", page_size: 1_000, after };
    const { entries, next } = await get(`${base}/entries`, query, signal);
    for (const entry of entries) {
      if (entry.kind === "settle") entry.changes.forEach((change) => count(spent, change, entry.committed_at_unix_ms));
    }
    if (!next) return { spent, isWhole: true };
    after = next;
  }
  return { spent, isWhole: false };
}

/** Adds what a settlement took. Credit that it received is not spending. */
function count(spent, change, at) {
  const net = BigInt(change.amount) + BigInt(change.held);
  if (net >= 0n) return;
  const byDay = spent.get(change.asset) ?? new Map();
  const day = Math.floor(at / DAY_MS);
  byDay.set(day, (byDay.get(day) ?? 0n) - net);
  spent.set(change.asset, byDay);
}

function spendingChart(asset, byDay, since, today) {
  const first = since / DAY_MS;
  const all = Array.from({ length: today - first + 1 }, (_, place) => first + place);
  const sum = [...byDay.values()].reduce((one, other) => one + other, 0n);
  const drawn = chart({
    label: `Spending of ${asset} by day`,
    series: [{ name: `spent ${asset}`, colour: "calm" }],
    format: (value) => compact(value),
    when: utcDay,
    latest: "today",
    steps: true,
    summary: () => `${number(sum)} in ${all.length} days.`,
  });
  // The last day ends with a point of its own, so that it is as wide as the others.
  const levels = all.map((day) => Number(byDay.get(day) ?? 0n));
  drawn.update({ times: [...all, today + 1].map((day) => day * DAY_MS), values: [[...levels, levels.at(-1)]] });
  return h("div", {}, h("p", { class: "note lead" }, `${number(sum)} ${asset} in ${all.length} days`), drawn.node);
}
