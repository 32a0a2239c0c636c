import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Client, type Operation, Writer, WriterError } from "../src/index.js";
import { type Fault, LATE_MS, type Proxy, startProxy } from "./proxy.js";
import { type Server, startServer } from "./server.js";

let server: Server;
let proxy: Proxy;
let client: Client;
let direct: Client;
let folder: string;

before(async () => {
  server = await startServer();
  proxy = await startProxy(server.url);
  client = new Client({ servers: [proxy.url], backoff: { firstMs: 5, longestMs: 20 } });
  direct = new Client({ servers: [server.url] });
  folder = await mkdtemp(join(tmpdir(), "earmark-writer-"));
});

after(async () => {
  await proxy[Symbol.asyncDispose]();
  await server.stop();
  await rm(folder, { recursive: true });
});

let count = 0;
/** A writer with its own client id and account. */
async function opened() {
  count += 1;
  const [clientId, account] = [`writer-${count}`, `account-${count}`];
  const options = { path: join(folder, clientId), scope: { vault: "main" }, clientId };
  const writer = await Writer.open(client, options);
  await writer.write([{ open_account: { account, overdraft: "deny" } }]);
  const issue = (amount: string | bigint): Operation[] => [{ issue: { account, asset: "usd", amount } }];
  const balance = async () => (await direct.balances("main", account))[0]?.available ?? "0";
  return { writer, options, account, issue, balance };
}

async function withFault<T>(fault: Fault, work: () => Promise<T>): Promise<T> {
  proxy.choose = (path) => (path === "/v1/write" ? fault : "pass");
  try {
    return await work();
  } finally {
    proxy.choose = undefined;
  }
}

test("a write under an idempotency key happens once, from any process, whatever is lost", async () => {
  const { writer, account, issue, balance } = await opened();
  const scope = { vault: "main" };
  for (const fault of ["lose_request", "lose_answer", "duplicate"] as const) {
    const key = `evt ${account} ${fault}`.replaceAll(" ", "_");
    let isFirst = true;
    proxy.choose = (path) => {
      const chosen = path === "/v1/write" && isFirst ? fault : "pass";
      isFirst = false;
      return chosen;
    };
    const receipt = await client.writeOnce(key, issue(5n), scope);
    proxy.choose = undefined;
    assert.equal(receipt.sequence, undefined);
    assert.deepEqual(await direct.writeOnce(key, issue("5"), scope), receipt);
    await assert.rejects(direct.writeOnce(key, issue("6"), scope), (error) => {
      assert(error instanceof WriterError);
      return error.reason === "refused" && error.refusal?.code === "KEY_REUSED";
    });
  }
  assert.equal(await balance(), "15");
  await writer.close();
});

test("a statement sums up a period", async () => {
  const { writer, account, issue } = await opened();
  await writer.write([...issue("5"), ...issue("7")]);
  const statement = await direct.statement("main", account, { groupBy: "model" });
  assert.equal(statement.group_by, "model");
  assert.deepEqual(statement.assets.map(({ asset, opening, issued, closing, groups }) => [asset, opening, issued, closing, groups]), [
    ["usd", "0", "12", "12", []],
  ]);
  const later = await direct.statement("main", account, { since: 4_000_000_000_000 });
  assert.deepEqual(later.assets.map(({ opening, issued, closing }) => [opening, issued, closing]), [["12", "0", "12"]]);
  await writer.close();
});

test("grants are listed in the order in which they are spent", async () => {
  const { writer, account, issue } = await opened();
  const promotion = { account, asset: "usd", amount: "7", expires_at_unix_ms: 4_000_000_000_000, priority: 3 };
  await writer.write([...issue("5"), { issue: promotion }]);
  assert.deepEqual(await direct.grants("main", account), [
    { asset: "usd", remaining: "7", held: "0", priority: 3, expires_at_unix_ms: 4_000_000_000_000 },
    { asset: "usd", remaining: "5", held: "0", priority: 128 },
  ]);
  await writer.close();
});

test("a write is committed once, whatever happens to its requests and answers", async () => {
  const { writer, issue, balance } = await opened();
  for (const fault of ["lose_request", "lose_answer", 503, "duplicate"] as const) {
    proxy.faults = [fault, fault];
    await writer.write(issue("5"));
  }
  assert.equal(await balance(), "20");
  const big = 2n ** 70n;
  await writer.write(issue(big));
  assert.equal(await balance(), String(big + 20n), "amounts of credit are exact");
  await writer.close();
});

test("a write with an unknown outcome is repeated with its number, also by the next process", async () => {
  const { writer, options, issue, balance } = await opened();
  await withFault("lose_answer", async () => {
    await assert.rejects(writer.write(issue("7"), { withinMs: 400 }), { name: "WriterError", reason: "outcome_unknown" });
  });
  const sequence = writer.unfinished?.sequence;
  await assert.rejects(writer.write(issue("8")), { reason: "unfinished" });
  await assert.rejects(writer.repeat(issue("8")), { reason: "other_content" });
  await writer.close();
  const next = await Writer.open(client, options);
  assert.deepEqual(next.unfinished, { sequence });
  assert.equal((await next.repeat(issue("7"))).sequence, sequence);
  assert.equal(await balance(), "7");
  await assert.rejects(next.repeat(issue("7")), { reason: "nothing_to_repeat" });
  await next.close();
});

test("a settled write was committed or never will be", async () => {
  const { writer, issue, balance } = await opened();
  for (const [fault, fate, amount] of [["lose_answer", "committed", "3"], ["lose_request", "never_happened", "3"]] as const) {
    await withFault(fault, async () => {
      await assert.rejects(writer.write(issue("3"), { withinMs: 400 }), { reason: "outcome_unknown" });
    });
    assert.equal(await writer.settle(), fate);
    assert.equal(await balance(), amount);
  }
  await withFault("late_request", async () => {
    await assert.rejects(writer.write(issue("100"), { withinMs: 30 }), { reason: "outcome_unknown" });
  });
  assert.equal(await writer.settle(), "never_happened");
  await new Promise((resolve) => setTimeout(resolve, LATE_MS + 200));
  assert.equal(await balance(), "3", "the late copy found its number taken");
  assert.equal(await writer.settle(), undefined);
  await writer.close();
});

test("a refusal leaves the number free, and one after an unknown outcome is fenced", async () => {
  const { writer, issue, balance } = await opened();
  const before = writer.committed;
  const retire: Operation[] = [{ retire: { account: "no-such", asset: "usd", amount: "1" } }];
  const error = await writer.write(retire).catch((error: unknown) => error as any);
  assert.deepEqual([error.reason, error.refusal.code], ["refused", "ACCOUNT_NOT_FOUND"]);
  assert.equal(writer.unfinished, undefined);
  assert.equal((await writer.write(issue("1"))).sequence, before + 1);
  proxy.faults = ["lose_request"];
  await assert.rejects(writer.write(retire), { reason: "refused" });
  assert.equal(writer.committed, before + 2, "the fence took the number");
  assert.equal(await balance(), "1");
  await writer.close();
});

test("an aborted write is unfinished", async () => {
  const { writer, issue, balance } = await opened();
  const controller = new AbortController();
  proxy.choose = () => {
    controller.abort();
    return "hang";
  };
  await assert.rejects(writer.write(issue("9"), { signal: controller.signal }), { reason: "outcome_unknown" });
  proxy.choose = undefined;
  assert.equal((await writer.repeat(issue("9"))).sequence, writer.committed);
  assert.equal(await balance(), "9");
  await assert.rejects(writer.write(issue("1"), { signal: AbortSignal.abort() }), { reason: "not_sent" });
  assert.equal(writer.unfinished, undefined, "nothing was sent, so the number is free");
  await writer.close();
});

test("only one writer may use a file, and a file of another writer is refused", async () => {
  const { writer, options } = await opened();
  await assert.rejects(Writer.open(client, options), { name: "SequenceFileError", message: /another writer uses it/ });
  await writer.close();
  await assert.rejects(Writer.open(client, { ...options, clientId: "other" }), /belongs to client writer-\d+ in vault main of namespace default/);
  await (await Writer.open(client, options)).close();
});

test("a damaged file is refused, and a removed one continues behind a fence", async () => {
  const { writer, options, issue, balance } = await opened();
  await writer.write(issue("2"));
  const { committed } = writer;
  await writer.close();
  const text = await readFile(options.path, "utf8");
  for (const [damage, message] of [
    [text.replace(/"committed":\d+/, '"committed":99'), /checksum/],
    [text.slice(0, 40), /two lines/],
    ["x".repeat(70_000), /larger than 64 KiB/],
  ] as const) {
    await writeFile(options.path, damage);
    await assert.rejects(Writer.open(client, options), message);
  }
  await rm(options.path);
  const next = await Writer.open(client, options);
  assert.equal(next.committed, committed + 1);
  await next.write(issue("2"));
  assert.equal(await balance(), "4");
  await next.close();
});

test("a server that is ahead of the file, or behind it, stops the writer", async () => {
  const { writer, options, issue } = await opened();
  await writer.close();
  const old = await readFile(options.path, "utf8");
  const ahead = await Writer.open(client, options);
  await ahead.write(issue("1"));
  await ahead.close();
  const newest = await readFile(options.path, "utf8");
  await writeFile(options.path, old);
  await assert.rejects(Writer.open(client, options), { reason: "conflict", message: /the file is an old copy/ });
  await writeFile(options.path, newest);
  await using empty = await startServer();
  const behind = Writer.open(new Client({ servers: [empty.url] }), options);
  await assert.rejects(behind, { reason: "conflict", message: /it lost its data/ });
});

test("bad operations are refused before anything is stored or sent", async () => {
  const { writer } = await opened();
  const issue = (amount: unknown) => [{ issue: { account: "a", asset: "usd", amount } }] as Operation[];
  for (const amount of [1.5, 5, "1.5", "0", "-1", 0n, ""]) {
    await assert.rejects(writer.write(issue(amount)), { name: "InputError", message: /operations\[0\]\.issue\.amount: found / });
  }
  await assert.rejects(writer.write([{} as Operation]), { name: "InputError" });
  assert.equal(writer.unfinished, undefined);
  await writer.close();
});
