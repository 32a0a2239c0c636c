// A server with data made through its API.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A text with markup, bidirectional characters and one of no width. */
export const HOSTILE = '<img src=x onerror="window.hacked=1"><b>bold</b> \u202egnp.exe\u202c zero\u200bwidth \u2066isolate\u2069';
/** The same with escapes for a terminal, which no keyboard types. */
export const HOSTILE_ESCAPES = `${HOSTILE} \u001b[31mred \u001b]0;owned\u0007 \u009b2J`;

function freePort() {
  return new Promise((found) => {
    const probe = createServer();
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => found(port));
    });
  });
}

/** A server process that can be stopped and started again on the same port and folder. */
export class Server {
  constructor(binary, options = {}) {
    this.binary = binary;
    this.options = options;
    this.folder = mkdtempSync(join(tmpdir(), "earmark-console-"));
    this.output = "";
  }

  async start() {
    this.port ??= await freePort();
    this.url = `http://127.0.0.1:${this.port}`;
    const where = this.options.inMemory ? ["--in-memory"] : ["--data", join(this.folder, "data")];
    const key = this.options.inMemory || this.key ? [] : ["--bootstrap-key"];
    const args = ["serve", "--listen", `127.0.0.1:${this.port}`, "--log-level", "debug", ...where, ...key];
    this.process = spawn(this.binary, args, { stdio: ["ignore", "pipe", "pipe"] });
    const said = (bytes) => {
      this.output += bytes;
    };
    this.process.stdout.on("data", said);
    this.process.stderr.on("data", said);
    for (let tries = 0; tries < 600; tries += 1) {
      const isReady = await fetch(`${this.url}/readyz`).then((answer) => answer.ok, () => false);
      if (isReady) {
        this.key ??= /emk_\w+/.exec(this.output)?.[0];
        return this;
      }
      await new Promise((resume) => setTimeout(resume, 50));
    }
    throw new Error(`the server did not start: ${this.output}`);
  }

  async stop(signal = "SIGKILL") {
    const ended = new Promise((resume) => this.process.once("exit", resume));
    this.process.kill(signal);
    await ended;
  }

  async close() {
    if (this.process.exitCode === null && this.process.signalCode === null) await this.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }

  async ask(method, path, body, key = this.key) {
    const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
    const answer = await fetch(this.url + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return JSON.parse(text);
  }

  async newKey(name, role, namespace = "default") {
    return (await this.ask("POST", "/v1/admin/keys", { name, role, namespace })).key;
  }
}

const ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
let leases = 0;

/** A lease id of now. */
export function lease() {
  leases += 1;
  let time = Date.now();
  let id = "";
  for (let place = 0; place < 10; place += 1) {
    id = ALPHABET[time % 32] + id;
    time = Math.floor(time / 32);
  }
  return id + leases.toString(32).toUpperCase().replace(/[^0-9A-HJKMNP-TV-Z]/g, "Z").padStart(16, "0");
}

const POLICY = `[[rules]]
name   = "tenant"
limits = [{ key = "tenant:{tenant}:rpm", amount = "requests" }]
# ${HOSTILE.replaceAll("\u202e", "").replaceAll("\u202c", "")}
`;

/** Limits, leases, denials, credit and a policy. Returns names that the checks use. */
export async function fill(server) {
  const put = (limit) => server.ask("PUT", "/v1/admin/limits", limit);
  const reserve = (requirements, more = {}) => server.ask("POST", "/v1/reserve", { lease_id: lease(), requirements, ...more });
  const rolling = (key, capacity, more = {}) => put({ key, kind: "rolling", capacity, window_seconds: 3_600, ...more });
  await rolling("gpt-4o:rpm", 100, { unit: "requests", description: HOSTILE_ESCAPES });
  await rolling("gpt-4o:tpm", 2_000_000, { unit: "tokens" });
  await rolling("claude-sonnet:rpm", 400, { unit: "requests", description: "All calls to Sonnet" });
  await rolling("claude-sonnet:tpm", Number.MAX_SAFE_INTEGER, { unit: "tokens" });
  await rolling("team:research:rpm", 60);
  await rolling("team:search:rpm", 240);
  await rolling("o3:shadow", 10, { enforce: false });
  await put({ key: "gpt-4o:calls", kind: "concurrency", capacity: 8, timeout_seconds: 600 });
  await put({ key: "acme:day", kind: "calendar", capacity: 50_000, period: "day" });
  for (let number = 0; number < 120; number += 1) await rolling(`user:u${String(number).padStart(3, "0")}:rpm`, 20);

  const write = (sequence, vault, operations) => server.ask("POST", "/v1/write", { namespace: "default", vault, client_id: "console-check", sequence, operations });
  const plan = { asset: "usd", amount: "1000000", period: "month", carry_over: { max: "250000" } };
  await write(1, "main", [{ open_account: { account: "acme", overdraft: "deny", plan } }]);
  await write(2, "main", [{ issue: { account: "acme", asset: "usd", amount: "5000000", memo: HOSTILE_ESCAPES } }]);
  await write(3, "main", [{ issue: { account: "acme", asset: "usd", amount: "2500000", memo: "invoice 2081" } }]);
  await put({ key: "acme:usd", kind: "credit", vault: "main", account: "acme", asset: "usd", timeout_seconds: 600 });

  for (let number = 0; number < 20; number += 1) {
    await reserve([{ key: "gpt-4o:rpm", amount: 5 }, { key: "gpt-4o:tpm", amount: 60_000 }]);
    await reserve([{ key: "claude-sonnet:rpm", amount: 17 }, { key: "claude-sonnet:tpm", amount: 4_000 }]);
    await reserve([{ key: `user:u${String(number).padStart(3, "0")}:rpm`, amount: 1 + (number % 20) }]);
  }
  await reserve([{ key: "team:search:rpm", amount: 150 }]);
  await reserve([{ key: "acme:day", amount: 31_000 }]);
  for (let number = 0; number < 6; number += 1) await reserve([{ key: "gpt-4o:calls", amount: 1 }]);
  const paid = lease();
  await server.ask("POST", "/v1/reserve", { lease_id: paid, requirements: [{ key: "acme:usd", amount: 120_000 }] });
  await server.ask("POST", "/v1/complete", { lease_id: paid, actuals: [{ key: "acme:usd", actual_amount: 84_210 }] });
  const open = lease();
  await server.ask("POST", "/v1/reserve", { lease_id: open, job_id: "job-7", requirements: [{ key: "acme:usd", amount: 300_000 }] });
  const over = lease();
  await server.ask("POST", "/v1/reserve", { lease_id: over, requirements: [{ key: "team:research:rpm", amount: 10 }] });
  await server.ask("POST", "/v1/complete", { lease_id: over, actuals: [{ key: "team:research:rpm", actual_amount: 72 }] });
  const denied = lease();
  await server.ask("POST", "/v1/reserve", { lease_id: denied, job_id: "job-8", requirements: [{ key: "gpt-4o:rpm", amount: 3 }] });
  for (let number = 0; number < 5; number += 1) await reserve([{ key: "gpt-4o:rpm", amount: 2 }]);
  await reserve([{ key: "none:rpm", amount: 1 }]);
  await server.ask("PUT", "/v1/admin/templates", { key: "tenant:{tenant}:rpm", kind: "rolling", capacity: 30, window_seconds: 60 });
  await server.ask("PUT", "/v1/admin/policy", { policy: POLICY });
  return { open, denied };
}
