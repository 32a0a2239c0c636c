import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { anthropicFetch } from "../src/anthropic.js";
import { Client, Limiter } from "../src/index.js";
import { type CallLimits, type FetchOptions, type MeteredCall, openaiFetch } from "../src/openai.js";
import { type Server, startServer } from "./server.js";
import { startUpstream, type Upstream } from "./upstream.js";

let server: Server;
let upstream: Upstream;
let client: Client;
let limiter: Limiter;
/** The limits of the running test. */
let slots: string;
let tpm: string;
let count = 0;

before(async () => {
  server = await startServer();
  upstream = await startUpstream();
  client = new Client({ servers: [server.url] });
  limiter = new Limiter(client);
});

after(async () => {
  await upstream[Symbol.asyncDispose]();
  await server.stop();
});

beforeEach(async () => {
  count += 1;
  [slots, tpm] = [`t${count}:slots`, `t${count}:tpm`];
  await client.putLimit({ key: slots, kind: "concurrency", capacity: 100, timeout_seconds: 60 });
  await client.putLimit({ key: tpm, kind: "rolling", capacity: 1_000_000, window_seconds: 3_600 });
  upstream.seen.length = 0;
  upstream.behaviours = [];
  upstream.gapMs = 0;
});

/** Limits by key: a slot, and the tokens. */
function limits({ inputTokensMax, outputTokensMax }: MeteredCall): CallLimits {
  return {
    amounts: { [slots]: 1, [tpm]: inputTokensMax + outputTokensMax },
    actuals: ({ input_tokens, output_tokens }) => ({ [tpm]: BigInt(input_tokens) + BigInt(output_tokens) }),
  };
}

function openai(options: Partial<FetchOptions> = {}, maxRetries = 2): OpenAI {
  return new OpenAI({ apiKey: "sk-upstream", baseURL: `${upstream.url}/v1`, maxRetries, fetch: openaiFetch({ limiter, limits, ...options }) });
}

function anthropic(options: Partial<FetchOptions> = {}, maxRetries = 2): Anthropic {
  return new Anthropic({ apiKey: "sk-upstream", baseURL: upstream.url, maxRetries, fetch: anthropicFetch({ limiter, limits, ...options }) });
}

/** Amounts that stay reserved after all completes: slots and tokens. */
async function held(): Promise<[number, number]> {
  assert.equal(await limiter.flush(), true);
  const [one, other] = [await client.usage(slots), await client.usage(tpm)];
  return [Number(one.reserved), Number(other.reserved) + Number(other.debt)];
}

const messages = [{ role: "user" as const, content: "Say hello." }];
const chat = { model: "gpt-4o", max_completion_tokens: 100, messages };
const message = { model: "claude", max_tokens: 100, messages };

test("an answer is settled by its usage, for every metered endpoint", async () => {
  const answer = await openai().chat.completions.create(chat);
  assert.equal(answer.choices[0]?.message.content, "Hello!");
  assert.deepEqual(await held(), [0, 29]);
  await openai().responses.create({ model: "gpt-4o", input: "Say hello.", max_output_tokens: 100 });
  assert.deepEqual(await held(), [0, 29 + 48]);
  await openai().embeddings.create({ model: "embed", input: "text" });
  assert.deepEqual(await held(), [0, 29 + 48 + 8]);
  const reply = await anthropic().messages.create(message);
  assert.equal(reply.content[0]?.type, "text");
  assert.deepEqual(await held(), [0, 29 + 48 + 8 + 5_040]);
});

test("a stream is counted as it passes, and its bytes are those that the caller asked for", async () => {
  let text = "";
  for await (const chunk of await openai().chat.completions.create({ ...chat, stream: true })) {
    assert.equal(chunk.choices.length, 1, "the chunk with the usage is removed again");
    text += chunk.choices[0]?.delta.content ?? "";
  }
  assert.equal(text, "Hello!");
  assert.equal(upstream.seen[0]?.body.stream_options.include_usage, true);
  assert.deepEqual(await held(), [0, 29]);
  let usage = 0;
  for await (const chunk of await openai().chat.completions.create({ ...chat, stream: true, stream_options: { include_usage: true } })) {
    usage += chunk.usage?.total_tokens ?? 0;
  }
  assert.equal(usage, 29, "a caller that asked for the usage gets it");
  assert.deepEqual(await held(), [0, 58]);
  for await (const event of await openai().responses.create({ model: "gpt-4o", input: "hi", max_output_tokens: 100, stream: true })) void event;
  assert.deepEqual(await held(), [0, 58 + 48]);
  assert.equal(await anthropic().messages.stream(message).finalText(), "Hello!");
  assert.deepEqual(await held(), [0, 58 + 48 + 5_040]);
});

test("tool calls pass unchanged, streamed or not", async () => {
  const tools = [{ type: "function" as const, function: { name: "weather", parameters: { type: "object", properties: {} } } }];
  const answer = await openai().chat.completions.create({ ...chat, tools });
  assert.equal(answer.choices[0]?.message.tool_calls?.length, 1);
  const stream = openai().chat.completions.stream({ ...chat, tools });
  const [call] = (await stream.finalChatCompletion()).choices[0]?.message.tool_calls ?? [];
  assert.equal(call?.type === "function" && call.function.arguments, '{"city":"Bern"}');
  assert.deepEqual(await held(), [0, 58]);
});

test("a stream that is left or aborted midway is settled by its bound, and nothing stays held", async () => {
  upstream.gapMs = 20;
  const bound = async (run: () => Promise<void>) => {
    const before = (await held())[1];
    await run();
    const [slotsHeld, tokens] = await held();
    assert.equal(slotsHeld, 0);
    return tokens - before;
  };
  assert.ok((await bound(async () => {
    for await (const chunk of await openai().chat.completions.create({ ...chat, stream: true })) {
      void chunk;
      break;
    }
  })) > 500);
  assert.ok((await bound(async () => {
    for await (const event of await anthropic().messages.create({ ...message, stream: true })) {
      if (event.type === "content_block_start") break;
    }
  })) > 500);
  assert.ok((await bound(async () => {
    const controller = new AbortController();
    const stream = await openai().chat.completions.create({ ...chat, stream: true }, { signal: controller.signal });
    controller.abort();
    for await (const chunk of stream) void chunk;
  })) > 500);
  assert.ok((await bound(async () => {
    upstream.behaviours = ["cut"];
    await assert.rejects(async () => {
      for await (const chunk of await openai().chat.completions.create({ ...chat, stream: true })) void chunk;
    });
  })) > 500);
});

test("an answer of 400 or above frees everything, and each retry of the SDK has its own lease", async () => {
  upstream.behaviours = [500, 429, "usual"];
  await openai().chat.completions.create(chat);
  assert.equal(upstream.seen.length, 3);
  assert.deepEqual(await held(), [0, 29]);
  upstream.behaviours = [400];
  await assert.rejects(anthropic().messages.create(message), { status: 400 });
  assert.deepEqual(await held(), [0, 29]);
});

test("a call whose outcome is unknown counts by its bound; one that was never sent counts nothing", async () => {
  upstream.behaviours = ["reset"];
  await assert.rejects(openai({}, 0).chat.completions.create(chat), OpenAI.APIConnectionError);
  const [slotsHeld, tokens] = await held();
  assert.equal(slotsHeld, 0);
  assert.ok(tokens > 600, String(tokens));
  upstream.behaviours = ["cut"];
  await assert.rejects(openai({}, 0).chat.completions.create(chat));
  assert.ok((await held())[1] > 2 * 600);
  upstream.behaviours = ["hang"];
  await assert.rejects(openai({}, 0).chat.completions.create(chat, { timeout: 50 }), OpenAI.APIConnectionTimeoutError);
  const before = await held();
  assert.equal(before[0], 0);
  const closed = await startUpstream();
  await closed[Symbol.asyncDispose]();
  const nowhere = new OpenAI({ apiKey: "k", baseURL: `${closed.url}/v1`, maxRetries: 0, fetch: openaiFetch({ limiter, limits }) });
  await assert.rejects(nowhere.chat.completions.create(chat));
  assert.deepEqual(await held(), before);
});

test("a denial is a native 429 with retry-after-ms, and the SDK tries again by itself", async () => {
  await client.putLimit({ key: slots, kind: "concurrency", capacity: 1, timeout_seconds: 60 });
  const holder = await limiter.acquire({ [slots]: 1 });
  const denied = await openai({}, 0).chat.completions.create(chat).catch((error: unknown) => error);
  assert.ok(denied instanceof OpenAI.RateLimitError);
  assert.ok(Number(denied.headers.get("retry-after-ms")) > 0);
  assert.equal(denied.headers.get("x-earmark-limited-by"), slots);
  const refused = await anthropic({}, 0).messages.create(message).catch((error: unknown) => error);
  assert.ok(refused instanceof Anthropic.RateLimitError);
  assert.equal(upstream.seen.length, 0, "a denied call is not made");
  setTimeout(() => void holder.release(), 100);
  assert.equal((await openai({}, 50).chat.completions.create(chat)).choices.length, 1);
  assert.deepEqual(await held(), [0, 29]);
});

test("refusals have the provider's shape and are not retried", async () => {
  await client.putLimit({ key: tpm, kind: "rolling", capacity: 10, window_seconds: 60 });
  await assert.rejects(openai().chat.completions.create(chat), { status: 400, code: "exceeds_capacity" });
  await assert.rejects(anthropic().messages.create(message), { status: 400, type: "invalid_request_error" });
  const unknown = { limits: () => ({ amounts: { "no:such": 1 }, actuals: () => ({}) }) };
  await assert.rejects(openai(unknown).chat.completions.create(chat), { status: 403, message: /limit no:such does not exist/ });
  const credit = `t${count}:usd`;
  await client.putLimit({ key: credit, kind: "credit", vault: "main", account: "revenue", asset: "usd", timeout_seconds: 60 });
  const paid = { limits: () => ({ amounts: { [credit]: 5 }, actuals: () => ({}) }) };
  await assert.rejects(openai(paid).chat.completions.create(chat), { status: 429, code: "insufficient_quota" });
  await assert.rejects(anthropic(paid).messages.create(message), { status: 402, type: "billing_error" });
  const down = new Limiter(new Client({ servers: ["http://127.0.0.1:9"] }), { completeWithinMs: 50, onAbandoned: () => {} });
  await assert.rejects(openai({ limiter: down, withinMs: 50 }, 0).chat.completions.create(chat), { status: 503, code: "service_unavailable" });
  assert.equal(upstream.seen.length, 0);
});

test("a request without a bound is refused or gets one, and n answers cost n times as much", async () => {
  const { max_completion_tokens: _, ...open } = chat;
  await assert.rejects(openai().chat.completions.create(open), { status: 400, message: /set max_completion_tokens, or outputTokensMax/ });
  const seen: number[] = [];
  const noted = { limits: (call: MeteredCall) => (seen.push(call.outputTokensMax), limits(call)), outputTokensMax: 64 };
  await openai(noted).chat.completions.create(open);
  assert.equal(upstream.seen[0]?.body.max_completion_tokens, 64);
  await openai(noted).chat.completions.create({ ...chat, n: 3 });
  assert.deepEqual(seen, [64, 300]);
  assert.equal(upstream.seen[1]?.body.max_completion_tokens, 100);
});

test("paths that are not metered are refused unless they are allowed", async () => {
  assert.equal((await openai().models.list()).data.length, 1);
  await assert.rejects(openai().moderations.create({ input: "x" }), { status: 400, message: /POST \/v1\/moderations is not metered/ });
  await assert.rejects(openai({ unmetered: () => true }).moderations.create({ input: "x" }), { status: 404 });
  assert.equal((await anthropic().messages.countTokens({ model: "claude", messages })).input_tokens, 7);
  assert.deepEqual(await held(), [0, 0]);
});

test("attributes of a request are read and not sent to the provider", async () => {
  const seen: MeteredCall[] = [];
  const noted = { attributes: { tenant: "acme" }, limits: (call: MeteredCall) => (seen.push(call), limits(call)) };
  await openai(noted).chat.completions.create(chat, { headers: { "x-earmark-attributes": "user=u1, feature=chat" } });
  assert.deepEqual(seen[0]?.attributes, { tenant: "acme", user: "u1", feature: "chat", model: "gpt-4o", provider: "openai" });
  assert.equal(upstream.seen[0]?.headers["x-earmark-attributes"], undefined);
  const bad = openai(noted).chat.completions.create(chat, { headers: { "x-earmark-attributes": "model=other" } });
  await assert.rejects(bad, { status: 400 });
});

test("calls in parallel hold nothing at the end", async () => {
  upstream.behaviours = Array.from({ length: 20 }, (_, index) => (["usual", 500, "usual", "cut"] as const)[index % 4] ?? "usual");
  const stream = async () => {
    for await (const chunk of await openai().chat.completions.create({ ...chat, stream: true })) void chunk;
  };
  const calls = Array.from({ length: 40 }, (_, index) => (index % 2 === 0 ? stream() : openai().chat.completions.create(chat)));
  await Promise.allSettled(calls);
  assert.equal((await held())[0], 0);
});

test("the lease of a long stream is renewed", async () => {
  const key = `t${count}:short`;
  await client.putLimit({ key, kind: "concurrency", capacity: 1, timeout_seconds: 2 });
  upstream.gapMs = 600;
  const short = { timeoutMs: 2_000, limits: () => ({ amounts: { [key]: 1 }, actuals: () => ({}) }) };
  let reserved = 0;
  for await (const chunk of await openai(short).chat.completions.create({ ...chat, stream: true })) {
    if (chunk.choices[0]?.finish_reason === "stop") reserved = Number((await client.usage(key)).reserved);
  }
  assert.equal(reserved, 1);
  await limiter.flush();
  assert.equal((await client.usage(key)).reserved, 0);
});
