// The frame of the console: signing in, navigation and the state of the connection.

import { Problem, get, useKey } from "./api.js";
import { h, put, set, text } from "./dom.js";
import { Live } from "./live.js";
import { connection, denied, failed, loading } from "./parts.js";
import * as accounts from "./page_accounts.js";
import * as changes from "./page_changes.js";
import * as denials from "./page_denials.js";
import * as keys from "./page_keys.js";
import * as leases from "./page_leases.js";
import * as limit from "./page_limit.js";
import * as limits from "./page_limits.js";
import * as nodes from "./page_nodes.js";
import * as policy from "./page_policy.js";

const READERS = ["reader", "writer", "admin"];

/** The roles of each right, as the server has them. */
const RIGHTS = {
  read: { roles: READERS },
  explain: { roles: [...READERS, "gateway"] },
  pause: { roles: ["writer", "gateway", "admin"] },
  // A gateway may only lengthen a pause.
  resume: { roles: ["writer", "admin"] },
  manage: { roles: ["admin"] },
  operate: { roles: ["admin"], ofDefault: true },
};

/** The pages in the order of the navigation: title, first part of the path, right and module. */
const PAGES = [
  ["Limits", "limits", "read", limits],
  ["Denials", "denials", "read", denials],
  ["Leases", "leases", "read", leases],
  ["Accounts", "accounts", "read", accounts],
  ["Policy", "policy", "explain", policy],
  ["Nodes", "nodes", "operate", nodes],
  ["Keys", "keys", "manage", keys],
  ["Changes", "changes", "manage", changes],
];

/** Pages of one thing, and the entry of the navigation that they belong to. */
const DETAILS = { limit: ["limits", "read", limit], lease: ["leases", "read", leases], account: ["accounts", "read", accounts] };

const app = document.getElementById("app");
const announcer = document.getElementById("announce");

/** Says something to screen readers. */
function announce(message) {
  put(announcer, message);
}

function sessionOf({ actor, namespace, role }, hasKey) {
  const may = (right) => RIGHTS[right].roles.includes(role) && (!RIGHTS[right].ofDefault || namespace === "default");
  const needs = (right) => {
    const { roles, ofDefault } = RIGHTS[right];
    const list = roles.length === 1 ? roles[0] : `${roles.slice(0, -1).join(", ")} or ${roles.at(-1)}`;
    return ofDefault ? `${list} in namespace default` : list;
  };
  return { actor, namespace, role, hasKey, may, needs };
}

async function begin() {
  put(app, h("main", { class: "gate" }, loading()));
  try {
    const { needs_key: needsKey } = await get("/console/server.json");
    if (needsKey) return signIn();
    enter(sessionOf(await get("/v1/whoami"), false));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    put(app, h("main", { class: "gate" }, h("div", { class: "card" }, failed(error, begin))));
  }
}

function signIn(why) {
  useKey(null);
  const problem = h("div", { role: "alert" }, why ? h("p", { class: "problem" }, why) : null);
  const input = h("input", { type: "password", name: "key", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "key-note" });
  const go = h("button", { type: "submit", class: "primary" }, "Sign in");
  const submit = async (event) => {
    event.preventDefault();
    const key = input.value.trim();
    if (key === "") return put(problem, h("p", { class: "problem" }, "Give a key."));
    go.disabled = true;
    useKey(key);
    try {
      const who = await get("/v1/whoami");
      input.value = "";
      enter(sessionOf(who, true));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      useKey(null);
      const message = error.status === 401 ? "This key is not valid." : error.status === 403 ? error.message : "The server does not answer. Try again.";
      put(problem, h("p", { class: "problem" }, text(message)));
      go.disabled = false;
      input.focus();
    }
  };
  document.title = "Sign in – Earmark";
  put(
    app,
    h(
      "main",
      { class: "gate" },
      h(
        "div",
        { class: "card" },
        h("div", { class: "brand" }, h("img", { src: "/console/icon.svg", alt: "" }), "Earmark"),
        h("h1", {}, "Sign in"),
        h("form", { on: { submit } }, h("label", { class: "field" }, h("span", {}, "API key"), input), problem, go),
        h("p", { class: "note", id: "key-note" }, "The key stays in the memory of this page, and is gone when you reload or close it. A key of role reader sees everything of its namespace."),
      ),
    ),
  );
  input.focus();
}

function enter(session) {
  const live = new Live();
  const place = h("main", { id: "main" });
  const navigation = h("ul");
  const state = h("span", { class: "state connecting" }, h("span", { class: "dot", "aria-hidden": "true" }), h("span", {}, "Connecting"));
  const banner = h("div", { class: "banner", role: "alert", hidden: true });
  let page = null;

  function leave(why) {
    live.stop();
    page?.leave();
    window.removeEventListener("hashchange", navigate);
    signIn(why);
  }

  const out = h("button", { type: "button", class: "plain", on: { click: () => leave() } }, "Sign out");
  put(
    app,
    h("a", { class: "skip", href: "#main", on: { click: (event) => { event.preventDefault(); place.querySelector("h1")?.focus(); } } }, "Skip to content"),
    h(
      "div",
      { class: "frame" },
      h(
        "header",
        { class: "side" },
        h("div", { class: "brand" }, h("img", { src: "/console/icon.svg", alt: "" }), "Earmark"),
        h("nav", { "aria-label": "Pages" }, navigation),
        h(
          "div",
          { class: "who" },
          h("span", { class: "more" }, h("strong", {}, text(session.actor))),
          h("span", { class: "more" }, "Namespace ", text(session.namespace)),
          h("span", {}, "Role ", h("strong", {}, session.role)),
          session.hasKey ? h("span", {}, out) : h("span", { class: "more" }, "Open server, no key"),
        ),
      ),
      h("div", { class: "main" }, h("aside", { "aria-label": "Connection" }, h("div", { class: "top" }, state), banner), place),
    ),
  );

  const STATES = { live: "Live", connecting: "Connecting", offline: "Disconnected", "signed-out": "Signed out" };
  live.addEventListener("state", ({ detail }) => {
    state.setAttribute("class", `state ${detail}`);
    set(state.lastChild, STATES[detail]);
    banner.hidden = detail !== "offline";
    const why = live.reason === "" ? "The server does not answer." : `The server refuses live data: ${live.reason}.`;
    put(banner, detail === "offline" ? text(`${why} What you see may be old; it is updated once the server is back.`) : "");
    if (detail === "live") {
      announce("Connected");
      connection.dispatchEvent(new Event("back"));
    }
    if (detail === "signed-out") leave("This key is no longer valid. Sign in with another one.");
  });

  function mark(current) {
    put(
      navigation,
      ...PAGES.map(([title, path, right]) => {
        const isOpen = session.may(right);
        const link = h("a", { href: `#/${path}`, "aria-current": path === current ? "page" : null }, title);
        if (!isOpen) link.append(h("span", { class: "lock" }, "locked"));
        return h("li", {}, link);
      }),
    );
  }

  function navigate() {
    page?.leave();
    const [path = "", ...names] = location.hash.replace(/^#\/?/, "").split("/");
    const parts = names.map(decoded);
    const detail = DETAILS[path];
    const [title, current, right, module] = detail ? [parts.at(-1) ?? "", ...detail] : (PAGES.find(([, name]) => name === path) ?? PAGES[0]);
    mark(current);
    document.title = `${title} – Earmark`;
    const controller = new AbortController();
    const listeners = [];
    const context = {
      session,
      parts,
      signal: controller.signal,
      announce,
      usage: () => live.usage,
      on(name, listener) {
        const listen = ({ detail: data }) => listener(data);
        live.addEventListener(name, listen);
        listeners.push([name, listen]);
      },
    };
    page = {
      leave() {
        controller.abort();
        listeners.forEach(([name, listen]) => live.removeEventListener(name, listen));
      },
    };
    if (session.may(right)) put(place, ...module.show(context));
    else put(place, h("h1", { tabindex: "-1" }, title), h("section", { class: "panel" }, denied(session.needs(right), session.role)));
    window.scrollTo(0, 0);
    if (isLater) place.querySelector("h1")?.focus({ preventScroll: true });
    isLater = true;
    announce(`${title}`);
  }
  let isLater = false;

  window.addEventListener("hashchange", navigate);
  navigate();
  if (session.may("read")) live.start();
  else put(state.lastChild, "No live data");
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

begin();
