// Vaults, their accounts, and the balances, holds and history of one account.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { h, put, text } from "./dom.js";
import { compact, number } from "./format.js";
import { grantsPanel, planPanel, spendingPanel, statementPanel } from "./statement.js";
import { at, empty, field, figures, fillWith, form, heading, leaseLink, limitLink, pager, panel, table, tag } from "./parts.js";

const PAGE_SIZE = 100;

export function show(context) {
  return context.parts.length >= 2 ? account(context) : accounts(context);
}

function accountLink(vault, name) {
  return h("a", { class: "key", href: `#/account/${encodeURIComponent(vault)}/${encodeURIComponent(name)}` }, text(name));
}

/** The accounts of a vault, paged by the server. */
function accounts({ parts, signal }) {
  const query = { prefix: "", after: "" };
  let vault = parts[0] ?? "";
  const place = h("div");
  const foot = h("div");
  const vaults = h("select", { name: "vault", on: { change: () => { vault = vaults.value; search(); } } });
  const prefix = h("input", { type: "search", autocomplete: "off", placeholder: "acme" });
  const rows = table("Accounts", [
    { title: "Account", cell: (one) => accountLink(vault, one.account) },
    { title: "Status", cell: (one) => tag(one.status, one.status === "open" ? "good" : "warn") },
    { title: "Available", class: "num", cell: (one) => amounts(one.balances, "available") },
    { title: "Held", class: "num opt", cell: (one) => amounts(one.balances, "held") },
    { title: "Pending", class: "num opt", cell: (one) => amounts(one.balances, "pending") },
  ], (one) => one.account);

  function read() {
    const path = `/v1/vaults/${encodeURIComponent(vault)}/accounts`;
    return fillWith(place, () => get(path, { ...query, page_size: PAGE_SIZE }, signal), ({ accounts: list, next }) => {
      const more = next ? () => { query.after = next; read(); } : null;
      const first = query.after === "" ? null : () => { query.after = ""; read(); };
      put(foot, pager(`${number(list.length)} accounts`, { next: more, first }));
      if (list.length === 0) return query.prefix ? empty("No account begins like this") : empty("No accounts", "Open one with earmark write.");
      rows.update(list);
      return rows.node;
    });
  }

  function search() {
    Object.assign(query, { prefix: prefix.value.trim(), after: "" });
    read();
  }

  async function begin() {
    await fillWith(place, () => get("/v1/vaults", { page_size: 1_000 }, signal), (answer) => {
      put(vaults, ...answer.vaults.map((name) => h("option", { value: name }, name)));
      if (answer.vaults.length === 0) return empty("No vaults", "A vault holds the credit of a namespace. Open one with earmark write.");
      if (!answer.vaults.includes(vault)) vault = answer.vaults[0];
      vaults.value = vault;
      read();
    });
  }

  const filter = form("Filter accounts", search, field("Vault", vaults), field("Account begins with", prefix), h("button", { type: "submit" }, "Show"));
  begin();
  return [heading("Accounts", "Credit by account. Amounts are in minor units of their asset."), panel("Accounts", filter, place, foot)];
}

function amounts(balances, name) {
  if (balances.length === 0) return "–";
  return h("div", { class: "stack" }, ...balances.map((one) => h("span", {}, number(one[name]), " ", h("span", { class: "note" }, one.asset))));
}

/** One account. */
function account({ parts: [vault, name], signal, on }) {
  const base = `/v1/vaults/${encodeURIComponent(vault)}/accounts/${encodeURIComponent(name)}`;
  const state = h("div", { class: "stack" });
  const place = h("div");
  const foot = h("div");
  const curves = h("div", { class: "grid" });
  const holds = h("div");
  let after = "";
  const balances = new Map();

  const entries = table("History", [
    { title: "At", class: "nowrap", cell: (one) => at(one.committed_at_unix_ms) },
    { title: "Entry", cell: (one) => tag(one.kind, KINDS[one.kind]) },
    { title: "Change", class: "num", cell: (one) => changes(one) },
    { title: "Held", class: "num opt", cell: (one) => changes(one, "held") },
    { title: "For", cell: forWhat },
    { title: "Actor", class: "opt", cell: (one) => (one.actor ? text(one.actor, { class: "key" }) : "–") },
  ], (one) => one.number);

  function shown({ entries: list, next }) {
    const more = next ? () => { after = String(next); read(); } : null;
    const first = after === "" ? null : () => { after = ""; read(); };
    put(foot, pager(`${number(list.length)} entries, newest first`, { next: more, first }));
    if (after === "") drawCurves(curves, list, balances);
    if (after === "") put(holds, openHolds(list));
    if (list.length === 0) return empty("No entries", "Nothing was issued, transferred, held or spent yet.");
    entries.update(list);
    return entries.node.parentNode === place ? null : entries.node;
  }

  const readEntries = (quiet) => fillWith(place, () => get(`${base}/entries`, { order: "desc", after, page_size: PAGE_SIZE }, signal), shown, { quiet });
  async function read(quiet = false) {
    const isFine = await fillWith(state, () => get(`${base}/balances`, {}, signal), (answer) => {
      answer.balances.forEach((one) => balances.set(one.asset, one));
      if (answer.balances.length === 0) return h("section", { class: "panel" }, empty("No credit", "This account has no balance in any asset."));
      return h("section", { class: "panel", "aria-label": "Balances" }, ...answer.balances.map((one) => figures(
        ["Asset", one.asset, true],
        ["Available", number(one.available)],
        ["Held by leases", number(one.held)],
        ["Pending", number(one.pending)],
      )));
    }, { quiet });
    if (quiet) [plan, grants].forEach((part) => part.read(true));
    if (isFine) await readEntries(quiet);
    else if (!quiet) put(place, empty("No history"));
  }

  const [plan, grants] = [planPanel(vault, name, signal, at), grantsPanel(base, signal, at)];
  let events = 0;
  on("usage", () => {
    events += 1;
    if (after === "" && events % 3 === 0) read(true);
  });
  read();
  return [
    heading(h("span", {}, text(name, { class: "key" }), h("span", { class: "note" }, " in vault ", text(vault)))),
    state,
    curves,
    plan.node,
    grants.node,
    spendingPanel(base, signal),
    statementPanel(base, signal),
    panel("Holds", "open leases among the newest entries", holds),
    panel("History", "", place, foot),
  ];
}

const KINDS = { transaction: "accent", hold: "warn", settle: "good", release: "", expire: "warn", plan: "accent" };

function changes(entry, name = "amount") {
  return h("div", { class: "stack" }, ...entry.changes.map((one) => {
    const amount = BigInt(one[name]);
    return h("span", {}, amount > 0n ? `+${number(amount)}` : number(amount), " ", h("span", { class: "note" }, one.asset));
  }));
}

function forWhat(entry) {
  if (entry.kind === "transaction") return h("div", { class: "stack" }, ...entry.memos.map((memo) => text(memo)), h("span", { class: "note" }, ...writtenBy(entry)));
  if (entry.kind === "expire") return h("span", { class: "note" }, `a grant of priority ${entry.priority} expired`);
  if (entry.kind === "plan") return h("span", { class: "note" }, `a period of the plan, ${number(entry.carried)} carried over`);
  const labels = Object.entries(entry.labels ?? {}).map(([name, value]) => h("span", { class: "note" }, text(`${name}=${value}`)));
  return h("div", { class: "stack" }, limitLink(entry.limit), leaseLink(entry.lease_id), ...labels);
}

/** The identity of a write: its client and sequence, or its idempotency key. */
function writtenBy(entry) {
  if (entry.idempotency_key) return ["under the key ", text(entry.idempotency_key)];
  return [`by ${entry.client_id} number ${entry.sequence}`];
}

/** Holds that no later entry settled or released. */
function openHolds(list) {
  const open = new Map();
  for (const entry of [...list].reverse()) {
    if (entry.kind === "hold") open.set(`${entry.lease_id} ${entry.limit}`, entry);
    else if (entry.lease_id) open.delete(`${entry.lease_id} ${entry.limit}`);
  }
  if (open.size === 0) return empty("No open holds", "No lease holds credit of this account.");
  const rows = table("Open holds", [
    { title: "Since", class: "nowrap", cell: (one) => at(one.committed_at_unix_ms) },
    { title: "Amount", class: "num", cell: (one) => number(one.hold) },
    { title: "Limit", cell: (one) => limitLink(one.limit) },
    { title: "Lease", cell: (one) => leaseLink(one.lease_id) },
  ], (one) => one.number);
  rows.update([...open.values()].reverse());
  return rows.node;
}

/** The available balance over time, back from the current one by the changes of the newest entries. */
function drawCurves(place, list, balances) {
  const shown = [];
  for (const [asset, balance] of balances) {
    let level = BigInt(balance.available);
    const points = [[Date.now(), level]];
    for (const entry of list) {
      const change = entry.changes.find((one) => one.asset === asset);
      if (!change) continue;
      points.push([entry.committed_at_unix_ms, level]);
      level -= BigInt(change.amount);
      points.push([entry.committed_at_unix_ms - 1, level]);
    }
    if (points.length < 3) continue;
    points.reverse();
    const curve = chart({
      label: `Available ${asset} over time`,
      series: [{ name: `available ${asset}`, colour: "good" }],
      format: (value) => compact(value),
      summary: () => `From ${number(points[0][1])} to ${number(points.at(-1)[1])}.`,
    });
    curve.update({ times: points.map(([time]) => time), values: [points.map(([, amount]) => Number(amount))] });
    shown.push(panel(`Balance, ${asset}`, `over the newest ${number(list.length)} entries`, curve.node));
  }
  put(place, ...shown);
}
