import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { AcquireError, type Amounts, Client, Limiter, type LimitDefinition } from "../src/index.js";
import { type Fault, type Proxy, startProxy } from "./proxy.js";
import { type Server, startServer } from "./server.js";

/** A scenario of the file that the clients of all languages run. It describes its own fields. */
interface Scenario {
  readonly name: string;
  readonly servers?: number;
  readonly down?: readonly number[];
  readonly limits: Record<string, Omit<LimitDefinition, "key">>;
  readonly held?: Amounts;
  readonly requirements: Amounts;
  readonly actuals?: Amounts | null;
  readonly attempt_timeout_ms?: number;
  readonly timeout_ms?: number;
  readonly faults?: readonly Record<string, Fault>[];
  readonly requests?: readonly Request[];
  readonly first_requests?: readonly Request[];
  readonly result: "admitted" | "never" | "unknown_limit_key" | "timeout" | "error";
  readonly reserved?: Record<string, number>;
}

type Request = readonly [server: number, kind: string, lease: string];

const file = readFileSync(new URL("../../../scenarios.json", import.meta.url), "utf8");
const { scenarios } = JSON.parse(file) as { scenarios: Scenario[] };

let server: Server;
let client: Client;

before(async () => {
  server = await startServer();
  client = new Client({ servers: [server.url] });
});

after(() => server.stop());

let prefixes = 0;
for (const batching of [undefined, false] as const) {
  for (const scenario of scenarios) {
    test(`${scenario.name}${batching === false ? ", without batching" : ""}`, async () => {
      prefixes += 1;
      await run(JSON.parse(JSON.stringify(scenario).replaceAll("$:", `s${prefixes}:`)) as Scenario, batching);
    });
  }
}

async function run(scenario: Scenario, batching: false | undefined): Promise<void> {
  for (const [key, definition] of Object.entries(scenario.limits)) await client.putLimit({ key, ...definition });
  const held = scenario.held && (await new Limiter(client).acquire(scenario.held));
  const requests: Request[] = [];
  const proxies = await proxiesOf(scenario, requests);
  try {
    const limiter = new Limiter(
      new Client({ servers: proxies.map(({ url }) => url), attemptTimeoutMs: scenario.attempt_timeout_ms ?? 8_000 }),
      batching === false ? { batching } : {},
    );
    assert.equal(await result(limiter, scenario), scenario.result);
    assert.equal(await limiter.flush(), true);
    if (scenario.requests !== undefined) assert.deepEqual(requests, scenario.requests);
    const first = scenario.first_requests ?? [];
    assert.deepEqual(requests.slice(0, first.length), first);
    for (const [key, amount] of Object.entries(scenario.reserved ?? {})) {
      assert.equal((await client.usage(key)).reserved, amount, key);
    }
  } finally {
    await held?.release();
    await Promise.all(proxies.map((proxy) => proxy[Symbol.asyncDispose]()));
  }
}

/** The proxies of a scenario. `requests` notes what reaches them, with leases named A, B, ... in order. */
async function proxiesOf(scenario: Scenario, requests: Request[]): Promise<Proxy[]> {
  const names = new Map<string, string>();
  const named = (lease: string) => names.get(lease) ?? names.set(lease, String.fromCharCode(65 + names.size)).get(lease) as string;
  const proxies: Proxy[] = [];
  for (let number = 0; number < (scenario.servers ?? 1); number += 1) {
    const proxy = await startProxy(server.url, ({ path, body }) => {
      const kind = path.replace("/v1/", "").replace("/batch", "");
      for (const item of body.requests ?? [body]) requests.push([number, kind, named(item.lease_id)]);
    });
    let count = 0;
    proxy.choose = () => scenario.faults?.[number]?.[(count += 1)] ?? "pass";
    if (scenario.down?.includes(number) === true) await proxy[Symbol.asyncDispose]();
    proxies.push(proxy);
  }
  return proxies;
}

async function result(limiter: Limiter, scenario: Scenario): Promise<string> {
  try {
    await limiter.with(
      scenario.requirements,
      async (lease) => {
        if (scenario.actuals === null) throw new RangeError("the call failed");
        assert.equal((await lease.complete(scenario.actuals)).reconciled, true);
      },
      { withinMs: scenario.timeout_ms ?? 10_000 },
    );
    return "admitted";
  } catch (error) {
    if (error instanceof RangeError) return "error";
    if (!(error instanceof AcquireError)) throw error;
    return error.reason === "deadline_passed" ? "timeout" : error.reason;
  }
}
