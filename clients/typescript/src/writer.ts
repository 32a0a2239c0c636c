import { checkAmount, InputError } from "./amount.js";
import type { Client, Read, Scope } from "./client.js";
import { Deadline, sleep, type WaitOptions } from "./deadline.js";
import { RequestError } from "./error.js";
import { stringify } from "./json.js";
import { SequenceFile, sha256, type Unfinished } from "./sequence_file.js";
import { refusal } from "./transport.js";
import type { Operation, Receipt, WriteRefusal, WriteRequest } from "./wire.js";

/** Attempts to place a fence without a file. One unknown write of the lost file may take a sequence; more means another writer. */
const FENCES_MAX = 3;
/** The hash of no operations, as in a fence. */
const EMPTY = sha256("");
/** Stands for operations that are not known. */
const UNKNOWN = "0".repeat(64);

/** The options of a writer. */
export interface WriterOptions {
  /** The file with the last used sequence number. */
  readonly path: string;
  /** The scope of the writes. */
  readonly scope: Scope;
  /** The client id. No other writer may use it in this scope. */
  readonly clientId: string;
}

/** Whether an unfinished write was committed. If not, it never will be. */
export type Fate = "committed" | "never_happened";

/**
 * Why a write was not committed, or the writer cannot continue.
 *
 * - `refused`: the server refused the write; see `refusal`. Nothing changed, and no copy can change anything later.
 * - `not_sent`: the request was not sent, or refused before the write was examined. Nothing changed.
 * - `outcome_unknown`: the writer remembers the write as unfinished. Repeat or settle it.
 * - `unfinished`: an earlier write is unfinished. Repeat or settle it first.
 * - `other_content`: the operations to repeat differ from those of the unfinished write.
 * - `fenced`: the write to repeat was fenced off: it was not committed and never will be.
 * - `nothing_to_repeat`: no write is unfinished.
 * - `conflict`: to continue could lose or repeat a write. The writer stops for good.
 * - `closed`: the writer is closed.
 */
export type WriterReason =
  | "refused"
  | "not_sent"
  | "outcome_unknown"
  | "unfinished"
  | "other_content"
  | "fenced"
  | "nothing_to_repeat"
  | "conflict"
  | "closed";

/** A write that was not committed, or whose outcome is unknown. */
export class WriterError extends Error {
  override readonly name = "WriterError";

  constructor(readonly reason: WriterReason, message: string, readonly refusal?: WriteRefusal, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
  }
}

/** The outcome of the last attempt, and whether a copy of an earlier one may still arrive. */
type Outcome = { readonly mayArriveLate: boolean } & (
  | { readonly kind: "committed"; readonly receipt: Receipt }
  | { readonly kind: "refused"; readonly refusal: WriteRefusal }
  /** The request was refused before the write was examined. */
  | { readonly kind: "rejected"; readonly failure: RequestError }
  /** The deadline passed. */
  | { readonly kind: "nothing"; readonly failure: RequestError }
);

/** The answer to a write. */
export type Written = { readonly receipt: Receipt } | { readonly refusal: WriteRefusal };

/** Reads the answer to a write. */
export const written: Read<Written> = (response) => {
  const json = response.json as { success?: Receipt; error?: WriteRefusal } | null | undefined;
  if (typeof json?.success === "object") return { receipt: json.success };
  if (typeof json?.error === "object" && typeof json.error.code === "string") {
    if (json.error.code === "UNAVAILABLE") throw new RequestError("unavailable", `${response.server} is unavailable: ${json.error.message}`);
    return { refusal: json.error };
  }
  throw refusal(response);
};

/**
 * Writes transactions exactly once, one at a time, even when the process is killed in between.
 *
 * A sequence number is on disk before it is sent, with the hash of its operations. While its outcome is unknown, the number
 * is used only for the same operations or for a fence: a transaction without operations, which takes the number from any
 * copy that may still arrive.
 */
export class Writer implements AsyncDisposable {
  #committed = 0;
  #unfinished: Unfinished | null = null;
  #conflict: WriterError | undefined;
  #isBusy = false;
  #isClosed = false;

  private constructor(
    private readonly client: Client,
    private readonly file: SequenceFile,
    private readonly scope: { readonly namespace: string; readonly vault: string | undefined },
    private readonly clientId: string,
  ) {}

  /**
   * Opens the file, and compares it with the state of the server. A writer that was not closed may have an
   * {@link Writer.unfinished} write: repeat or settle it before the next one.
   *
   * Without a file the writer continues after the last sequence of the server, behind a fence: once this returns, no earlier
   * write can still be committed.
   */
  static async open(client: Client, options: WriterOptions, wait?: WaitOptions): Promise<Writer> {
    const { clientId, path } = options;
    if (!/^[A-Za-z0-9._@+-]{1,64}$/.test(clientId)) throw new InputError("clientId", clientId, "are 1 to 64 letters, digits and ._@+-");
    const scope = { namespace: options.scope.namespace ?? "default", vault: options.scope.vault };
    const [file, record] = await SequenceFile.open(path, { ...scope, clientId });
    const writer = new Writer(client, file, scope, clientId);
    try {
      const deadline = client.deadline(wait);
      if (record === undefined) await writer.#recoverWithoutFile(deadline, wait?.signal);
      else {
        writer.#committed = record.committed;
        writer.#unfinished = record.unfinished;
        await writer.#resume(deadline, wait?.signal);
      }
      return writer;
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** The write whose outcome the caller has not learned. */
  get unfinished(): { readonly sequence: number } | undefined {
    return this.#unfinished === null ? undefined : { sequence: this.#unfinished.sequence };
  }

  /** The last sequence number that is known to be committed. */
  get committed(): number {
    return this.#committed;
  }

  /**
   * Writes a transaction with the next sequence number. When it throws and the write is {@link Writer.unfinished}
   * afterwards, it may have been committed. Otherwise it was not, and never will be.
   */
  async write(operations: readonly Operation[], wait?: WaitOptions): Promise<Receipt> {
    return await this.#alone(async () => {
      const body = checkOperations(operations);
      if (this.#unfinished !== null) {
        throw new WriterError("unfinished", `sequence ${this.#unfinished.sequence} is unfinished; repeat or settle it first`);
      }
      const sequence = this.#committed + 1;
      await this.#begin({ sequence, content: hash(body), is_fenced: false });
      return await this.#send(sequence, body, false, this.client.deadline(wait), wait?.signal);
    });
  }

  /** Repeats the unfinished transaction with its own number. If it was committed already, the original receipt is returned. */
  async repeat(operations: readonly Operation[], wait?: WaitOptions): Promise<Receipt> {
    return await this.#alone(async () => {
      const body = checkOperations(operations);
      const unfinished = this.#unfinished;
      if (unfinished === null) throw new WriterError("nothing_to_repeat", "no write is unfinished");
      if (unfinished.content !== hash(body)) {
        throw new WriterError("other_content", `sequence ${unfinished.sequence} has other operations; repeat those, or settle it`);
      }
      return await this.#send(unfinished.sequence, body, true, this.client.deadline(wait), wait?.signal);
    });
  }

  /** Finds out whether the unfinished write was committed. If not, a fence makes sure that it never will be. */
  async settle(wait?: WaitOptions): Promise<Fate | undefined> {
    return await this.#alone(async () => {
      const unfinished = this.#unfinished;
      if (unfinished === null) return undefined;
      const fate = await this.#fence(unfinished, this.client.deadline(wait), wait?.signal);
      this.#markKnown(unfinished.sequence);
      return fate;
    });
  }

  /**
   * Stores that the caller knows the outcome of every write, and frees the lock. An unfinished write stays in the file, for
   * the next writer to repeat or settle.
   */
  async close(): Promise<void> {
    if (this.#isClosed) return;
    if (this.#isBusy) throw new WriterError("unfinished", "a write is under way; await it before closing");
    this.#isClosed = true;
    try {
      if (this.#conflict === undefined) await this.file.store({ committed: this.#committed, unfinished: this.#unfinished });
    } finally {
      await this.file.close();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Runs one operation at a time. */
  async #alone<T>(work: () => Promise<T>): Promise<T> {
    if (this.#isClosed) throw new WriterError("closed", "the writer is closed; open it again");
    if (this.#conflict !== undefined) throw this.#conflict;
    if (this.#isBusy) throw new WriterError("unfinished", "a write is under way; await it first");
    this.#isBusy = true;
    try {
      return await work();
    } finally {
      this.#isBusy = false;
    }
  }

  /** Stores the write before it is sent. It is unfinished only after that. */
  async #begin(unfinished: Unfinished): Promise<void> {
    await this.file.store({ committed: this.#committed, unfinished });
    this.#unfinished = unfinished;
  }

  #markKnown(sequence: number): void {
    this.#committed = sequence;
    this.#unfinished = null;
  }

  /** Stops the writer for good. */
  #stop(message: string): WriterError {
    this.#conflict = new WriterError("conflict", `the writer stopped: ${message}`);
    return this.#conflict;
  }

  #serverAhead(server: number, file: number): WriterError {
    return this.#stop(
      `the server has committed sequence ${server} of this client, but its file ends at ${file}: another writer uses the same ` +
        "clientId, or the file is an old copy. Stop the other writer; without another writer, remove the file, and check " +
        "what the sequences in between did before writing them again",
    );
  }

  #serverBehind(server: number): WriterError {
    return this.#stop(
      `sequence ${this.#committed} of this client was acknowledged, but the server ends at ${server}: it lost its data, was ` +
        "restored from an older backup, or is another server. If you accept the loss, remove the file and repeat the " +
        "missing writes",
    );
  }

  #numberTaken(sequence: number): WriterError {
    return this.#stop(
      `sequence ${sequence} of this client was committed with other operations: another writer uses the same clientId. ` +
        "Give each writer its own",
    );
  }

  /** Continues from the file, if the server agrees with it. */
  async #resume(deadline: Deadline, signal: AbortSignal | undefined): Promise<void> {
    const server = await this.#serverSequence(deadline, signal);
    const used = this.#unfinished?.sequence ?? this.#committed;
    if (server > used) throw this.#serverAhead(server, used);
    if (server < this.#committed) throw this.#serverBehind(server);
    // The process ended while it recovered without a file.
    if (this.#unfinished?.content === UNKNOWN) await this.#recoverWithoutFile(deadline, signal);
  }

  /** Continues after the last sequence of the server. A write of the lost file may still arrive, so the next one is a fence. */
  async #recoverWithoutFile(deadline: Deadline, signal: AbortSignal | undefined): Promise<void> {
    for (let fences = 0; fences < FENCES_MAX; fences += 1) {
      this.#committed = await this.#serverSequence(deadline, signal);
      const unfinished: Unfinished = { sequence: this.#committed + 1, content: UNKNOWN, is_fenced: true };
      await this.#begin(unfinished);
      const fate = await this.#fence(unfinished, deadline, signal);
      this.#markKnown(unfinished.sequence);
      if (fate === "never_happened") return await this.file.store({ committed: this.#committed, unfinished: null });
    }
    throw this.#serverAhead(await this.#serverSequence(deadline, signal), this.#committed);
  }

  async #serverSequence(deadline: Deadline, signal: AbortSignal | undefined): Promise<number> {
    const wait: WaitOptions = { withinMs: Math.max(deadline.leftMs(), 1), ...(signal && { signal }) };
    return await this.client.clientState(this.#scoped(), this.clientId, wait);
  }

  #scoped(): Scope {
    const { namespace, vault } = this.scope;
    return vault === undefined ? { namespace } : { namespace, vault };
  }

  /** Sends operations whose sequence number is on disk, until their outcome is known. */
  async #send(
    sequence: number,
    operations: readonly Operation[],
    wasSent: boolean,
    deadline: Deadline,
    signal: AbortSignal | undefined,
  ): Promise<Receipt> {
    const outcome = await this.#sendUntilKnown(sequence, operations, wasSent, deadline, signal);
    const unknown = (failure: RequestError) =>
      new WriterError("outcome_unknown", `the outcome of sequence ${sequence} is unknown; repeat or settle it: ${failure.message}`, undefined, failure);
    if (outcome.kind === "committed") return this.#isCommitted(sequence, outcome.receipt);
    if (outcome.kind === "nothing" && outcome.mayArriveLate) throw unknown(outcome.failure);
    const error =
      outcome.kind === "refused"
        ? this.#refused(sequence, outcome.refusal)
        : new WriterError("not_sent", outcome.failure.message, undefined, outcome.failure);
    const unfinished = this.#unfinished;
    if (unfinished === null || error.reason === "conflict" || error.reason === "fenced") throw error;
    // A refusal is final only if no earlier copy can arrive later, when the reason may be gone.
    if (!outcome.mayArriveLate) {
      this.#unfinished = null;
      throw error;
    }
    if ((await this.#fence(unfinished, deadline, signal)) === "never_happened") {
      this.#markKnown(sequence);
      throw error;
    }
    // The write is committed. It stays unfinished until its receipt arrives.
    const again = await this.#sendUntilKnown(sequence, operations, true, deadline, signal);
    if (again.kind === "committed") return this.#isCommitted(sequence, again.receipt);
    if (again.kind === "refused") throw this.#numberTaken(sequence);
    throw unknown(again.failure);
  }

  #isCommitted(sequence: number, receipt: Receipt): Receipt {
    if (receipt.sequence !== sequence) throw this.#numberTaken(sequence);
    this.#markKnown(sequence);
    return receipt;
  }

  /** Converts a refusal of the operations; stops the writer if the sequence number itself was refused. */
  #refused(sequence: number, refusal: WriteRefusal): WriterError {
    const server = refusal.last_committed_sequence ?? 0;
    switch (refusal.code) {
      case "SEQUENCE_REUSED":
        // Another writer used sequences after this one.
        if (server > sequence) return this.#serverAhead(server, sequence);
        // This writer sends no other content with the same number than a fence.
        if (this.#unfinished?.is_fenced === true) {
          this.#markKnown(sequence);
          return new WriterError("fenced", `sequence ${sequence} was taken by a fence and its write never happened; write it again`);
        }
        return this.#numberTaken(sequence);
      case "ALREADY_COMMITTED":
        return this.#serverAhead(server, sequence);
      case "SEQUENCE_GAP":
        return this.#serverBehind(server);
      default:
        return new WriterError("refused", `the write was refused: ${refusal.code}: ${refusal.message}`, refusal);
    }
  }

  /**
   * Sends a transaction without operations with the unfinished number. Either it takes the number, and no copy of the write
   * can be committed any more; or the write has the number already. The write stays unfinished.
   */
  async #fence(unfinished: Unfinished, deadline: Deadline, signal: AbortSignal | undefined): Promise<Fate> {
    const { sequence, content } = unfinished;
    await this.#begin({ ...unfinished, is_fenced: true });
    const outcome = await this.#sendUntilKnown(sequence, [], true, deadline, signal);
    const unknown = (why: string) => new WriterError("outcome_unknown", `the outcome of sequence ${sequence} is unknown; settle it: ${why}`);
    switch (outcome.kind) {
      case "committed":
        if (outcome.receipt.sequence !== sequence) throw this.#numberTaken(sequence);
        return content === EMPTY ? "committed" : "never_happened";
      case "refused": {
        const { code, last_committed_sequence: last } = outcome.refusal;
        if (code === "SEQUENCE_REUSED" && (last === undefined || last === sequence)) return "committed";
        const error = this.#refused(sequence, outcome.refusal);
        throw error.reason === "conflict" ? error : unknown(error.message);
      }
      default:
        throw unknown(outcome.failure.message);
    }
  }

  /** Sends the same write until its outcome is known or the deadline passes. */
  async #sendUntilKnown(
    sequence: number,
    operations: readonly Operation[],
    wasSent: boolean,
    deadline: Deadline,
    signal: AbortSignal | undefined,
  ): Promise<Outcome> {
    const { client } = this;
    const request: WriteRequest = { ...this.#scoped(), namespace: this.scope.namespace, client_id: this.clientId, sequence, operations };
    const body = stringify(request);
    const backoff = client.backoff();
    let mayArriveLate = wasSent;
    let last: RequestError | undefined;
    while (!deadline.hasPassed() && !isAborted(signal)) {
      try {
        const answer = await client.askOnce({ method: "POST", path: "/v1/write", body }, written, deadline, signal);
        if ("receipt" in answer) return { kind: "committed", receipt: answer.receipt, mayArriveLate };
        if (answer.refusal.code !== "SEQUENCE_GAP") return { kind: "refused", refusal: answer.refusal, mayArriveLate };
        // The server is behind for a moment, or it lost writes that it acknowledged.
        if ((await this.#serverSequence(deadline, signal)) < this.#committed) {
          return { kind: "refused", refusal: answer.refusal, mayArriveLate };
        }
        throw new RequestError("unavailable", `the server is unavailable: ${answer.refusal.message}`);
      } catch (error) {
        if (isAborted(signal)) {
          mayArriveLate = true;
          last = new RequestError("no_answer", "the caller stopped waiting", { cause: signal?.reason });
          break;
        }
        if (!(error instanceof RequestError)) throw error;
        mayArriveLate ||= error.certainty === "unknown";
        last = error;
        if (error.kind === "deadline_passed") break;
        if (!error.isTransient) return { kind: "rejected", failure: error, mayArriveLate };
        await sleep(backoff.waitMs(error, client.settings.servers.length), deadline, signal).catch(() => {});
      }
    }
    return { kind: "nothing", failure: RequestError.deadlinePassed(last), mayArriveLate };
  }
}

function isAborted(signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true;
}

/** A copy of the operations, with amounts of credit as decimal strings. */
export function checkOperations(operations: readonly Operation[]): Operation[] {
  return operations.map((operation, index) => {
    const [[name, value] = ["nothing", undefined], ...more] = Object.entries(operation);
    if (typeof value !== "object" || value === null || more.length > 0) {
      throw new InputError(`operations[${index}]`, Object.keys(operation).join(", ") || "nothing", "is exactly one field, such as issue");
    }
    if (!("amount" in value)) return { [name]: { ...value } } as Operation;
    const { amount } = value as { amount: unknown };
    if (typeof amount === "string" ? !/^[1-9][0-9]{0,38}$/.test(amount) : typeof amount !== "bigint") {
      throw new InputError(`operations[${index}].${name}.amount`, amount, 'is a decimal string of minor units, such as "5000000", or a bigint');
    }
    if (typeof amount === "bigint") checkAmount(`operations[${index}].${name}.amount`, amount, 1n, 10n ** 39n - 1n);
    return { [name]: { ...value, amount: String(amount) } } as Operation;
  });
}

/** The hash of the operations, whatever the order of their fields: that of their JSON in ASCII, as in the Python client. */
export function hash(operations: readonly Operation[]): string {
  if (operations.length === 0) return EMPTY;
  const escaped = (character: string) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return sha256(stringify(sorted(operations)).replace(/[\u007f-\uffff]/g, escaped));
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, field]) => [name, sorted(field)]));
}
