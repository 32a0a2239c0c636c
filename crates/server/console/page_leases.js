// Leases, looked up by their id.

import { get } from "./api.js";
import { h, put, text } from "./dom.js";
import { duration, number } from "./format.js";
import { at, empty, field, figures, fillWith, form, heading, limitLink, panel, table, tag } from "./parts.js";

const STATES = {
  live: ["accent", "It holds what it reserved."],
  completed: ["good", "It was completed; its usage is settled."],
  denied: ["bad", "It was denied and stays denied."],
  expired: ["warn", "It ran out before it was completed."],
};

export function show({ parts, signal, on }) {
  const id = parts[0] ?? "";
  const input = h("input", { name: "lease", value: id, size: 30, maxlength: 26, autocomplete: "off", spellcheck: "false", class: "mono", placeholder: "01J…" });
  const place = h("div", { class: "stack" });
  const open = () => {
    const asked = input.value.trim();
    if (asked !== "") location.hash = `#/lease/${encodeURIComponent(asked)}`;
  };
  const look = form("Look up a lease", open, field("Lease id (a ULID)", input), h("button", { type: "submit", class: "primary" }, "Look up"));
  if (id === "") put(place, h("section", { class: "panel" }, empty("Look up a lease", "A caller gets its lease id with its call; the gateway sends it as x-earmark-lease. Denials link to their leases.")));
  else {
    const read = (quiet) => fillWith(place, () => get(`/v1/leases/${encodeURIComponent(id)}`, {}, signal), ({ lease }) => view(lease), { quiet });
    read(false);
    on("usage", () => read(true));
  }
  const title = id === "" ? "Leases" : h("span", {}, "Lease ", text(id, { class: "key" }));
  return [heading(title), panel("Look up", "", h("div", { class: "body" }, look)), place];
}

function view(lease) {
  const [kind, about] = STATES[lease.state] ?? ["", ""];
  const used = new Map(lease.used.map((part) => [part.key, part.actual_amount]));
  const rows = table("Reservations", [
    { title: "Limit", cell: (part) => limitLink(part.key) },
    { title: "Reserved", class: "num", cell: (part) => number(part.amount) },
    { title: "Used so far", class: "num", cell: (part) => (used.has(part.key) ? number(used.get(part.key)) : "–") },
  ], (part) => part.key);
  rows.update(lease.requirements);
  const left = lease.ends_at_unix_ms - Date.now();
  return h(
    "div",
    { class: "stack" },
    h(
      "section",
      { class: "panel", "aria-label": "Lease" },
      figures(
        ["State", h("span", { class: "stack" }, h("span", {}, tag(lease.state, kind)), h("span", { class: "note" }, about)), true],
        ["Reserved at", lease.reserved_at_unix_ms ? at(lease.reserved_at_unix_ms) : "–", true],
        ["Ends", lease.ends_at_unix_ms ? h("span", {}, at(lease.ends_at_unix_ms), left > 0 ? ` (in ${duration(left)})` : "") : "no timeout", true],
        ["Extensions", number(lease.extensions), true],
        ["Job", lease.job_id ? text(lease.job_id, { class: "key" }) : "–", true],
      ),
    ),
    panel("Reservations", "", rows.node),
  );
}
