// The decision log: denials, refusals, timeouts and overages.

import { get } from "./api.js";
import { h, put } from "./dom.js";
import { number } from "./format.js";
import { decisionTable, empty, field, fillWith, form, heading, isSameDecision, pager, panel } from "./parts.js";

const PAGE_SIZE = 50;
const OUTCOMES = ["", "denied", "refused", "timeout", "overage"];

export function show({ signal, on, announce }) {
  const query = { outcome: "", key: "", actor: "", job: "", after: "" };
  const place = h("div");
  const foot = h("div");
  const dropped = h("span", { class: "note" });
  const rows = decisionTable("Decisions");
  let all = [];
  let next = null;

  function accepts(one) {
    return (
      (query.outcome === "" || one.outcome === query.outcome) &&
      (query.key === "" || one.limits.some((limit) => limit.key.startsWith(query.key))) &&
      (query.actor === "" || one.actor === query.actor) &&
      (query.job === "" || one.job_id === query.job)
    );
  }

  function update() {
    if (all.length === 0) {
      const isFiltered = query.outcome || query.key || query.actor || query.job;
      put(place, isFiltered ? empty("Nothing matches", "Another filter may show more.") : empty("No denials", "This node denied, refused and overdrew nothing lately."));
    } else {
      rows.update(all);
      if (rows.node.parentNode !== place) put(place, rows.node);
    }
    const more = next ? () => { query.after = next; read(); } : null;
    const first = query.after === "" ? null : () => { query.after = ""; read(); };
    put(foot, pager(`${number(all.length)} decisions${query.after === "" ? ", live" : ""}`, { next: more, first }));
  }

  function read(quiet = false) {
    return fillWith(place, () => get("/v1/decisions", { ...query, page_size: PAGE_SIZE }, signal), (page) => {
      all = page.decisions;
      next = page.next;
      update();
      if (!quiet) announce(`${all.length} decisions`);
    }, { quiet });
  }

  on("decision", (one) => {
    if (query.after !== "" || !accepts(one) || all.some((other) => isSameDecision(one, other))) return;
    all = [one, ...all].slice(0, PAGE_SIZE);
    update();
  });
  on("dropped", ({ count }) => put(dropped, `${number(count)} decisions came too fast to be shown; the log has them.`));
  on("state", (state) => state === "live" && query.after === "" && read(true));

  const outcome = h("select", { name: "outcome", on: { change: () => search() } }, ...OUTCOMES.map((name) => h("option", { value: name }, name || "all")));
  const [key, actor, job] = ["gpt-4o:", "client:billing", "job-7"].map((hint) => h("input", { type: "search", autocomplete: "off", placeholder: hint }));
  function search() {
    Object.assign(query, { outcome: outcome.value, key: key.value.trim(), actor: actor.value.trim(), job: job.value.trim(), after: "" });
    read();
  }
  const filter = form(
    "Filter decisions",
    search,
    field("Outcome", outcome),
    field("Key begins with", key),
    field("Actor", actor),
    field("Job", job),
    h("button", { type: "submit" }, "Show"),
  );
  read();
  return [
    heading("Denials", "Why a call was denied or refused, which leases timed out, and which used more than they reserved. Each node has its own log."),
    panel("Decisions", filter, dropped, place, foot),
  ];
}
