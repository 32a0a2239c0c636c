// The one action of the console: to pause a limit, and to resume it.

import { Problem, post } from "./api.js";
import { h, put, text } from "./dom.js";
import { duration } from "./format.js";
import { field } from "./parts.js";

const LENGTHS = [["1 minute", 60_000], ["5 minutes", 300_000], ["15 minutes", 900_000], ["1 hour", 3_600_000]];

/** The button of a limit. Where the role does not allow it, it is disabled and names the role that is needed. */
export function pauseButton(session, limit, changed) {
  const isPaused = (limit.paused_until_unix_ms ?? 0) > Date.now();
  const label = isPaused ? "Resume" : "Pause";
  const mayResume = session.may("resume");
  if (!session.may("pause") || (isPaused && !mayResume)) {
    const needed = isPaused ? session.needs("resume") : session.needs("pause");
    const why = `${label} needs role ${needed}; this key has role ${session.role}`;
    return h(
      "span",
      { class: "tags" },
      h("button", { type: "button", "aria-disabled": "true", title: why, on: { click: (event) => event.preventDefault() } }, label),
      h("span", { class: "note" }, `needs role ${needed}`),
    );
  }
  const open = (event) => confirm(limit, isPaused, changed, event.currentTarget);
  return h("button", { type: "button", "aria-haspopup": "dialog", on: { click: open } }, isPaused ? "Resume…" : "Pause…");
}

function confirm(limit, isPaused, changed, opener) {
  const problem = h("div", { role: "alert" });
  const length = h("select", { name: "length" }, ...LENGTHS.map(([name, ms]) => h("option", { value: ms }, name)));
  length.value = "300000";
  const reason = h("input", { name: "reason", maxlength: 200, autocomplete: "off" });
  const name = isPaused ? "Resume" : "Pause";
  const go = h("button", { type: "submit", class: "primary" }, `${name} limit`);
  const close = () => dialog.close();
  const consequences = h("ul");
  const explain = () =>
    put(
      consequences,
      ...(isPaused
        ? ["New reserves are admitted again at once, up to its capacity, on every node.", "Its reserved amounts stay as they are."]
        : [
            `For ${duration(Number(length.value))} every new reserve that names this limit is refused with limit_paused, on every node.`,
            "Callers are told the remaining time and may retry with the same lease.",
            "Running leases keep what they hold, and complete as usual.",
            "It resumes by itself. The change log names this key.",
          ]
      ).map((line) => h("li", {}, line)),
    );
  length.addEventListener("change", explain);
  explain();

  async function submit(event) {
    event.preventDefault();
    go.disabled = true;
    put(problem);
    const body = isPaused ? { for_ms: 0 } : { for_ms: Number(length.value), reason: reason.value || undefined };
    try {
      await post(`/v1/admin/limits/${encodeURIComponent(limit.key)}/pause`, body);
      dialog.close();
      changed(isPaused ? "resumed" : "paused");
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      put(problem, h("p", { class: "problem" }, text(error.message)));
      go.disabled = false;
    }
  }

  const title = h("h2", { id: "pause-title" }, `${name} `, text(limit.key, { class: "key" }), "?");
  const fields = isPaused ? [] : [field("For", length), field("Reason, shown to people", reason)];
  const dialog = h(
    "dialog",
    { "aria-labelledby": "pause-title" },
    h("form", { on: { submit } }, title, consequences, ...fields, problem, h("div", { class: "actions" }, h("button", { type: "button", on: { click: close } }, "Cancel"), go)),
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (opener.isConnected) opener.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}
