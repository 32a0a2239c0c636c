// The API keys, without their secrets.

import { get } from "./api.js";
import { h, text } from "./dom.js";
import { number } from "./format.js";
import { at, empty, field, fillWith, heading, panel, table, tag } from "./parts.js";

/** Keys that are drawn at once. The server lists all of them in one answer. */
const SHOWN_MAX = 200;

export function show({ signal, session }) {
  const place = h("div");
  const note = h("span", { class: "note" });
  const search = h("input", { type: "search", autocomplete: "off", on: { input: () => update() } });
  let all = [];
  const rows = table("Keys", [
    { title: "Name", cell: (key) => h("span", { class: "stack" }, text(key.name), h("span", { class: "key note" }, key.key_id)) },
    { title: "Role", cell: (key) => tag(key.role, key.role === "admin" ? "accent" : "") },
    { title: "Namespace", cell: (key) => text(key.namespace, { class: "key" }) },
    { title: "State", cell: stateOf },
    { title: "Labels", class: "opt", cell: (key) => labels(key) },
    { title: "Created", class: "opt", cell: (key) => h("span", { class: "stack" }, at(key.created_at_unix_ms), text(key.created_by, { class: "note" })) },
  ], (key) => key.key_id);

  function update() {
    const asked = search.value.trim();
    const found = all.filter((key) => [key.name, key.key_id, key.namespace, key.role].some((value) => value.includes(asked)));
    rows.update(found.slice(0, SHOWN_MAX));
    note.textContent = found.length > SHOWN_MAX ? `The first ${number(SHOWN_MAX)} of ${number(found.length)}; search for others.` : `${number(found.length)} keys`;
  }

  fillWith(place, () => get("/v1/admin/keys", {}, signal), ({ keys }) => {
    all = keys.sort((one, other) => other.created_at_unix_ms - one.created_at_unix_ms);
    if (all.length === 0) return empty("No keys", "This server is open to programs on its machine. Create a key with earmark key create.");
    update();
    return rows.node;
  });
  const whose = session.namespace === "default" ? "Of all namespaces." : "Of this namespace.";
  return [
    heading("Keys", `${whose} Keys are created and revoked with earmark key.`),
    panel("Keys", h("span", { class: "form" }, field("Search", search), note), place),
  ];
}

function stateOf(key) {
  if (key.revoked_at_unix_ms !== null) return h("span", { class: "tags" }, tag("revoked", "bad"), at(key.revoked_at_unix_ms));
  if (key.expires_at_unix_ms === null) return tag("valid", "good");
  const isOver = key.expires_at_unix_ms <= Date.now();
  return h("span", { class: "tags" }, tag(isOver ? "expired" : "valid until", isOver ? "bad" : "good"), at(key.expires_at_unix_ms));
}

function labels(key) {
  const all = Object.entries(key.labels);
  if (all.length === 0 && key.may_set.length === 0) return "–";
  return h(
    "div",
    { class: "stack" },
    ...all.map(([name, value]) => h("span", { class: "key" }, `${name}=`, text(value))),
    key.may_set.length > 0 ? h("span", { class: "note" }, `may set ${key.may_set.join(", ")}`) : null,
  );
}
