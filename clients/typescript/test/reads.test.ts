/** Lists and reports: templates, decisions, vaults, accounts and entries. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Client, Limiter } from "../src/index.js";
import { type Server, startServer } from "./server.js";

let server: Server;
let client: Client;
let limiter: Limiter;

before(async () => {
  server = await startServer();
  client = new Client({ servers: [server.url] });
  limiter = new Limiter(client);
});

after(async () => await server.stop());

const refused = (message: RegExp) => ({ name: "RequestError", kind: "invalid", message });

test("vaults and accounts are listed with their balances and plans", async () => {
  const plan = { asset: "usd", amount: "7", period: "day", carry_over: { max: "3" } } as const;
  await client.writeOnce("vault", [{ open_vault: { vault: "shop" } }]);
  await client.writeOnce("accounts", [
    { open_account: { account: "a", overdraft: "deny" } },
    { open_account: { account: "b", overdraft: "deny", plan } },
    { issue: { account: "a", asset: "usd", amount: 100n } },
  ], { vault: "shop" });
  assert.deepEqual(await client.vaults(), ["main", "shop"]);
  const accounts = await client.accounts("shop");
  assert.deepEqual(accounts.map(({ account, status }) => [account, status]), [["a", "open"], ["b", "open"], ["revenue", "open"]]);
  assert.deepEqual(accounts[0]?.balances.map(({ asset, available }) => [asset, available]), [["usd", "100"]]);
  assert.deepEqual([accounts[1]?.plan?.amount, accounts[1]?.plan?.carry_over], ["7", { max: "3" }]);
  assert.deepEqual((await client.accounts("shop", { prefix: "b" })).map(({ account }) => account), ["b"]);
});

test("entries are read in pages, in both orders, with what each kind has", async () => {
  await client.writeOnce("payer", [
    { open_account: { account: "payer", overdraft: "deny" } },
    { issue: { account: "payer", asset: "usd", amount: "100", memo: "order 17" } },
  ], { vault: "main" });
  await client.putLimit({ key: "payer:usd", kind: "credit", vault: "main", account: "payer", asset: "usd", timeout_seconds: 60 });
  const lease = await limiter.acquire({ "payer:usd": 40 });
  await lease.complete({ "payer:usd": 25 }, { labels: { model: "gpt-4o" } });
  await (await limiter.acquire({ "payer:usd": 10 })).release();
  const page = await client.entries("main", "payer", { pageSize: 3 });
  assert.deepEqual(page.entries.map(({ kind }) => kind), ["transaction", "hold", "settle"]);
  const [issued, hold, settled] = page.entries;
  assert.ok(issued?.kind === "transaction" && "idempotency_key" in issued);
  assert.deepEqual([issued.idempotency_key, issued.memos, issued.changes[0]?.issued], ["payer", ["order 17"], "100"]);
  assert.ok(hold?.kind === "hold");
  assert.deepEqual([hold.hold, hold.limit, hold.lease_id], ["40", "payer:usd", lease.id]);
  assert.ok(settled?.kind === "settle");
  assert.deepEqual([settled.paid, settled.reason, settled.labels], ["25", "complete", { model: "gpt-4o" }]);
  const rest = await client.entries("main", "payer", { after: page.next as number });
  assert.deepEqual([rest.entries.map(({ kind }) => kind), rest.next], [["hold", "release"], null]);
  const newest = await client.entries("main", "payer", { order: "desc", pageSize: 1 });
  assert.deepEqual(newest.entries, rest.entries.slice(1));
  assert.deepEqual((await client.entries("main", "payer", { until: issued.committed_at_unix_ms })).entries, []);
});

test("templates are put, listed and deleted, and another revision is refused at once", async () => {
  const definition = { key: "{tenant}:rpm", kind: "rolling", capacity: 5, window_seconds: 60 } as const;
  const revision = await client.putTemplate(definition, { expectedRevision: 0 });
  await assert.rejects(client.putTemplate(definition, { expectedRevision: revision + 7 }), refused(/revision/));
  const lease = await limiter.acquire({ "acme:rpm": 2 });
  const [template] = await client.templates();
  assert.deepEqual([template?.definition.key, template?.revision, template?.live], ["{tenant}:rpm", revision, 1]);
  assert.deepEqual((await client.limits({ prefix: "acme:" })).map((limit) => limit.template), ["{tenant}:rpm"]);
  await lease.release();
  await client.deleteTemplate("{tenant}:rpm", { expectedRevision: revision });
  assert.deepEqual(await client.templates(), []);
  const policy = await client.putPolicy('unmatched = "allow"\n');
  await assert.rejects(client.putPolicy('unmatched = "refuse"\n', { expectedRevision: policy + 7 }), refused(/revision/));
});

test("decisions and the heaviest limits name the limit that denied", async () => {
  await client.putLimit({ key: "tokens", kind: "rolling", capacity: 100, window_seconds: 3600 });
  const lease = await limiter.acquire({ tokens: 90 });
  const { denial } = await limiter.tryAcquire({ tokens: 20 }, { jobId: "job-9" });
  assert.deepEqual(denial?.limitedBy, ["tokens"]);
  const page = await client.decisions({ key: "tokens", job: "job-9", outcome: "denied", pageSize: 10 });
  assert.deepEqual(page.decisions.map(({ job_id, limits }) => [job_id, limits]), [
    ["job-9", [{ key: "tokens", asked: 20, available: 10, capacity: 100 }]],
  ]);
  const at = page.decisions[0]?.at_unix_ms as number;
  assert.deepEqual((await client.decisions({ key: "tokens", until: at })).decisions, []);
  assert.deepEqual((await client.top({ prefix: "tokens" })).map(({ key }) => key), ["tokens"]);
  assert.deepEqual((await client.top({ of: "denied", within: "1h", prefix: "tokens" })).map(({ amount }) => amount), [1]);
  // Otherwise the end of the process waits a minute for the stopped server.
  await lease.release();
});
