// Pieces that all pages share: panels, tables, states and small marks.

import { h, put, text } from "./dom.js";
import { compact, duration, iso, moment, number, percent, share } from "./format.js";
import { Problem } from "./api.js";

/** The heading of a page. It takes the focus after a navigation. */
export function heading(title, about, ...actions) {
  return h(
    "div",
    { class: "head" },
    h("h1", { tabindex: "-1" }, title),
    h("div", { class: "tags" }, ...actions),
    about ? h("p", { class: "about" }, about) : null,
  );
}

let panels = 0;

/** A titled box. */
export function panel(title, note, ...children) {
  panels += 1;
  const id = `panel-${panels}`;
  return h(
    "section",
    { class: "panel", "aria-labelledby": id },
    h("header", {}, h("h2", { id }, title), note instanceof Node ? note : h("span", { class: "note" }, note ?? "")),
    ...children,
  );
}

export function loading() {
  return h("div", { class: "bones", role: "status" }, h("span", { class: "hidden" }, "Loading"), h("i"), h("i"), h("i"), h("i"));
}

export function empty(title, about) {
  return h("div", { class: "blank" }, h("strong", {}, title), about ? h("p", {}, about) : null);
}

/** The state of a page that the role of the key does not show. */
export function denied(needed, role) {
  return h(
    "div",
    { class: "blank denied" },
    h("strong", {}, "Not allowed with this key"),
    h("p", {}, `This page needs role ${needed}; this key has role ${role}.`),
  );
}

/** The state after a failed request. */
export function failed(problem, retry) {
  const title = problem.status === 0 ? "The server does not answer" : problem.status === 404 ? "Not found" : "The server refused";
  const about = problem.status === 0 ? "This page shows its data again once the server is back." : problem.message;
  return h(
    "div",
    { class: problem.status === 404 ? "blank" : "blank failed" },
    h("strong", {}, title),
    h("p", {}, text(about)),
    retry ? h("button", { type: "button", on: { click: retry } }, "Try again") : null,
  );
}

/** Emits `back` when the server answers again. */
export const connection = new EventTarget();

/**
 * Fills a place with the answer to a request: bones first, then the answer or what went wrong. Without an answer it asks
 * again once the server is back.
 */
export async function fillWith(place, read, show, { quiet = false } = {}) {
  if (!quiet) put(place, loading());
  place.setAttribute("aria-busy", "true");
  try {
    const answer = await read();
    const shown = show(answer);
    if (shown) put(place, shown);
    return true;
  } catch (error) {
    if (error.name === "AbortError") return false;
    if (!(error instanceof Problem)) throw error;
    if (quiet) return false;
    const again = () => fillWith(place, read, show);
    put(place, failed(error, again));
    const shown = place.firstChild;
    if (error.status === 0) connection.addEventListener("back", () => shown.isConnected && again(), { once: true });
    return false;
  } finally {
    place.removeAttribute("aria-busy");
  }
}

/**
 * A table whose rows are kept by their key, so that an update leaves unchanged cells, and the focus, where they are.
 * A column: `title`, `cell(row)`, and `class`.
 */
export function table(label, columns, keyOf) {
  const body = h("tbody");
  const head = h("tr", {}, ...columns.map(({ title, class: kind }) => h("th", { scope: "col", class: kind }, title)));
  const node = h(
    "div",
    { class: "scroll", role: "region", "aria-label": `${label}, table`, tabindex: "0" },
    h("table", {}, h("caption", { class: "hidden" }, label), h("thead", {}, head), body),
  );
  let rows = new Map();
  return {
    node,
    update(list) {
      const next = new Map();
      for (const row of list) {
        const key = keyOf(row);
        const cells = columns.map(({ cell, class: kind }) => h("td", { class: kind }, cell(row)));
        const kept = rows.get(key);
        if (kept) {
          cells.forEach((cell, place) => {
            if (!kept.children[place].isEqualNode(cell)) kept.children[place].replaceWith(cell);
          });
        }
        next.set(key, kept ?? h("tr", {}, ...cells));
      }
      const order = [...next.values()];
      const isSame = order.length === body.children.length && order.every((row, place) => row === body.children[place]);
      // Rows do not move under a focused link.
      const isHeld = body.contains(document.activeElement) && order.length === rows.size && order.every((row) => row.parentNode === body);
      if (!isSame && !isHeld) body.replaceChildren(...order);
      rows = next;
    },
  };
}

/** Buttons for the pages of a list that the server pages. */
export function pager(count, { next, first }) {
  return h(
    "div",
    { class: "pager" },
    h("span", {}, count),
    first ? h("button", { type: "button", on: { click: first } }, "First page") : null,
    next ? h("button", { type: "button", on: { click: next } }, "Next page") : null,
  );
}

export function tag(label, kind) {
  return h("span", { class: kind ? `tag ${kind}` : "tag" }, label);
}

/** The reserved share of a limit, as a bar and in numbers. */
export function fullness(limit) {
  const part = Math.min(1, share(limit));
  const fill = h("div", { class: "fill" });
  fill.style.width = `${(part * 100).toFixed(1)}%`;
  const kind = part >= 1 ? "bar full" : part >= 0.8 ? "bar warn" : "bar";
  return h("div", { class: kind }, h("div", { class: "track", "aria-hidden": "true" }, fill), h("span", { class: "share" }, percent(share(limit))));
}

/** An amount in a narrow column: a long one in few characters, with all of them as its title. */
function amount(value) {
  const all = number(value);
  return all.length <= 9 ? all : h("span", { title: all }, compact(Number(value)));
}

/** A part of a whole, such as the reserved amount of a capacity. */
export function partOf(part, whole) {
  return h("span", {}, amount(part), h("span", { class: "note" }, " of ", amount(whole)));
}

/** The state of a limit in words. */
export function statusOf(limit) {
  const marks = [];
  const left = (limit.paused_until_unix_ms ?? 0) - Date.now();
  if (left > 0) marks.push(tag(`paused, ${duration(left)} left`, "warn"));
  if (limit.status === "decreasing") marks.push(tag("decreasing", "warn"));
  if (marks.length === 0) marks.push(share(limit) >= 1 ? tag("full", "bad") : tag("open", "good"));
  if (Number(limit.debt) > 0) marks.push(tag(`debt ${compact(Number(limit.debt))}`, "warn"));
  return h("div", { class: "tags" }, ...marks);
}

/** A link to a limit. One of another namespace cannot be read. */
export function limitLink(key) {
  if (key.startsWith("!")) return text(key, { class: "key" });
  return h("a", { class: "key", href: `#/limit/${encodeURIComponent(key)}` }, text(key));
}

export function leaseLink(id) {
  return h("a", { class: "key", href: `#/lease/${encodeURIComponent(id)}` }, id);
}

export function at(unixMs) {
  return h("time", { datetime: iso(unixMs), title: iso(unixMs), class: "nowrap" }, moment(unixMs));
}

const OUTCOMES = { denied: "bad", refused: "warn", timeout: "warn", overage: "accent" };

export function outcome(name) {
  return tag(name, OUTCOMES[name]);
}

/** A list of figures: name and value of each. */
export function figures(...all) {
  return h(
    "dl",
    { class: "figures" },
    ...all.map(([name, value, isSmall]) => h("div", { class: "figure" }, h("dt", {}, name), h("dd", { class: isSmall ? "small" : null }, value))),
  );
}

export function pairs(...all) {
  const filled = all.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("dl", { class: "pairs" }, ...filled.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function field(label, control) {
  return h("label", { class: "field" }, h("span", {}, label), control);
}

/** A form that asks for something on its own page. It never leaves the page, and never puts a value into its URL. */
export function form(label, submit, ...children) {
  const listener = (event) => {
    event.preventDefault();
    submit(event.currentTarget);
  };
  return h("form", { class: "form", "aria-label": label, novalidate: true, on: { submit: listener } }, ...children);
}

/** The limits of a decision, with the amounts where this node knows them. */
export function decisionLimits(decision) {
  if (decision.limits.length === 0) return h("span", { class: "note" }, "by policy");
  const one = (limit) => h("div", { class: "stack" }, limitLink(limit.key), h("span", { class: "note" }, amountsOf(limit)));
  return h("div", { class: "stack" }, ...decision.limits.map(one));
}

/** The amounts of a limit in a decision. */
function amountsOf(limit) {
  if (limit.asked === undefined) return "";
  const asked = `${number(limit.asked)} asked`;
  return limit.available === undefined ? asked : `${asked}, ${number(limit.available)} of ${number(limit.capacity)} available`;
}

/** The table of decisions; of one limit without the names that it has anyway. */
export function decisionTable(label, ofLimit = null) {
  const asked = (one) => amountsOf(one.limits.find((limit) => limit.key === ofLimit) ?? {});
  const columns = [
    { title: "Decision", cell: decisionOf },
    ofLimit === null ? { title: "Limits in the way", cell: decisionLimits } : { title: "Asked", class: "nowrap", cell: asked },
    { title: "Actor and job", class: "opt", cell: (one) => h("div", { class: "stack" }, text(one.actor, { class: "key" }), one.job_id ? text(one.job_id, { class: "key note" }) : null) },
    ofLimit === null ? { title: "Attributes", class: "opt", cell: attributesOf } : null,
    { title: "Lease", cell: (one) => leaseLink(one.lease_id) },
  ];
  return table(label, columns.filter((column) => column !== null), (one) => `${one.lease_id} ${one.outcome} ${Math.round(one.at_unix_ms / 1_000)}`);
}

/** The time and the outcome of a decision, and how often it was repeated. */
function decisionOf(decision) {
  const repeated = decision.repeated > 0 ? h("span", { class: "note" }, `+${number(decision.repeated)}`) : null;
  return h("div", { class: "stack" }, at(decision.at_unix_ms), h("div", { class: "tags" }, outcome(decision.outcome), repeated));
}

function attributesOf(decision) {
  // The attribute `key` repeats the actor.
  const all = Object.entries(decision.attributes ?? {}).filter(([name]) => name !== "key");
  if (all.length === 0) return "–";
  return h("div", { class: "tags attributes" }, ...all.map(([name, value]) => h("span", { class: "key" }, `${name}=`, text(value))));
}

/** Whether two records are of the same decision: an event and its line in the log may differ by some milliseconds. */
export function isSameDecision(one, other) {
  return one.lease_id === other.lease_id && one.outcome === other.outcome && Math.abs(one.at_unix_ms - other.at_unix_ms) < 1_000;
}
