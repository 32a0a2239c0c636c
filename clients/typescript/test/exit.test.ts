import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { Client } from "../src/index.js";
import { startServer } from "./server.js";

const index = new URL("../src/index.js", import.meta.url).href;

/** Runs a program with a lease on `slots`, and returns what is held after it has ended. */
async function heldAfter(program: string): Promise<number> {
  await using server = await startServer();
  const client = new Client({ servers: [server.url] });
  await client.putLimit({ key: "slots", kind: "concurrency", capacity: 10, timeout_seconds: 300 });
  const text = `
    import { Client, Limiter } from ${JSON.stringify(index)};
    const limiter = new Limiter(new Client({ servers: [${JSON.stringify(server.url)}] }));
    ${program}`;
  const child = spawn(process.execPath, ["--expose-gc", "--input-type=module", "--eval", text], { stdio: "inherit" });
  const code = await new Promise((resolve) => child.once("exit", resolve));
  assert.equal(code, 0);
  return Number((await client.usage("slots")).reserved);
}

test("a process that ends completes the leases that nobody completed", async () => {
  assert.equal(await heldAfter(`globalThis.kept = await limiter.acquire({ slots: 2 }); kept.keepAlive(60_000);`), 0);
});

test("a lease that is lost is completed when it is collected", async () => {
  const program = `
    async function lose() { await limiter.acquire({ slots: 3 }); }
    await lose();
    for (let round = 0; round < 50; round += 1) { gc(); await new Promise((resolve) => setTimeout(resolve, 10)); }
    await limiter.flush();
    process.exit(0);`;
  assert.equal(await heldAfter(program), 0);
});
