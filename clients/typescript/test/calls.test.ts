import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { anthropicFetch } from "../src/anthropic.js";
import { Client, Limiter } from "../src/index.js";
import { openaiFetch } from "../src/openai.js";
import { type Fault, type Proxy, startProxy } from "./proxy.js";
import { type Server, startServer } from "./server.js";
import { startUpstream, type Upstream } from "./upstream.js";

const POLICY = `
[[rules]]
name = "model"
limits = [{ key = "{model}:calls", amount = "requests" }, { key = "{model}:tpm", amount = "tokens" }]

[[rules]]
name = "paid"
when = 'plan == "paid"'
limits = [{ key = "usd", amount = "cost" }]

[[rules]]
name = "tenant"
when = 'model == "tenant-only"'
limits = [{ key = "tenant:{tenant}", amount = "requests" }]

[[rules]]
name = "no-secrets"
when = 'model == "secret"'
deny = "this model is not for you"

[[prices]]
model = "m*"
asset = "usd"
input = 1_000_000
output = 2_000_000
`;

let server: Server;
let proxy: Proxy;
let upstream: Upstream;
let client: Client;
let limiter: Limiter;
/** The model of the running test, with limits of its own. */
let model: string;
let count = 0;

before(async () => {
  server = await startServer();
  proxy = await startProxy(server.url);
  upstream = await startUpstream();
  client = new Client({ servers: [server.url] });
  limiter = new Limiter(new Client({ servers: [proxy.url], backoff: { firstMs: 5, longestMs: 20 } }));
  await client.putPolicy(POLICY);
  await client.putLimit({ key: "usd", kind: "credit", vault: "main", account: "revenue", asset: "usd", timeout_seconds: 60 });
});

after(async () => {
  await proxy[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
  await server.stop();
});

beforeEach(async () => {
  count += 1;
  model = `m${count}`;
  await client.putLimit({ key: `${model}:calls`, kind: "concurrency", capacity: 2, timeout_seconds: 60 });
  await client.putLimit({ key: `${model}:tpm`, kind: "rolling", capacity: 100_000, window_seconds: 3_600 });
  proxy.seen.length = 0;
});

/** Reserved amounts: calls and tokens. */
async function held(): Promise<[number, number]> {
  assert.equal(await limiter.flush(), true);
  return [Number((await client.usage(`${model}:calls`)).reserved), Number((await client.usage(`${model}:tpm`)).reserved)];
}

function call(attributes: Record<string, string> = {}) {
  return { attributes: { model, provider: "test", ...attributes }, inputTokensMax: 100, outputTokensMax: 50 };
}

test("a call is reserved by the policy and settled by its usage", async () => {
  const lease = await limiter.acquireCall(call(), { jobId: "job:7" });
  assert.deepEqual(lease.requirements, [{ key: `${model}:calls`, amount: 1 }, { key: `${model}:tpm`, amount: 150 }]);
  assert.equal(lease.policyRevision, (await client.policy()).revision);
  assert.deepEqual(await held(), [1, 150]);
  assert.equal((await client.lease(lease.id)).job_id, "job:7");
  const completed = await lease.complete({ input_tokens: 90, output_tokens: 10 });
  assert.deepEqual([completed.reconciled, completed.cost], [true, "110"]);
  assert.deepEqual(await held(), [0, 100]);
});

for (const fault of ["lose_request", "lose_answer", "unavailable", "unavailable_after", "duplicate"] as Fault[]) {
  test(`after ${fault} the same call is sent again, and nothing is reserved or settled twice`, async () => {
    proxy.faults = [fault, fault];
    const lease = await limiter.acquireCall(call());
    assert.deepEqual(await held(), [1, 150]);
    proxy.faults = [fault];
    await lease.extend({ addOutputTokens: 25 });
    assert.deepEqual(await held(), [1, 175]);
    proxy.faults = [fault];
    // Only the newest part of a lease shrinks, so the total is above the first reserve.
    await lease.complete({ input_tokens: 100, output_tokens: 60 });
    assert.deepEqual(await held(), [0, 160]);
    assert.deepEqual([...new Set(proxy.seen.map(({ body }) => body.lease_id))], [lease.id]);
  });
}

test("a refused call frees everything, one of unknown outcome settles its bound, and so does a block without complete", async () => {
  assert.equal((await (await limiter.acquireCall(call())).refused()).reconciled, true);
  assert.deepEqual(await held(), [0, 0]);
  await (await limiter.acquireCall(call())).unknown();
  assert.deepEqual(await held(), [0, 150]);
  {
    await using lease = await limiter.acquireCall(call());
    void lease;
  }
  assert.deepEqual(await held(), [0, 300]);
  await (await limiter.acquireCall(call())).complete();
  assert.deepEqual(await held(), [0, 450]);
});

test("reported usage is a floor of a refused call, and extensions are numbered", async () => {
  const lease = await limiter.acquireCall(call());
  lease.used({ input_tokens: 40, output_tokens: 2 });
  await lease.extend();
  await lease.extend();
  assert.deepEqual(proxy.seen.filter(({ path }) => path === "/v1/calls/extend").map(({ body }) => body.extension), [1, 2]);
  await lease.refused();
  assert.deepEqual(await held(), [0, 42]);
});

test("a denied call has a new lease for each attempt, and an aborted one frees its reserve", async () => {
  const first = await limiter.acquireCall(call());
  const second = await limiter.acquireCall(call());
  const { denial } = await limiter.tryAcquireCall(call());
  assert.deepEqual(denial?.limitedBy, [`${model}:calls`]);
  await assert.rejects(limiter.acquireCall(call(), { withinMs: 1_000 }), { reason: "deadline_passed", limitedBy: [`${model}:calls`] });
  const leases = proxy.seen.map(({ body }) => body.lease_id);
  assert.equal(new Set(leases).size, leases.length);
  await Promise.all([first.refused(), second.refused()]);
  proxy.choose = (path) => (path === "/v1/calls" ? "lose_answer" : "pass");
  await assert.rejects(limiter.acquireCall(call(), { signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  proxy.choose = undefined;
  assert.deepEqual(await held(), [0, 0]);
});

test("refusals of the policy are thrown at once, by name", async () => {
  const refused = (attributes: Record<string, string>, reason: string, message: RegExp) =>
    assert.rejects(limiter.acquireCall(call(attributes)), { name: "AcquireError", reason, message });
  await refused({ model: "secret" }, "denied_by_rule", /rule no-secrets of the policy denies the call: .*not for you/);
  await refused({ model: "tenant-only" }, "missing_attribute", /needs attribute tenant; add it/);
  await refused({ model: "x", plan: "paid" }, "no_price", /no price for model x/);
  await refused({ plan: "paid" }, "insufficient_credit", /usd/);
  await refused({ model: "unlimited" }, "unknown_limit_key", /limit unlimited:calls does not exist/);
  await assert.rejects(limiter.acquireCall(call({ Model: "x" })), { name: "InputError" });
  await assert.rejects(limiter.acquireCall(call({ user: "a\nb" })), { name: "InputError", message: /attributes\.user/ });
  await assert.rejects(limiter.acquireCall({ ...call(), inputTokensMax: 1.5 }), { name: "InputError", message: /inputTokensMax: found 1.5/ });
  const { allowed, rules } = await client.explain(call({ model: "secret" }));
  assert.deepEqual([allowed, rules.filter(({ matched }) => matched).map(({ name }) => name)], [false, ["model", "no-secrets"]]);
  assert.deepEqual(await held(), [0, 0]);
});

test("the SDKs are metered by the policy: usage, streams, refusals and aborts", async () => {
  const openai = new OpenAI({ apiKey: "k", baseURL: `${upstream.url}/v1`, maxRetries: 0, fetch: openaiFetch({ limiter, outputTokensMax: 100 }) });
  const anthropic = new Anthropic({ apiKey: "k", baseURL: upstream.url, maxRetries: 0, fetch: anthropicFetch({ limiter, timeoutMs: 60_000 }) });
  const messages = [{ role: "user" as const, content: "Say hello." }];
  await openai.chat.completions.create({ model, messages });
  assert.deepEqual(await held(), [0, 29]);
  for await (const chunk of await openai.chat.completions.create({ model, messages, stream: true })) void chunk;
  assert.deepEqual(await held(), [0, 58]);
  await anthropic.messages.stream({ model, max_tokens: 100, messages }).finalText();
  assert.deepEqual(await held(), [0, 58 + 5_040]);
  upstream.behaviours = [400];
  await assert.rejects(openai.chat.completions.create({ model, messages }), { status: 400 });
  assert.deepEqual(await held(), [0, 58 + 5_040]);
  upstream.gapMs = 20;
  for await (const chunk of await openai.chat.completions.create({ model, messages, stream: true })) {
    void chunk;
    break;
  }
  const [calls, tokens] = await held();
  assert.equal(calls, 0);
  assert.ok(tokens > 58 + 5_040 + 600, "an aborted stream counts by its bound");
  await assert.rejects(openai.chat.completions.create({ model: "secret", messages }), { status: 403, code: "permission_denied" });
  const busy = [await limiter.acquireCall(call()), await limiter.acquireCall(call())];
  await assert.rejects(anthropic.messages.create({ model, max_tokens: 100, messages }), Anthropic.RateLimitError);
  await Promise.all(busy.map((lease) => lease.refused()));
  assert.equal((await held())[0], 0);
});
