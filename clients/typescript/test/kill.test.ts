import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { Client } from "../src/index.js";
import { startServer } from "./server.js";

/** Processes that are killed in the middle of their writes. */
const KILLS = 10;
/** Writes of a process that are seen before its kill: 0 to 3. Counted, because a busy machine may make none in any fixed time. */
const WRITES_BEFORE_KILL = 4;
/** The longest time from the last of them to the kill, in milliseconds: some steps of the next write. */
const WRITING_MAX_MS = 30;

const index = new URL("../src/index.js", import.meta.url).href;

/** Settles the unfinished write, then issues 1 again and again. Prints the fate of every sequence at once. */
const program = (url: string, path: string, isLast: boolean) => `
  import { writeSync } from "node:fs";
  import { Client, Writer } from ${JSON.stringify(index)};
  const client = new Client({ servers: [${JSON.stringify(url)}] });
  const options = { path: ${JSON.stringify(path)}, scope: { vault: "main" }, clientId: "killed" };
  const writer = await Writer.open(client, options);
  const sequence = writer.unfinished?.sequence;
  if (sequence !== undefined) writeSync(1, sequence + " " + (await writer.settle()) + "\\n");
  writeSync(1, "ready\\n");
  while (!${isLast}) {
    const receipt = await writer.write([{ issue: { account: "revenue", asset: "usd", amount: "1" } }]);
    writeSync(1, receipt.sequence + " committed\\n");
  }
  await writer.close();`;

test("writes of processes that are killed at any moment happen exactly once", async () => {
  await using server = await startServer();
  const folder = await mkdtemp(join(tmpdir(), "earmark-kill-"));
  const fates = new Map<string, string>();
  for (let kill = 0; kill <= KILLS; kill += 1) {
    const text = program(server.url, join(folder, "sequence"), kill === KILLS);
    const child = spawn(process.execPath, ["--input-type=module", "--eval", text], { stdio: ["ignore", "pipe", "inherit"] });
    const exited = new Promise<number | null>((resolve) => child.once("exit", resolve));
    let untilKill = kill < KILLS ? kill % WRITES_BEFORE_KILL : Infinity;
    let isReady = false;
    for await (const line of createInterface({ input: child.stdout })) {
      if (isReady) untilKill -= 1;
      isReady ||= line === "ready";
      if (isReady && untilKill === 0) setTimeout(() => child.kill("SIGKILL"), Math.random() * WRITING_MAX_MS);
      const [sequence, fate] = line.split(" ");
      if (sequence === undefined || fate === undefined) continue;
      assert.equal(fates.get(sequence) ?? fate, fate, `the fate of sequence ${sequence} changed`);
      fates.set(sequence, fate);
    }
    assert.equal(await exited, kill < KILLS ? null : 0, "a process ends only when it is killed");
  }
  const committed = [...fates.values()].filter((fate) => fate === "committed").length;
  const [balance] = await new Client({ servers: [server.url] }).balances("main", "revenue");
  assert.ok(committed > 0);
  assert.equal(balance?.available, String(committed));
  await rm(folder, { recursive: true });
});
