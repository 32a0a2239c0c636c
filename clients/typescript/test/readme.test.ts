/** Every example of the README runs against a real server, and prints what it says. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { startServer } from "./server.js";
import { startUpstream } from "./upstream.js";

const run = promisify(execFile);
const root = fileURLToPath(new URL("../..", import.meta.url));
const folder = join(root, "build/examples");

test("every example of the README compiles, runs and prints what it says", async () => {
  const readme = await readFile(join(root, "README.md"), "utf8");
  const examples = [...readme.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code]) => code as string);
  assert.ok(examples.length >= 7, "the README has its examples");
  await using server = await startServer();
  await using upstream = await startUpstream();
  await mkdir(folder, { recursive: true });
  const files = examples.map((_, index) => join(folder, `example${index + 1}.ts`));
  for (const [index, code] of examples.entries()) {
    await writeFile(files[index] as string, code.replaceAll("http://127.0.0.1:7878", server.url));
  }
  const options = "--ignoreConfig --strict --module nodenext --target es2022 --lib es2023,esnext.disposable --types node";
  const compiled = run(join(root, "node_modules/.bin/tsc"), [...options.split(" "), ...files], { cwd: root });
  await compiled.catch((error: { stdout: string }) => assert.fail(error.stdout));
  const cwd = await mkdtemp(join(tmpdir(), "earmark-readme-"));
  const env = {
    ...process.env,
    OPENAI_API_KEY: "k", OPENAI_BASE_URL: `${upstream.url}/v1`, ANTHROPIC_API_KEY: "k", ANTHROPIC_BASE_URL: upstream.url,
  };
  for (const [index, code] of examples.entries()) {
    const { stdout } = await run(process.execPath, [join(folder, `example${index + 1}.js`)], { cwd, env, timeout: 30_000 });
    const expected = [...code.matchAll(/\/\/ prints: (.*)$/gm)].map(([, line]) => line);
    assert.deepEqual(stdout.split("\n").filter((line) => line !== ""), expected, `example ${index + 1}`);
  }
  await rm(cwd, { recursive: true });
});
