// The policy of the namespace, and what it decides about a call.

import { Problem, get, post } from "./api.js";
import { h, lines, put, text } from "./dom.js";
import { number } from "./format.js";
import { denied, empty, field, fillWith, form, heading, limitLink, loading, panel, partOf, table, tag } from "./parts.js";

const EXAMPLE = "tenant=acme\nmodel=gpt-4o";

export function show(context) {
  return [heading("Policy", "Which limits a call needs and what it costs. Explain reads, and takes nothing."), h("div", { class: "grid" }, explain(context), document_(context))];
}

function document_({ session, signal }) {
  const place = h("div");
  const absent = (error) => {
    if (error.status !== 404) throw error;
    return { policy: null };
  };
  if (!session.may("operate")) put(place, denied(session.needs("operate"), session.role));
  else fillWith(place, () => get("/v1/admin/policy", {}, signal).catch(absent), ({ policy, revision }) => {
    if (policy === null) return empty("No policy", "Callers name their limits themselves. Put one with earmark policy put, or apply a file.");
    return h("pre", { tabindex: "0", role: "region", "aria-label": `The policy, revision ${revision}` }, ...lines(policy));
  });
  return panel("Document", `namespace ${session.namespace}`, place);
}

function explain({ signal, announce }) {
  const attributes = h("textarea", { name: "attributes", spellcheck: "false", rows: 4 });
  attributes.value = EXAMPLE;
  const count = (name, value) => h("input", { name, inputmode: "numeric", value, size: 9, autocomplete: "off" });
  const [input, output] = [count("input", "1200"), count("output", "500")];
  const result = h("div", { "aria-live": "polite" });

  async function ask() {
    const pairs = attributes.value.split("\n").map((line) => line.trim()).filter((line) => line !== "");
    const wrong = pairs.find((line) => !line.includes("="));
    if (wrong !== undefined) return put(result, h("p", { class: "problem" }, "Write one attribute a line, as name=value; found ", text(wrong)));
    const named = Object.fromEntries(pairs.map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]));
    put(result, loading());
    try {
      const answer = await post("/v1/calls/explain", { attributes: named, input_tokens_max: Number(input.value), output_tokens_max: Number(output.value) }, signal);
      put(result, ...explained(answer));
      announce(answer.allowed ? "The call would be allowed" : "The call would not be allowed");
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Problem)) throw error;
      put(result, h("p", { class: "problem" }, text(error.message)));
    }
  }

  const asked = form(
    "Explain a call",
    ask,
    h("label", { class: "field", "data-wide": true }, h("span", {}, "Attributes, one a line: name=value"), attributes),
    field("Input tokens, at most", input),
    field("Output tokens, at most", output),
    h("button", { type: "submit", class: "primary" }, "Explain"),
  );
  return panel("Explain a call", "", h("div", { class: "body" }, asked), result);
}

function explained(answer) {
  const rules = table("Rules", [
    { title: "Rule", cell: (rule) => text(rule.name) },
    { title: "Applies", cell: (rule) => (rule.matched ? h("span", { class: "matched" }, "yes") : h("span", { class: "unmatched" }, "no")) },
  ], (rule) => rule.name);
  rules.update(answer.rules ?? []);
  const limits = table("Limits of the call", [
    { title: "Limit", cell: (limit) => limitLink(limit.key) },
    { title: "Amount", class: "num", cell: (limit) => number(limit.amount) },
    { title: "Available", class: "num", cell: (limit) => partOf(limit.available, limit.capacity) },
    { title: "Fits", cell: (limit) => (limit.fits ? tag("yes", "good") : tag("no", "bad")) },
  ], (limit) => limit.key);
  limits.update(answer.limits ?? []);
  const said = answer.message ?? answer.error;
  return [
    h(
      "div",
      { class: "body tags" },
      answer.allowed ? tag("would be allowed", "good") : tag("would not be allowed", "bad"),
      answer.cost !== undefined && answer.cost !== null ? h("span", {}, "at most ", number(answer.cost), " minor units") : null,
      said ? text(said, { class: "note" }) : null,
    ),
    (answer.rules ?? []).length > 0 ? rules.node : null,
    (answer.limits ?? []).length > 0 ? limits.node : null,
  ];
}
