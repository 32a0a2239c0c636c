// The statement of an account: a period, the movements in it, and the spending by a label.

import { get } from "./api.js";
import { h, put, text } from "./dom.js";
import { number, percent } from "./format.js";
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
    fillWith(place, () => get(`${base}/statement`, query, signal), ({ assets }) => {
      if (assets.length === 0) return empty("No entries", "The account had no credit until the end of this month.");
      return h("div", { class: "stack" }, ...assets.map((asset) => one(asset, query.group_by)));
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

/** The grants of an account in spending order, with their expiry. */
export function grantsPanel(base, signal, at) {
  const place = h("div");
  const rows = table("Grants", [
    { title: "Asset", cell: (one) => one.asset },
    { title: "Remaining", class: "num", cell: (one) => number(one.remaining) },
    { title: "Held", class: "num opt", cell: (one) => number(one.held) },
    { title: "Priority", class: "num", cell: (one) => number(one.priority) },
    { title: "Expires", class: "nowrap", cell: (one) => (one.expires_at_unix_ms ? at(one.expires_at_unix_ms) : "never") },
  ], (one) => `${one.asset} ${one.priority} ${one.expires_at_unix_ms ?? ""}`);
  fillWith(place, () => get(`${base}/grants`, {}, signal), ({ grants }) => {
    if (grants.length === 0) return empty("No credit");
    rows.update(grants);
    return rows.node;
  });
  return panel("Grants", "in spending order", place);
}
