import assert from "node:assert/strict";
import { test } from "node:test";
import { Backoff } from "../src/backoff.js";
import { Deadline, timer } from "../src/deadline.js";
import { RequestError } from "../src/error.js";
import { parse, stringify } from "../src/json.js";
import { frameData, SseFramer } from "../src/sse.js";
import { ulid } from "../src/ulid.js";
import { UsageMeter } from "../src/usage.js";
import { hash } from "../src/writer.js";
import { WaitQueues } from "../src/wait_queues.js";

test("a ULID sorts by time, and has 80 random bits", () => {
  assert.equal(ulid(0, new Uint8Array(10)), "00000000000000000000000000");
  assert.equal(ulid(2 ** 48 - 1, new Uint8Array(10).fill(255)), "7ZZZZZZZZZZZZZZZZZZZZZZZZZ");
  assert.equal(ulid(1_469_918_176_385, new Uint8Array(10)).slice(0, 10), "01ARYZ6S41");
  assert.equal(new Set(Array.from({ length: 1_000 }, () => ulid(5))).size, 1_000);
});

test("integers beyond 2^53 survive JSON, and strings of digits stay strings", () => {
  const text = '{"a":18446744073709551615,"b":"18446744073709551615","c":[9007199254740991,-9007199254740993],"d":"\\"1234567890123456789"}';
  const value = parse(text);
  assert.deepEqual(value, { a: 2n ** 64n - 1n, b: "18446744073709551615", c: [2 ** 53 - 1, -9007199254740993n], d: '"1234567890123456789' });
  assert.equal(stringify(value), text);
  assert.equal(parse("1234567890123456789.5"), 1234567890123456789.5);
  assert.equal(stringify({ a: undefined, b: null, c: [true, "x"] }), '{"b":null,"c":[true,"x"]}');
  assert.throws(() => parse("{1234567890123456789"));
});

test("waits double up to the longest, half of each is random, and the next server is asked at once", () => {
  const failure = (kind: "no_answer" | "busy") => new RequestError(kind, "");
  const waits = (random: number, servers: number, kind: "no_answer" | "busy") => {
    const backoff = new Backoff({ firstMs: 100, longestMs: 300 }, () => random);
    return Array.from({ length: 5 }, () => backoff.waitMs(failure(kind), servers));
  };
  assert.deepEqual(waits(0, 1, "no_answer"), [50, 100, 150, 150, 150]);
  assert.deepEqual(waits(1, 1, "no_answer"), [100, 200, 300, 300, 300]);
  assert.deepEqual(waits(0, 3, "no_answer"), [0, 0, 50, 0, 0]);
  assert.deepEqual(waits(0, 3, "busy"), [50, 100, 150, 150, 150]);
});

/** A timer fired half a millisecond early. The deadline had not passed, so one more reserve was sent. */
test("a deadline has passed when its timer fires", async () => {
  const early = await Promise.all(
    Array.from({ length: 500 }, async (_, index) => {
      const deadline = Deadline.after(index * 0.13);
      await timer(deadline.leftMs()).done;
      return !deadline.hasPassed();
    }),
  );
  assert.equal(early.filter(Boolean).length, 0);
});

test("a release is used by one caller, and passed on by one that gave up", async () => {
  const queues = new WaitQueues();
  const isWoken = (waiter: { woken: Promise<void> } | undefined) =>
    Promise.race([waiter?.woken.then(() => true), new Promise((resolve) => setImmediate(resolve, false))]);
  const [first, second] = [queues.waitFor(["a"], queues.releases), queues.waitFor(["a", "b"], queues.releases)];
  queues.release(["c"]);
  assert.equal(await isWoken(first), false);
  queues.release(["a"]);
  assert.deepEqual([await isWoken(first), await isWoken(second)], [true, false]);
  first?.leave(false);
  assert.equal(await isWoken(second), true);
  second?.leave(true);
  const before = queues.releases;
  queues.release(["a"]);
  assert.equal(queues.waitFor(["a"], before), undefined, "a release during the attempt");
  assert.notEqual(queues.waitFor(["a"], before), undefined, "another caller has used it");
});

test("frames are the exact bytes, whatever their line ends and however they are cut", () => {
  for (const end of ["\n", "\r\n", "\r"]) {
    const frames = [`: comment${end}${end}`, `event: x${end}data: {"a":1}${end}data:2${end}${end}`, `data: é${end}${end}`];
    const bytes = Buffer.from(frames.join("") + "data: cut");
    for (let size = 1; size <= bytes.length; size += 1) {
      const framer = new SseFramer();
      const found: Buffer[] = [];
      for (let at = 0; at < bytes.length; at += size) found.push(...framer.push(bytes.subarray(at, at + size)));
      const rest = framer.take();
      assert.equal(Buffer.concat([...found, rest]).toString(), bytes.toString());
      const data = found.map(frameData).filter((text) => text !== undefined);
      assert.deepEqual(data, ['{"a":1}\n2', "é"], JSON.stringify([end, size]));
    }
  }
});

test("usage blocks of the providers are read", () => {
  for (const [block, expected] of [
    [{ prompt_tokens: 10, completion_tokens: 5, total_tokens: 15, prompt_tokens_details: { cached_tokens: 4 } }, [10, 5, 4]],
    [{ input_tokens: 10, output_tokens: 5, total_tokens: 15, output_tokens_details: { reasoning_tokens: 3 } }, [10, 5, undefined]],
    [{ prompt_tokens: 8, total_tokens: 8 }, [8, 0, undefined]],
    [{ input_tokens: 3, cache_creation_input_tokens: 20, cache_read_input_tokens: 100, output_tokens: 7 }, [123, 7, 100]],
    [{ input_tokens: 3, cache_creation_input_tokens: null, output_tokens: 7 }, [3, 7, undefined]],
    [{ prompt_tokens: 1, completion_tokens: 1, total_tokens: 9 }, [1, 8, undefined]],
    [{ input_tokens: 0, output_tokens: 0 }, [0, 0, undefined]],
    [{}, undefined],
    [{ input_tokens: 3 }, undefined],
    [{ output_tokens: 3 }, undefined],
    [{ prompt_tokens: "3", completion_tokens: -1 }, undefined],
    [{ input_tokens: 3.5, output_tokens: 1 }, undefined],
  ] as const) {
    const meter = new UsageMeter();
    meter.answer({ id: "x", usage: block });
    const { usage } = meter;
    assert.deepEqual(usage && [usage.input_tokens, usage.output_tokens, usage.cached_input_tokens], expected, JSON.stringify(block));
  }
});

test("writes to a cache are split by their lifetime, and the tier is reported", () => {
  const meter = new UsageMeter();
  const cache_creation = { ephemeral_5m_input_tokens: 12, ephemeral_1h_input_tokens: 8 };
  meter.answer({ usage: { input_tokens: 1, cache_creation_input_tokens: 20, cache_creation, output_tokens: 2, service_tier: "standard" } });
  assert.deepEqual(meter.usage, { input_tokens: 21, output_tokens: 2, cache_write_tokens: 12, cache_write_1h_tokens: 8, service_tier: "standard" });
});

test("a stream counts the maximum of each field, and has no usage before its last event", () => {
  const events = [
    { type: "message_start", message: { usage: { input_tokens: 25, cache_read_input_tokens: 5_000, output_tokens: 1 } } },
    { type: "message_delta", usage: { input_tokens: 25, output_tokens: 15 } },
    { type: "message_delta", usage: { output_tokens: 5 } },
    { type: "message_stop" },
  ];
  const meter = new UsageMeter();
  for (const event of events) {
    assert.equal(meter.usage, undefined);
    assert.equal(meter.event(JSON.stringify(event)), false);
  }
  assert.deepEqual([meter.usage?.input_tokens, meter.usage?.output_tokens], [5_025, 15]);
  const chat = new UsageMeter();
  assert.equal(chat.event('{"choices":[{"delta":{}}],"usage":null}'), false);
  assert.equal(chat.event('{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":6}}'), true);
  assert.equal(chat.event("not json"), false);
  const outputs = [chat, chat].map((meter) => {
    const output = meter.usage?.output_tokens;
    meter.event("[DONE]");
    return output;
  });
  assert.deepEqual(outputs, [undefined, 6]);
});

/** Sequence files of the Python client and of earlier versions contain these hashes. */
test("the hash of operations never changes, and is that of the Python client", () => {
  const issue = { account: "acme", asset: "usd", amount: "5", memo: "Grüße 🦀" };
  assert.equal(hash([{ issue }]), "ac9c7ad656aa43294dd0de36d6bfef1a4e7d5b3e71757e0ed8ba681b07abd9e3");
  const { memo, ...rest } = issue;
  assert.equal(hash([{ issue: { memo, ...rest } }]), hash([{ issue }]), "the order of fields does not matter");
  assert.notEqual(hash([{ issue }, { issue }]), hash([{ issue }]));
});
