import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { AcquireError, Client, ExtendError, InputError, Limiter, RequestError } from "../src/index.js";
import { LATE_MS, type Proxy, startProxy } from "./proxy.js";
import { type Server, startServer } from "./server.js";

let server: Server;
let proxy: Proxy;
let client: Client;
let direct: Client;

before(async () => {
  server = await startServer();
  proxy = await startProxy(server.url);
  client = new Client({ servers: [proxy.url], backoff: { firstMs: 5, longestMs: 20 } });
  direct = new Client({ servers: [server.url] });
});

after(async () => {
  await proxy[Symbol.asyncDispose]();
  await server.stop();
});

let count = 0;
/** A new concurrency limit and a new rolling limit. */
async function limits(capacity = 2): Promise<{ slots: string; tpm: string }> {
  count += 1;
  const [slots, tpm] = [`t${count}:slots`, `t${count}:tpm`];
  await direct.putLimit({ key: slots, kind: "concurrency", capacity, timeout_seconds: 30 });
  await direct.putLimit({ key: tpm, kind: "rolling", capacity: 10_000, window_seconds: 600 });
  proxy.seen.length = 0;
  return { slots, tpm };
}

async function reserved(key: string): Promise<number> {
  return Number((await direct.usage(key)).reserved);
}

function sent(path: string): any[] {
  return proxy.seen.filter((seen) => seen.path === path).map((seen) => seen.body);
}

test("a lease holds its amounts until it is completed, and unused amounts are freed", async () => {
  const { slots, tpm } = await limits();
  const lease = await new Limiter(client).acquire({ [slots]: 1, [tpm]: 1_000n }, { jobId: "job:1" });
  assert.deepEqual([await reserved(slots), await reserved(tpm)], [1, 1_000]);
  assert.equal((await direct.lease(lease.id)).job_id, "job:1");
  const completed = await lease.complete({ [tpm]: 40 });
  assert.equal(completed.reconciled, true);
  assert.deepEqual([await reserved(slots), await reserved(tpm)], [0, 40]);
  assert.equal(lease.isOpen, false);
  await assert.rejects(lease.complete(), /is completed already/);
});

test("await using, an exception and a released lease all settle", async () => {
  const { slots, tpm } = await limits();
  const limiter = new Limiter(client);
  {
    await using lease = await limiter.acquire({ [slots]: 1, [tpm]: 100 });
    assert.equal(lease.isOpen, true);
  }
  assert.deepEqual([await reserved(slots), await reserved(tpm)], [0, 100], "an unknown usage counts as reserved");
  await assert.rejects(limiter.with({ [slots]: 1, [tpm]: 100 }, () => Promise.reject(new Error("upstream"))), /upstream/);
  assert.deepEqual([await reserved(slots), await reserved(tpm)], [0, 200]);
  await (await limiter.acquire({ [slots]: 1, [tpm]: 100 })).release();
  assert.deepEqual([await reserved(slots), await reserved(tpm)], [0, 200]);
  {
    using lease = await limiter.acquire({ [slots]: 1 });
    void lease;
  }
  assert.equal(await limiter.flush(), true);
  assert.equal(await reserved(slots), 0);
});

for (const fault of ["lose_request", "lose_answer", 503, 500, 408] as const) {
  test(`after an unknown outcome (${fault}) the same lease is sent again and nothing is reserved twice`, async () => {
    const { slots, tpm } = await limits();
    proxy.faults = [fault, fault];
    const lease = await new Limiter(client).acquire({ [slots]: 1, [tpm]: 10 });
    const ids = sent("/v1/reserve").map((body) => body.lease_id);
    assert.deepEqual(ids, [lease.id, lease.id, lease.id]);
    assert.deepEqual([await reserved(slots), await reserved(tpm)], [1, 10]);
    proxy.faults = [fault];
    await lease.complete({ [tpm]: 7 });
    assert.equal(sent("/v1/complete").length, 2);
    assert.deepEqual([await reserved(slots), await reserved(tpm)], [0, 7]);
  });
}

test("a duplicate answer changes nothing", async () => {
  const { slots } = await limits();
  proxy.faults = ["duplicate", "duplicate"];
  const lease = await new Limiter(client).acquire({ [slots]: 1 });
  assert.equal(await reserved(slots), 1);
  await lease.release();
  assert.equal(await reserved(slots), 0);
});

test("a denied lease is never used again, and a release wakes the caller", async () => {
  const { slots } = await limits(1);
  const limiter = new Limiter(client);
  const first = await limiter.acquire({ [slots]: 1 });
  assert.deepEqual((await limiter.tryAcquire({ [slots]: 1 })).denial?.limitedBy, [slots]);
  const second = limiter.acquire({ [slots]: 1 }, { withinMs: 5_000 });
  await new Promise((resolve) => setTimeout(resolve, 100));
  const start = performance.now();
  await first.release();
  await (await second).release();
  assert.ok(performance.now() - start < 1_000, "the release woke the caller before its hint");
  const ids = sent("/v1/reserve").map((body) => body.lease_id);
  assert.equal(new Set(ids).size, ids.length);
});

test("the deadline ends the wait with the last denial", async () => {
  const { slots } = await limits(1);
  const limiter = new Limiter(client);
  const first = await limiter.acquire({ [slots]: 1 });
  const start = performance.now();
  const error = await limiter.acquire({ [slots]: 1 }, { withinMs: 1_000 }).catch((error: unknown) => error);
  assert.ok(error instanceof AcquireError);
  assert.equal(error.reason, "deadline_passed");
  assert.deepEqual(error.limitedBy, [slots]);
  assert.ok(performance.now() - start < 5_000);
  await first.release();
});

test("an aborted acquire frees what its attempt may have reserved", async () => {
  const { slots } = await limits(1);
  const limiter = new Limiter(client);
  const controller = new AbortController();
  proxy.choose = (path) => (path === "/v1/reserve" ? "lose_answer" : "pass");
  const acquired = limiter.acquire({ [slots]: 1 }, { signal: controller.signal });
  setTimeout(() => controller.abort(new Error("no longer needed")), 100);
  await assert.rejects(acquired, /no longer needed/);
  proxy.choose = undefined;
  assert.equal(await limiter.flush(), true);
  assert.equal(await reserved(slots), 0);
  // A waiting caller leaves at once, too.
  const first = await limiter.acquire({ [slots]: 1 });
  await assert.rejects(limiter.acquire({ [slots]: 1 }, { signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  await first.release();
});

test("a reserve that arrives after the caller gave up holds nothing", async () => {
  const { slots } = await limits(1);
  const limiter = new Limiter(client);
  proxy.choose = (path) => (path === "/v1/reserve" ? "late_request" : "pass");
  await assert.rejects(limiter.acquire({ [slots]: 1 }, { withinMs: 60 }), { reason: "deadline_passed" });
  proxy.choose = undefined;
  assert.equal(await limiter.flush(), true);
  await new Promise((resolve) => setTimeout(resolve, LATE_MS + 200));
  assert.ok(sent("/v1/complete").length >= 1);
  assert.equal(await reserved(slots), 0);
});

test("refusals that waiting cannot cure are thrown at once", async () => {
  const { slots } = await limits(2);
  const limiter = new Limiter(client);
  await assert.rejects(limiter.acquire({ [slots]: 3 }), { name: "AcquireError", reason: "never", limitedBy: [slots] });
  await assert.rejects(limiter.acquire({ "no:such": 1 }), { reason: "unknown_limit_key", message: "limit no:such does not exist; create it first" });
});

test("the next server is asked when one is down, and no lease is counted twice", async () => {
  const { slots } = await limits(4);
  const dead = await startProxy(server.url);
  await dead[Symbol.asyncDispose]();
  const several = new Client({ servers: [dead.url, proxy.url, server.url], backoff: { firstMs: 5, longestMs: 20 } });
  const limiter = new Limiter(several);
  const first = await limiter.acquire({ [slots]: 1 });
  proxy.faults = ["lose_answer"];
  const second = await limiter.acquire({ [slots]: 1 });
  assert.equal(await reserved(slots), 2);
  await Promise.all([first.release(), second.release()]);
  assert.equal(await reserved(slots), 0);
});

test("callers of one turn share requests", async () => {
  const { slots } = await limits(500);
  const limiter = new Limiter(client);
  const leases = await Promise.all(Array.from({ length: 300 }, () => limiter.acquire({ [slots]: 1 })));
  assert.equal(await reserved(slots), 300);
  assert.ok(sent("/v1/reserve/batch").length <= 4, String(proxy.seen.length));
  assert.equal(new Set(leases.map((lease) => lease.id)).size, 300);
  await Promise.all(leases.map((lease) => lease.release()));
  assert.equal(await reserved(slots), 0);
});

test("a lost answer to a batch reserves nothing twice", async () => {
  const { slots } = await limits(500);
  const limiter = new Limiter(client);
  proxy.faults = ["lose_answer", 503, "lose_request"];
  const leases = await Promise.all(Array.from({ length: 100 }, () => limiter.acquire({ [slots]: 1 })));
  assert.equal(await reserved(slots), 100);
  await Promise.all(leases.map((lease) => lease.release()));
  assert.equal(await reserved(slots), 0);
});

/** The server refuses a batch with a malformed item as a whole, and all callers of the batch failed. */
test("a malformed item fails alone, not the batch that it is in", async () => {
  const { slots } = await limits(50);
  const limiter = new Limiter(client);
  const twice = limiter.acquire({ [slots]: 1, [`!default:${slots}`]: 1 }).catch((error: unknown) => error);
  const leases = await Promise.all(Array.from({ length: 20 }, () => limiter.acquire({ [slots]: 1 })));
  const error = await twice;
  assert.ok(error instanceof AcquireError);
  assert.equal(error.reason, "invalid_request");
  assert.equal(await reserved(slots), 20);
  await Promise.all(leases.map((lease) => lease.release()));
  assert.equal(await reserved(slots), 0);
});

test("extensions are numbered, and one without an answer is repeated with its number", async () => {
  const { slots, tpm } = await limits(4);
  const lease = await new Limiter(client).acquire({ [slots]: 1, [tpm]: 100 });
  await lease.extend({ add: { [tpm]: 50 } });
  proxy.choose = (path) => (path === "/v1/extend" ? "lose_answer" : "pass");
  await assert.rejects(lease.extend({ add: { [tpm]: 25 } }, { withinMs: 100 }), { name: "ExtendError", reason: "failed" });
  proxy.choose = undefined;
  await lease.extend({ add: { [tpm]: 25 } });
  assert.equal(await reserved(tpm), 175);
  assert.deepEqual(lease.amounts, { [slots]: 1n, [tpm]: 175n });
  await assert.rejects(lease.extend({ add: { [slots]: 4 } }), { reason: "denied" });
  await lease.extend();
  const numbers = sent("/v1/extend").map((body) => body.extension);
  assert.deepEqual([...new Set(numbers)], [1, 2, 3, 4]);
  await lease.complete({ [tpm]: 60 });
  assert.deepEqual([await reserved(slots), (await direct.lease(lease.id)).state], [0, "completed"]);
});

test("an extension that another one finished is not taken again, and a release frees one without an answer", async () => {
  const { slots, tpm } = await limits(4);
  const lease = await new Limiter(client).acquire({ [tpm]: 100 });
  const lose = async (add: Record<string, number>) => {
    proxy.choose = (path) => (path === "/v1/extend" ? "lose_answer" : "pass");
    await assert.rejects(lease.extend({ add }, { withinMs: 100 }), { name: "ExtendError", reason: "failed" });
    proxy.choose = undefined;
  };
  await lose({ [tpm]: 25 });
  await lease.extend({ add: { [tpm]: 5 } });
  await lease.extend({ add: { [tpm]: 25 } });
  assert.equal(await reserved(tpm), 130);
  await lose({ [slots]: 1 });
  assert.equal(await reserved(slots), 1);
  assert.equal((await lease.release()).message, undefined);
  assert.equal(await reserved(slots), 0);
});

test("a kept lease outlives its timeout, reports its usage, and a lost one aborts its signal", async () => {
  const key = "kept:slots";
  await direct.putLimit({ key, kind: "concurrency", capacity: 1, timeout_seconds: 2 });
  const limiter = new Limiter(client);
  const lease = await limiter.acquire({ [key]: 1 });
  using keepAlive = lease.keepAlive(2_000);
  lease.used(key, 1);
  await new Promise((resolve) => setTimeout(resolve, 2_600));
  assert.equal(await reserved(key), 1);
  assert.equal(keepAlive.signal.aborted, false);
  assert.deepEqual((await direct.lease(lease.id)).used, [{ key, actual_amount: 1 }]);
  await lease.release();
  const lost = await limiter.acquire({ [key]: 1 });
  // The first renewal comes a second after the end of the lease.
  const watched = lost.keepAlive(9_000);
  await new Promise((resolve) => watched.signal.addEventListener("abort", resolve));
  assert.ok(watched.signal.reason instanceof ExtendError);
  assert.equal(watched.signal.reason.reason, "lease_expired");
  await lost[Symbol.asyncDispose]();
});

test("amounts beyond 2^53 stay exact", async () => {
  const key = "huge";
  const capacity = 2n ** 64n - 1n;
  await direct.putLimit({ key, kind: "concurrency", capacity, timeout_seconds: 30 });
  assert.equal((await direct.usage(key)).capacity, capacity);
  const lease = await new Limiter(client).acquire({ [key]: 2n ** 60n + 1n });
  assert.equal((await direct.usage(key)).reserved, 2n ** 60n + 1n);
  await lease.release();
});

test("bad input is refused before anything is sent, with a message that says what is allowed", async () => {
  const limiter = new Limiter(client);
  proxy.seen.length = 0;
  for (const [amounts, message] of [
    [{ a: 1.5 }, 'requirements["a"]: found 1.5, allowed are integers from 1 to 18446744073709551615, from 2^53 on as bigint'],
    [{ a: 0 }, /found 0, allowed are integers from 1/],
    [{ a: -1n }, /found -1/],
    [{ a: 2 ** 53 }, /from 2\^53 on as bigint/],
    [{ a: "1" }, /found "1"/],
    [{ "a b": 1 }, 'requirements: found "a b", allowed is a key of 1 to 256 letters, digits and :._@+-/|=~%'],
    [{ "!a b:c": 1 }, /NAMESPACE/],
    [{}, "requirements: found 0, allowed are 1 to 32 limits"],
    ["a", /requirements: found "a", allowed is an object/],
    [["a"], /requirements: found an array/],
    [null, /requirements: found null/],
  ] as const) {
    await assert.rejects(limiter.acquire(amounts as any), { name: "InputError", message });
  }
  await assert.rejects(limiter.acquire({ a: 1 }, { jobId: "a b" }), InputError);
  await assert.rejects(limiter.acquire({ a: 1 }, { withinMs: -1 }), InputError);
  await assert.rejects(limiter.acquire({ a: 1 }, { signal: AbortSignal.abort(new Error("gone")) }), /gone/);
  assert.throws(() => new Limiter(client, { batching: { inFlightMax: 0 } }), InputError);
  assert.throws(() => new Limiter(client, { completeWithinMs: Number.NaN }), InputError);
  assert.throws(() => new Client({ servers: ["http://127.0.0.1"], backoff: { firstMs: 0, longestMs: 1 } }), InputError);
  assert.equal(proxy.seen.length, 0);
  for (const options of [{}, { servers: server.url }, undefined]) {
    assert.throws(() => new Client(options as any), { name: "InputError", message: /servers: found .*, allowed is a list of addresses/ });
  }
  for (const servers of [[], ["127.0.0.1:7878"], ["http://user:secret@host"], ["http://host/path"]]) {
    assert.throws(() => new Client({ servers }), (error: Error) => error instanceof InputError && !error.message.includes("secret"));
  }
  assert.throws(() => new Client({ servers: ["http://10.0.0.1:7878"], key: "emk_x" }), /would expose the key; use https/);
  assert.throws(() => new Client({ servers: ["http://127.0.0.1"], key: "se cret" }), (error: Error) => !error.message.includes("se cret"));
});

test("a server that is not Earmark, and a clock that is an hour off, are named", async () => {
  const { slots } = await limits();
  const { createServer } = await import("node:http");
  const other = createServer((_, response) => response.end("<html>hello</html>")).listen(0, "127.0.0.1");
  await new Promise((resolve) => other.once("listening", resolve));
  const url = `http://127.0.0.1:${(other.address() as { port: number }).port}`;
  const wrong = new Limiter(new Client({ servers: [url] }), { completeWithinMs: 50, onAbandoned: () => {} });
  await assert.rejects(wrong.acquire({ a: 1 }, { withinMs: 100 }), /gave an answer that this version does not understand.*<html>hello.*check the address/);
  await wrong.flush();
  other.closeAllConnections();
  other.close();
  for (const offset of [-3_600_000, 3_600_000]) {
    const off = new Limiter(new Client({ servers: [server.url], now: () => Date.now() + offset }));
    await assert.rejects(off.acquire({ [slots]: 1 }), { reason: "invalid_request", message: /clock/ });
  }
});

test("an unknown and an expired key are refused, and the message says to check it", async () => {
  await using keyed = await startServer("--bootstrap-key");
  assert.ok(keyed.key);
  const response = await fetch(`${keyed.url}/v1/admin/keys`, {
    method: "POST",
    headers: { authorization: `Bearer ${keyed.key}`, "content-type": "application/json" },
    body: JSON.stringify({ name: "app", role: "caller", expires_in_seconds: 1 }),
  });
  const { key: expiring } = (await response.json()) as { key: string };
  const right = new Client({ servers: [keyed.url], key: keyed.key });
  const { actor, namespace, role } = await right.whoami();
  assert.deepEqual([actor.startsWith("system:"), namespace, role], [false, "default", "admin"]);
  await right.putLimit({ key: "k", kind: "concurrency", capacity: 1, timeout_seconds: 5 });
  await (await new Limiter(new Client({ servers: [keyed.url], key: expiring })).acquire({ k: 1 })).release();
  await new Promise((resolve) => setTimeout(resolve, 1_200));
  for (const key of ["emk_wrong", expiring]) {
    const wrong = new Client({ servers: [keyed.url], key });
    await assert.rejects(wrong.limits(), (error) => error instanceof RequestError && error.kind === "unauthorized");
    await assert.rejects(new Limiter(wrong).acquire({ k: 1 }), { reason: "unauthorized", message: /check the key/ });
  }
});

test("a lease that could not be completed is reported", async () => {
  const { slots } = await limits();
  const abandoned: string[] = [];
  const limiter = new Limiter(client, { completeWithinMs: 100, onAbandoned: (id) => abandoned.push(id) });
  const lease = await limiter.acquire({ [slots]: 1 });
  proxy.choose = () => "lose_request";
  await assert.rejects(lease.complete(), { name: "RequestError", kind: "deadline_passed" });
  proxy.choose = undefined;
  assert.deepEqual([abandoned, limiter.abandoned], [[lease.id], 1]);
});
