import { createHash } from "node:crypto";
import { open, readFile, realpath, rename, stat, unlink } from "node:fs/promises";
import { createServer, type Server, connect } from "node:net";
import { basename, dirname, join } from "node:path";

const VERSION = 1;
/** Bytes of a sequence file, far more than a record takes. A larger file is not a sequence file. */
const FILE_BYTES_MAX = 64 * 1024;

/** A write whose outcome its caller has not learned. */
export interface Unfinished {
  readonly sequence: number;
  /** The hash of the operations. */
  readonly content: string;
  /** Whether a fence was sent under the same number. */
  readonly is_fenced: boolean;
}

/** The content of a sequence file. */
export interface SequenceRecord {
  /** The last sequence number that is known to be committed. */
  readonly committed: number;
  readonly unfinished: Unfinished | null;
}

/** The writer that a file belongs to. */
export interface Owner {
  readonly namespace: string;
  readonly vault: string | undefined;
  readonly clientId: string;
}

/** A sequence file that cannot be used. */
export class SequenceFileError extends Error {
  override readonly name = "SequenceFileError";
}

export function sha256(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}

/**
 * The file with the last used sequence number, in the format of the Rust client: one line of JSON, one of its SHA-256.
 *
 * A lock keeps other writers of this machine out. The kernel frees it when the process ends.
 */
export class SequenceFile {
  private constructor(private readonly path: string, private readonly owner: Owner, private readonly lock: Server) {}

  /** Takes the lock and reads the record; `undefined` without a file. */
  static async open(path: string, owner: Owner): Promise<[SequenceFile, SequenceRecord | undefined]> {
    const folder = await realpath(dirname(path)).catch((error: Error) => fail(path, `its folder cannot be read: ${error.message}`));
    const real = join(folder, basename(path));
    const file = new SequenceFile(real, owner, await locked(real));
    try {
      return [file, await file.#read()];
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  async #read(): Promise<SequenceRecord | undefined> {
    const about = await stat(this.path).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return undefined;
      return fail(this.path, `it cannot be read: ${error.message}`);
    });
    if (about === undefined) return undefined;
    if (about.size > FILE_BYTES_MAX) damaged(this.path, "it is larger than 64 KiB");
    return this.#parse(await readFile(this.path, "utf8"));
  }

  #parse(text: string): SequenceRecord {
    const [line, sum, ...rest] = text.split("\n");
    if (line === undefined || sum === undefined || rest.join("") !== "") damaged(this.path, "it does not have two lines");
    if (sum !== sha256(line)) damaged(this.path, "its checksum does not match");
    const document = JSON.parse(line) as Record<string, unknown>;
    if (document["version"] !== VERSION) damaged(this.path, `found version ${document["version"]}, this program knows ${VERSION}`);
    const { namespace, vault, client_id, committed, unfinished } = document;
    const found = ownerText({ namespace: String(namespace), vault: vault === null ? undefined : String(vault), clientId: String(client_id) });
    if (found !== ownerText(this.owner)) fail(this.path, `it belongs to ${found}, not to ${ownerText(this.owner)}`);
    const record = { committed, unfinished } as SequenceRecord;
    if (!Number.isSafeInteger(committed)) damaged(this.path, "its sequence number is not an integer");
    if (record.unfinished !== null && record.unfinished.sequence !== record.committed + 1) {
      damaged(this.path, "its sequence numbers are not consecutive");
    }
    return record;
  }

  /**
   * Replaces the record: writes a second file, flushes it, renames it and flushes the folder, so that a crash leaves the old
   * record or the new one, never a part.
   */
  async store({ committed, unfinished }: SequenceRecord): Promise<void> {
    const { namespace, vault, clientId } = this.owner;
    const line = JSON.stringify({ version: VERSION, namespace, vault: vault ?? null, client_id: clientId, committed, unfinished });
    const beside = `${this.path}.new`;
    try {
      const file = await open(beside, "w", 0o600);
      try {
        await file.writeFile(`${line}\n${sha256(line)}\n`);
        await file.sync();
      } finally {
        await file.close();
      }
      await rename(beside, this.path);
      await syncFolder(dirname(this.path));
    } catch (error) {
      fail(this.path, `it cannot be written: ${(error as Error).message}`);
    }
  }

  /** Frees the lock. */
  async close(): Promise<void> {
    await new Promise((resolve) => this.lock.close(resolve));
  }
}

async function syncFolder(path: string): Promise<void> {
  // Windows has no flush of folders.
  if (process.platform === "win32") return;
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

/**
 * A lock that the kernel frees with the process, which Node offers for sockets only: a name in the abstract namespace of
 * Linux, a named pipe on Windows, elsewhere a socket file beside the sequence file.
 */
async function locked(path: string): Promise<Server> {
  const name = `earmark-sequence-${sha256(path)}`;
  const names: Partial<Record<NodeJS.Platform, string>> = { linux: `\0${name}`, win32: `\\\\.\\pipe\\${name}` };
  const address = names[process.platform] ?? `${path}.sock`;
  const listening = (await listen(address)) ?? ((await isStale(address)) ? await listen(address) : undefined);
  return listening ?? fail(path, "another writer uses it; only one may");
}

function listen(address: string): Promise<Server | undefined> {
  return new Promise((resolve, reject) => {
    const server = createServer((socket) => socket.destroy());
    server.unref();
    server.once("error", (error: NodeJS.ErrnoException) => (error.code === "EADDRINUSE" ? resolve(undefined) : reject(error)));
    server.listen(address, () => resolve(server));
  });
}

/** Whether a socket file is left over from a process that ended. Then it is removed. */
async function isStale(address: string): Promise<boolean> {
  if (process.platform === "linux" || process.platform === "win32") return false;
  const isDead = await new Promise<boolean>((resolve) => {
    const socket = connect(address, () => resolve(false));
    socket.once("error", () => resolve(true));
    socket.once("connect", () => socket.destroy());
  });
  if (isDead) await unlink(address).catch(() => {});
  return isDead;
}

function ownerText({ namespace, vault, clientId }: Owner): string {
  const inVault = vault === undefined ? "" : ` vault ${vault} of`;
  return `client ${clientId} in${inVault} namespace ${namespace}`;
}

function fail(path: string, why: string): never {
  throw new SequenceFileError(`${path}: ${why}`);
}

function damaged(path: string, why: string): never {
  return fail(
    path,
    `${why}. Restore the file, or remove it: the writer then continues after the last sequence of the server, and the ` +
      "outcome of an unfinished write is lost",
  );
}
