/** The package, as npm would publish it, in a clean folder. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { startServer } from "./server.js";

const run = promisify(execFile);
const root = fileURLToPath(new URL("../..", import.meta.url));

const PROGRAM = `
import { Client, Limiter, Writer } from "earmark";
import { anthropicFetch } from "earmark/anthropic";
import { type FetchOptions, openaiFetch } from "earmark/openai";

const client = new Client({ servers: [process.env["SERVER"] ?? ""] });
await client.putLimit({ key: "k", kind: "concurrency", capacity: 1, timeout_seconds: 5 });
const limiter = new Limiter(client);
await using lease = await limiter.acquire({ k: 1 });
const options: FetchOptions = { limiter };
console.log(typeof openaiFetch(options), typeof anthropicFetch(options), typeof Writer.open, lease.isOpen);
`;

test("the packed package installs into a clean folder, compiles without its sources and runs", async () => {
  const folder = await mkdtemp(join(tmpdir(), "earmark-package-"));
  // The build exists, so that no script needs to run.
  const packed = await run("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", folder], { cwd: root });
  const [{ filename, files }] = JSON.parse(packed.stdout) as [{ filename: string; files: { path: string }[] }];
  const others = files.map(({ path }) => path).filter((path) => !/^(package\.json|README\.md|build\/src\/.*\.(js|d\.ts))$/.test(path));
  assert.deepEqual(others, [], "nothing but the build and its page");
  await writeFile(join(folder, "package.json"), JSON.stringify({ name: "clean", version: "1.0.0", type: "module", private: true }));
  await run("npm", ["install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", `./${filename}`], { cwd: folder });
  await writeFile(join(folder, "program.ts"), PROGRAM);
  await symlink(join(root, "node_modules/@types"), join(folder, "node_modules/@types"));
  await symlink(join(root, "node_modules/undici-types"), join(folder, "node_modules/undici-types"));
  const options = "--strict --module nodenext --target es2022 --lib es2023,esnext.disposable --types node program.ts";
  const compiled = run(join(root, "node_modules/.bin/tsc"), options.split(" "), { cwd: folder });
  await compiled.catch((error: { stdout: string }) => assert.fail(error.stdout));
  await using server = await startServer();
  const ran = await run(process.execPath, ["program.js"], { cwd: folder, env: { ...process.env, SERVER: server.url } });
  assert.equal(ran.stdout, "function function function true\n");
  await rm(folder, { recursive: true });
});

test("the lock file names exact versions and no registry", async () => {
  const manifest = JSON.parse(await readFile(join(root, "package.json"), "utf8")) as Record<string, Record<string, string> | undefined>;
  assert.equal(manifest["dependencies"], undefined);
  for (const version of Object.values(manifest["devDependencies"] ?? {})) assert.match(version, /^\d+\.\d+\.\d+$/);
  const lock = await readFile(join(root, "package-lock.json"), "utf8");
  const hosts = [...lock.matchAll(/"resolved": "https?:\/\/([^/"]+)/g)].map(([, host]) => host);
  assert.deepEqual(hosts.filter((host) => host !== "registry.npmjs.org"), []);
});
