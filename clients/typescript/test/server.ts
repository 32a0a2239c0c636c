/** A real server for tests: `earmark serve --in-memory` on a free port. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

/** Milliseconds within which a server must print its address. */
const START_MAX_MS = 30_000;

function binary(): string {
  const beside = fileURLToPath(new URL("../../../../target/debug/earmark", import.meta.url));
  const path = process.env["EARMARK_BIN"] ?? beside;
  if (!existsSync(path)) throw new Error(`${path} does not exist; build it with cargo build, or name it in EARMARK_BIN`);
  return path;
}

export interface Server extends AsyncDisposable {
  readonly url: string;
  /** The first admin key, if the server was started with one. */
  readonly key: string | undefined;
  stop(): Promise<void>;
}

export async function startServer(...args: string[]): Promise<Server> {
  const child = spawn(binary(), ["serve", "--in-memory", "--listen", "127.0.0.1:0", "--log-level", "error", ...args], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const { url, key } = await said(child);
  const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  const stop = async () => {
    child.kill("SIGKILL");
    await ended;
  };
  return { url, key, stop, [Symbol.asyncDispose]: stop };
}

/** The address and the key that a server prints. */
function said(child: ChildProcess): Promise<{ url: string; key: string | undefined }> {
  return new Promise((resolve, reject) => {
    const timeout = setTimeout(() => reject(new Error("the server did not print its address")), START_MAX_MS);
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`the server ended with ${code}`)));
    let key: string | undefined;
    const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream });
    lines.on("line", (line) => {
      key ??= /^key:\s+(emk_\S+)/.exec(line)?.[1];
      const url = /listens on (http:\S+)/.exec(line)?.[1];
      if (url === undefined) return;
      clearTimeout(timeout);
      resolve({ url, key });
    });
  });
}
