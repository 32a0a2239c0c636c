// Checks the console in a real Chromium: node check.mjs BINARY PACKAGES [SCREENSHOTS]

import { createRequire } from "node:module";
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { HOSTILE, Server, fill, lease } from "./server.mjs";

const [binary, packages, screenshots] = process.argv.slice(2);
const require = createRequire(join(packages, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
/** Timeout of each step; far longer than any takes. */
const PATIENCE_MS = 20_000;

/** The pages: path, title, and what a page with data shows. */
const PAGES = [
  ["limits", "Limits", "gpt-4o:rpm"],
  ["limit/gpt-4o%3Arpm", "gpt-4o:rpm", "Definition"],
  ["denials", "Denials", "gpt-4o:rpm"],
  ["leases", "Leases", "Look up a lease"],
  ["accounts", "Accounts", "acme"],
  ["account/main/acme", "acme", "invoice 2081"],
  ["policy", "Policy", "Explain a call"],
  ["nodes", "Nodes", "leader"],
  ["keys", "Keys", "reader"],
  ["changes", "Changes", "put_limit"],
];
/** The pages that each role sees. The others name the role that they need. */
const READS = ["limits", "limit/gpt-4o%3Arpm", "denials", "leases", "accounts", "account/main/acme", "policy"];
const SEES = {
  admin: PAGES.map(([path]) => path),
  writer: READS,
  reader: READS,
  gateway: ["policy"],
  caller: [],
};

let failures = 0;
async function claim(name, proof) {
  try {
    await proof();
    console.log(`ok    ${name}`);
  } catch (error) {
    failures += 1;
    console.log(`FAIL  ${name}\n      ${String(error.stack ?? error).replaceAll("\n", "\n      ")}`);
  }
}

function must(condition, message) {
  if (!condition) throw new Error(message);
}

/** A tab, with everything that it asked for and said. */
async function tab(browser, base, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 820 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const seen = { requests: [], errors: [], said: [] };
  page.on("request", (request) => seen.requests.push(request.url()));
  page.on("pageerror", (error) => seen.errors.push(String(error)));
  page.on("console", (message) => {
    seen.said.push(message.text());
    if (["error", "warning"].includes(message.type())) seen.errors.push(message.text());
  });
  await page.goto(`${base}/console`);
  return { context, page, seen };
}

async function signIn(page, key) {
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("navigation").waitFor();
}

async function visit(page, path, title) {
  await page.evaluate((hash) => { location.hash = hash; }, `#/${path}`);
  await page.locator("h1", { hasText: title }).waitFor();
  await page.locator("main .bones, main [aria-busy]").first().waitFor({ state: "detached" });
}

async function accessible(page, what) {
  // The tool is put in by the debugger, which the policy of the page does not bind.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const said = violations.map((one) => `${one.id}: ${one.help} at ${one.nodes.map((node) => node.target.join(" ")).join("; ")}`);
  must(violations.length === 0, `${what} breaks rules of axe-core:\n${said.join("\n")}`);
}

async function picture(page, name) {
  if (!screenshots) return;
  mkdirSync(screenshots, { recursive: true });
  await page.screenshot({ path: join(screenshots, `${name}.png`) });
}

const server = await new Server(binary).start();
const names = await fill(server);
const roles = { admin: server.key };
for (const role of ["writer", "reader", "gateway", "caller"]) roles[role] = await server.newKey(`console-${role}`, role);
const browser = await chromium.launch({ executablePath: CHROMIUM, args: FLAGS });

try {
  for (const [role, key] of Object.entries(roles)) {
    await claim(`every page as ${role}: its data or the role that it needs, accessible, without errors`, async () => {
      const { context, page, seen } = await tab(browser, server.url);
      await page.getByLabel("API key").waitFor();
      await accessible(page, "signing in");
      await signIn(page, key);
      for (const [path, title, content] of PAGES) {
        await visit(page, path, title);
        const shown = page.locator("main");
        if (SEES[role].includes(path)) {
          await shown.getByText(content).first().waitFor();
          must((await shown.getByText("Not allowed with this key").count()) === (path === "policy" && role !== "admin" ? 1 : 0), `${path} is denied to ${role}`);
        } else {
          await shown.getByText(/This page needs role .*; this key has role /).waitFor();
        }
        await accessible(page, `${path} as ${role}`);
        if (role === "admin") await picture(page, `light-${path.replaceAll(/[^a-z]+/g, "-")}`);
      }
      must(seen.errors.length === 0, `the browser said: ${seen.errors.join("\n")}`);
      const elsewhere = seen.requests.filter((url) => !url.startsWith(server.url));
      must(elsewhere.length === 0, `requests to elsewhere: ${elsewhere}`);
      must(seen.requests.filter((url) => url.includes("/v1/events")).length === (SEES[role].includes("limits") ? 1 : 0), "not one event stream");
      await context.close();
    });
  }

  await claim("a key of role client cannot sign in, and its holder is told why", async () => {
    const { context, page } = await tab(browser, server.url);
    await page.getByLabel("API key").fill(await server.newKey("console-client", "client"));
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByText("this key has role client, which calls through a gateway only").waitFor();
    await accessible(page, "a refused key");
    await context.close();
  });

  await claim("an admin of another namespace sees that namespace only, and no server", async () => {
    const { context, page, seen } = await tab(browser, server.url);
    await signIn(page, await server.newKey("console-team", "admin", "team"));
    for (const [path, title, content] of [["limits", "Limits", "No limits yet"], ["denials", "Denials", "No denials"], ["keys", "Keys", "console-team"], ["changes", "Changes", "create_key"]]) {
      await visit(page, path, title);
      await page.locator("main").getByText(content).first().waitFor();
      must((await page.locator("main").getByText(/gpt-4o|console-reader/).count()) === 0, `${path} shows another namespace`);
    }
    await visit(page, "nodes", "Nodes");
    await page.getByText(/This page needs role admin in namespace default; this key has role admin/).waitFor();
    must(seen.errors.length === 0, seen.errors.join("\n"));
    await context.close();
  });

  await claim("live: a new denial and its limit are shown without a reload", async () => {
    const { context, page } = await tab(browser, server.url);
    await signIn(page, roles.reader);
    await visit(page, "denials", "Denials");
    await page.getByText("Live", { exact: true }).waitFor();
    const id = lease();
    await server.ask("POST", "/v1/reserve", { lease_id: id, job_id: "job-live", requirements: [{ key: "gpt-4o:rpm", amount: 2 }] });
    await page.getByRole("link", { name: id }).waitFor();
    await visit(page, "limit/gpt-4o%3Arpm", "gpt-4o:rpm");
    await page.getByRole("link", { name: id }).first().click();
    await page.getByText("It was denied and stays denied.").waitFor();
    await context.close();
  });

  await claim("lists are paged by the server and filtered", async () => {
    const { context, page, seen } = await tab(browser, server.url);
    await signIn(page, roles.reader);
    await visit(page, "limits", "Limits");
    await page.getByLabel("Order").selectOption("key");
    await page.getByText("50 limits").waitFor();
    await page.getByRole("button", { name: "Next page" }).click();
    await page.getByRole("button", { name: "First page" }).waitFor();
    must(seen.requests.some((url) => url.includes("after=")), "the next page was not asked for");
    await page.getByLabel("Key begins with").fill("claude");
    await page.keyboard.press("Enter");
    await page.getByText("2 limits").waitFor();
    await page.getByLabel("Key begins with").fill("nothing");
    await page.keyboard.press("Enter");
    await page.getByText("No limit begins like this").waitFor();
    await context.close();
  });

  await claim("an account shows its plan, its spending by day and its statement", async () => {
    const { context, page, seen } = await tab(browser, server.url);
    await signIn(page, roles.reader);
    await visit(page, "account/main/acme", "acme");
    await page.getByText("Per month").waitFor();
    await page.getByRole("button", { name: "Draw" }).click();
    await page.getByText("84,210 usd in 30 days").waitFor();
    await page.getByRole("button", { name: "Show" }).click();
    await page.getByText("Closing").waitFor();
    await accessible(page, "an account with its spending");
    await picture(page, "account");
    must(seen.errors.length === 0, seen.errors.join("\n"));
    await context.close();
  });

  await claim("pausing is disabled for a reader, with the role that it needs", async () => {
    const { context, page } = await tab(browser, server.url);
    await signIn(page, roles.reader);
    await visit(page, "limit/team%3Asearch%3Arpm", "team:search:rpm");
    const button = page.getByRole("button", { name: "Pause" });
    must((await button.getAttribute("aria-disabled")) === "true", "the button is enabled");
    await page.getByText("needs role writer, gateway or admin").waitFor();
    await button.click({ force: true });
    must((await page.locator("dialog").count()) === 0, "a dialog opened");
    await picture(page, "denied-action");
    await context.close();
  });

  await claim("a writer pauses and resumes by the keyboard alone, and confirms what will happen", async () => {
    const { context, page, seen } = await tab(browser, server.url);
    await page.getByLabel("API key").waitFor();
    await page.keyboard.type(roles.writer);
    await page.keyboard.press("Enter");
    await page.getByRole("navigation").waitFor();
    await page.keyboard.press("Tab");
    must((await page.evaluate(() => document.activeElement.textContent)) === "Skip to content", "the skip link is not first");
    await page.keyboard.press("Enter");
    must((await page.evaluate(() => document.activeElement.tagName)) === "H1", "the skip link does not lead to the heading");
    const link = page.getByRole("region", { name: "Limits, table" }).getByRole("link", { name: "team:search:rpm" });
    await link.waitFor();
    for (let tries = 0; tries < 80 && !(await link.evaluate((node) => node === document.activeElement)); tries += 1) await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.locator("h1", { hasText: "team:search:rpm" }).waitFor();
    must((await page.evaluate(() => document.activeElement.tagName)) === "H1", "the heading has no focus after a navigation");
    const pause = page.getByRole("button", { name: "Pause…" });
    await pause.waitFor();
    await page.keyboard.press("Tab");
    must(await pause.evaluate((node) => node === document.activeElement), "the button is not next");
    await page.keyboard.press("Enter");
    const dialog = page.getByRole("dialog", { name: /Pause team:search:rpm/ });
    await dialog.getByText("every new reserve that names this limit is refused with limit_paused").waitFor();
    await accessible(page, "the dialog");
    await picture(page, "light-pause");
    await page.keyboard.press("Escape");
    must(await pause.evaluate((node) => node === document.activeElement), "the focus does not return");
    await page.keyboard.press("Enter");
    await dialog.getByLabel("Reason").focus();
    await page.keyboard.type(HOSTILE);
    await page.keyboard.press("Enter");
    await page.getByText(/paused, .* left/).first().waitFor();
    const { limit } = await server.ask("GET", "/v1/admin/limits/team:search:rpm");
    must(limit.paused_until_unix_ms > Date.now() && limit.pause_reason === HOSTILE, "the server has no such pause");
    const refused = await server.ask("POST", "/v1/reserve", { lease_id: lease(), requirements: [{ key: "team:search:rpm", amount: 1 }] });
    must(refused.error === "limit_paused:team:search:rpm", `found ${JSON.stringify(refused)}`);
    await page.getByRole("button", { name: "Resume…" }).press("Enter");
    await page.getByRole("dialog").getByRole("button", { name: "Resume limit" }).press("Enter");
    await page.getByRole("button", { name: "Pause…" }).waitFor();
    must(!(await server.ask("GET", "/v1/admin/limits/team:search:rpm")).limit.paused_until_unix_ms, "it is still paused");
    must(seen.errors.length === 0, seen.errors.join("\n"));
    await context.close();
  });

  await claim("hostile texts are shown as text, and hidden characters by their number", async () => {
    const { context, page, seen } = await tab(browser, server.url);
    await signIn(page, roles.admin);
    for (const [path, title] of [["limit/gpt-4o%3Arpm", "gpt-4o:rpm"], ["account/main/acme", "acme"], ["changes", "Changes"], ["policy", "Policy"]]) {
      await visit(page, path, title);
      await page.getByText('<img src=x onerror="window.hacked=1"><b>bold</b>').first().waitFor();
      must((await page.locator("main img, main b").count()) === 0, `${path} has markup from a text`);
      if (path !== "policy") {
        await page.getByText("U+202E").first().waitFor();
        if (path !== "changes") await page.getByText("U+001B").first().waitFor();
      }
      const raw = await page.evaluate(() => /[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\u200b]/.test(document.body.textContent));
      must(!raw, `${path} has characters that hide or reorder text`);
    }
    await page.evaluate(() => { location.hash = "#/limit/%3Cscript%3Ewindow.hacked=1%3C%2Fscript%3E"; });
    await page.locator("h1", { hasText: "<script>" }).waitFor();
    must((await page.evaluate(() => window.hacked)) === undefined, "a text was executed");
    must(seen.errors.every((error) => error.includes("400")), seen.errors.join("\n"));
    await context.close();
  });

  await claim("the key is in no URL, no storage, no log and no message", async () => {
    const { context, page, seen } = await tab(browser, server.url);
    await signIn(page, roles.reader);
    for (const [path, title] of PAGES.slice(0, 7)) await visit(page, path, title);
    const secret = roles.reader;
    must(!page.url().includes("emk_") && seen.requests.every((url) => !url.includes("emk_")), "a URL has the key");
    const kept = await page.evaluate(async () => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, await indexedDB.databases(), await caches.keys(), history.state, document.documentElement.outerHTML]));
    must(!kept.includes(secret), "the page keeps the key outside its memory");
    must((await context.cookies()).length === 0, "there are cookies");
    must(seen.said.every((line) => !line.includes(secret)), "the browser said the key");
    must(!server.output.includes(secret), "the log of the server has the key");
    await page.reload();
    await page.getByLabel("API key").waitFor();
    await context.close();
  });

  await claim("a server that goes away is named, and its data come back with it", async () => {
    const { context, page } = await tab(browser, server.url);
    await signIn(page, roles.reader);
    await page.getByText("Live", { exact: true }).waitFor();
    await server.stop();
    await page.getByRole("alert").getByText("The server does not answer.").waitFor();
    await accessible(page, "a disconnected page");
    await picture(page, "disconnected");
    await visit(page, "leases", "Leases");
    await page.evaluate((hash) => { location.hash = hash; }, `#/lease/${names.open}`);
    await page.getByText("This page shows its data again once the server is back.").waitFor();
    await server.start();
    await page.getByText("Live", { exact: true }).waitFor();
    await visit(page, `lease/${names.open}`, "Lease");
    await page.getByText("It holds what it reserved.").waitFor();
    await context.close();
  });

  await claim("every page without an answer asks again by itself once the server is back", async () => {
    const { context, page, seen } = await tab(browser, server.url);
    await signIn(page, roles.admin);
    await page.getByText("Live", { exact: true }).waitFor();
    for (const [path, title, content] of PAGES.filter(([path]) => path !== "leases")) {
      await server.stop();
      await page.getByRole("alert").getByText("The server does not answer.").waitFor();
      await page.evaluate((hash) => { location.hash = hash; }, `#/${path}`);
      await page.locator("h1", { hasText: title }).waitFor();
      await page.locator("main").getByText("The server does not answer").first().waitFor();
      await server.start();
      await page.locator("main").getByText(content).first().waitFor();
      if (path === "policy") await page.locator("main").getByText('name   = "tenant"').waitFor();
      // The other parts of the page get their answers a moment later.
      await page.locator("main").getByText("The server does not answer").first().waitFor({ state: "detached" });
    }
    must(seen.errors.every((error) => error.includes("Failed to load resource") || error.includes("net::ERR")), seen.errors.join("\n"));
    await context.close();
  });

  await claim("a server that is silent counts as away", async () => {
    const { context, page } = await tab(browser, server.url);
    await signIn(page, roles.reader);
    await page.getByText("Live", { exact: true }).waitFor();
    server.process.kill("SIGSTOP");
    await page.getByRole("alert").getByText("The server does not answer.").waitFor();
    server.process.kill("SIGCONT");
    await page.getByText("Live", { exact: true }).waitFor();
    await context.close();
  });

  await claim("a refused event stream is explained", async () => {
    const { context, page } = await tab(browser, server.url);
    const key = await server.newKey("console-many", "reader");
    const controller = new AbortController();
    const open = () => fetch(`${server.url}/v1/events`, { headers: { authorization: `Bearer ${key}` }, signal: controller.signal });
    const streams = await Promise.all(Array.from({ length: 16 }, open));
    must(streams.every((stream) => stream.ok), "a stream was refused too early");
    await signIn(page, key);
    await page.getByRole("alert").getByText("The server refuses live data: this caller has 16 open event streams").waitFor();
    await page.getByRole("link", { name: "gpt-4o:rpm" }).first().waitFor();
    await accessible(page, "a page without live data");
    controller.abort();
    await page.getByText("Live", { exact: true }).waitFor();
    await context.close();
  });

  await claim("a revoked key is signed out, and a wrong one is refused", async () => {
    const { context, page } = await tab(browser, server.url);
    const key = await server.newKey("console-gone", "reader");
    await signIn(page, key);
    await page.getByText("Live", { exact: true }).waitFor();
    await server.ask("DELETE", `/v1/admin/keys/${key.split("_")[1]}`);
    await page.getByText("This key is no longer valid.").waitFor();
    await page.getByLabel("API key").fill(key);
    await page.keyboard.press("Enter");
    await page.getByText("This key is not valid.").waitFor();
    await context.close();
  });

  await claim("dark, on a phone and with enlarged text it is readable and fits the screen", async () => {
    for (const [name, options] of [
      ["dark", { colorScheme: "dark" }],
      ["phone", { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2 }],
      ["phone-dark", { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, colorScheme: "dark" }],
      ["zoomed", { viewport: { width: 640, height: 410 }, deviceScaleFactor: 2 }],
    ]) {
      const { context, page } = await tab(browser, server.url, options);
      await signIn(page, roles.admin);
      for (const [path, title] of PAGES) {
        await visit(page, path, title);
        await accessible(page, `${path}, ${name}`);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        must(wide <= 0, `${path}, ${name}, is ${wide} pixels too wide`);
        await picture(page, `${name}-${path.replaceAll(/[^a-z]+/g, "-")}`);
      }
      await context.close();
    }
  });

  await claim("an open server needs no key, and an empty one says what to do", async () => {
    const open = await new Server(binary, { inMemory: true }).start();
    try {
      const { context, page, seen } = await tab(browser, open.url);
      await page.getByText("No limits yet").waitFor();
      await accessible(page, "an empty server");
      await picture(page, "light-empty");
      for (const [path, title, content] of [["denials", "Denials", "No denials"], ["nodes", "Nodes", "One server, in memory"], ["policy", "Policy", "No policy"], ["keys", "Keys", "No keys"], ["changes", "Changes", "No changes"]]) {
        await visit(page, path, title);
        await page.getByText(content).first().waitFor();
      }
      must(seen.errors.every((error) => error.includes("404")), seen.errors.join("\n"));
      await context.close();
      for (let number = 0; number < 10_000; number += 250) {
        const operations = Array.from({ length: 250 }, (_, place) => ({ put_limit: { definition: { key: `many:${number + place}`, kind: "rolling", capacity: 10, window_seconds: 60 } } }));
        await open.ask("POST", "/v1/write", { namespace: "default", client_id: "many", sequence: number / 250 + 1, operations });
      }
      const cold = await browser.newContext();
      const first = await cold.newPage();
      const start = performance.now();
      await first.goto(`${open.url}/console`);
      await first.getByText("many:0", { exact: true }).first().waitFor();
      console.log(`      first view with 10,000 limits: ${Math.round(performance.now() - start)} ms`);
      await cold.close();
    } finally {
      await open.close();
    }
  });
} finally {
  await browser.close();
  await server.close();
}
console.log(failures === 0 ? "the console is fine" : `${failures} claims failed`);
process.exit(failures === 0 ? 0 : 1);
