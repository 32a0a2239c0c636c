// The change log: transactions and changes of limits, keys and policies, with their actors.

import { get } from "./api.js";
import { h, put, text } from "./dom.js";
import { number } from "./format.js";
import { at, empty, field, fillWith, form, heading, pager, panel, table, tag } from "./parts.js";

const PAGE_SIZE = 50;

export function show({ signal }) {
  const query = { key: "", actor: "", after: "" };
  const place = h("div");
  const foot = h("div");
  const rows = table("Changes", [
    { title: "At", class: "nowrap", cell: (one) => at(one.at_unix_ms) },
    { title: "Kind", class: "opt", cell: (one) => tag(one.kind) },
    { title: "Change", cell: (one) => h("span", { class: "stack" }, text(one.summary, { class: "key wrap" }), difference(one)) },
    { title: "Actor", cell: (one) => text(one.actor, { class: "key" }) },
    { title: "Namespace", class: "opt", cell: (one) => h("span", { class: "key" }, text(one.namespace), one.vault ? [" / ", text(one.vault)] : null) },
  ], (one) => one.place);

  function read() {
    return fillWith(place, () => get("/v1/audit", { ...query, page_size: PAGE_SIZE }, signal), ({ entries, next }) => {
      const more = next ? () => { query.after = next; read(); } : null;
      const first = query.after === "" ? null : () => { query.after = ""; read(); };
      put(foot, pager(`${number(entries.length)} changes, newest first`, { next: more, first }));
      if (entries.length === 0) return empty(query.key || query.actor ? "Nothing matches" : "No changes", query.key || query.actor ? "Another filter may show more." : "Nothing was changed yet.");
      rows.update(entries);
      return rows.node;
    });
  }

  const [key, actor] = ["gpt-4o:rpm", "user:alice"].map((hint) => h("input", { type: "search", autocomplete: "off", placeholder: hint }));
  const search = () => {
    Object.assign(query, { key: key.value.trim(), actor: actor.value.trim(), after: "" });
    read();
  };
  const filter = form("Filter changes", search, field("Key", key), field("Actor", actor), h("button", { type: "submit" }, "Show"));
  read();
  return [heading("Changes", "Who changed what: limits, templates, pauses, keys, quotas, policies and transactions."), panel("Changes", filter, place, foot)];
}

/** The fields that a change of a definition gave other values. */
function difference(entry) {
  const changed = entry.limits ?? (entry.old !== undefined ? [entry] : []);
  const said = changed.flatMap(({ old, new: next }) => {
    if (!old || !next) return [];
    const names = [...new Set([...Object.keys(old), ...Object.keys(next)])].filter((name) => old[name] !== next[name]);
    return names.map((name) => `${name} ${shown(old[name])} → ${shown(next[name])}`);
  });
  if (entry.kind === "pause" && entry.reason) said.push(entry.reason);
  return said.length === 0 ? null : h("span", { class: "note" }, ...said.map((line, place) => [place > 0 ? ", " : "", text(line)]));
}

function shown(value) {
  return typeof value === "number" || typeof value === "bigint" ? number(value) : value === undefined || value === "" ? "nothing" : String(value);
}
