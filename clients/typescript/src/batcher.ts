import { checkAmount } from "./amount.js";
import { type Client, fields, type Read } from "./client.js";
import { Deadline } from "./deadline.js";
import { RequestError } from "./error.js";
import { stringify } from "./json.js";
import { type HttpRequest, refusal, unexpected } from "./transport.js";

/** The number of items that a server takes in one request. */
const BATCH_MAX = 256;
/** Characters of one batch. A server refuses bodies over 1 MiB; keys are ASCII. */
const BATCH_CHARS_MAX = 900 * 1024;

/** How callers share requests. */
export interface BatchOptions {
  /** Concurrent requests, of reserves, extensions and completes each. A higher value means smaller batches and less waiting. */
  readonly inFlightMax: number;
  /** Waiting items, of reserves, extensions and completes each. Beyond it callers back off and retry. */
  readonly waitingMax: number;
}

const BATCHING: BatchOptions = { inFlightMax: 4, waitingMax: 65_536 };

/** The given options, and the defaults for the rest. */
export function checkBatching(given: Partial<BatchOptions> | undefined): BatchOptions {
  const options = { ...BATCHING, ...given };
  checkAmount("batching.inFlightMax", options.inFlightMax, 1n);
  checkAmount("batching.waitingMax", options.waitingMax, 1n);
  return options;
}

/** The body of one item, and how its answer is read. */
export interface Item {
  readonly body: object;
  readonly deadline: Deadline;
  readonly signal: AbortSignal | undefined;
}

interface Waiting<A> {
  readonly json: string;
  readonly item: Item;
  readonly resolve: (answer: A) => void;
  readonly reject: (error: unknown) => void;
}

/** Whether the answer to one item says that the server could not execute it. Then the next request goes to the next server. */
type BlamesServer<A> = (answer: A) => boolean;

/**
 * Callers share requests: items wait in a bounded queue, and a batch leaves as soon as a request slot is free. An idle
 * batcher adds no delay, and a busy one fills its batches. It does not retry: each caller gets the answer to its own item.
 */
export class Batcher<A extends { error: string }> {
  #waiting: Waiting<A>[] = [];
  #inFlight = 0;
  #isScheduled = false;

  constructor(
    private readonly client: Client,
    private readonly path: string,
    private readonly read: Read<A>,
    private readonly options: BatchOptions,
  ) {}

  /** Sends one item, in a batch with other waiting items. */
  ask(item: Item): Promise<A> {
    const { waitingMax } = this.options;
    if (this.#waiting.length >= waitingMax) {
      const message = `${waitingMax} requests wait to be sent already; retry later, or raise batching.waitingMax`;
      return Promise.reject(new RequestError("busy", message));
    }
    return new Promise<A>((resolve, reject) => {
      this.#waiting.push({ json: stringify(item.body), item, resolve, reject });
      this.#schedule();
    });
  }

  /** Sends after the current turn of the event loop, so that items of one turn share a request. */
  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      while (this.#inFlight < this.options.inFlightMax && this.#waiting.length > 0) void this.#send(this.#batch());
    });
  }

  /** The waiting items that fit into one request. Items of callers that are gone are not sent. */
  #batch(): Waiting<A>[] {
    const batch: Waiting<A>[] = [];
    let chars = 0;
    let taken = 0;
    for (const waiting of this.#waiting) {
      if (batch.length >= BATCH_MAX || (batch.length > 0 && chars + waiting.json.length > BATCH_CHARS_MAX)) break;
      taken += 1;
      if (waiting.item.signal?.aborted === true || waiting.item.deadline.hasPassed()) {
        waiting.reject(RequestError.deadlinePassed(undefined));
        continue;
      }
      chars += waiting.json.length + 1;
      batch.push(waiting);
    }
    this.#waiting = this.#waiting.slice(taken);
    return batch;
  }

  async #send(batch: Waiting<A>[]): Promise<void> {
    this.#inFlight += 1;
    try {
      await this.#deliver(batch);
    } finally {
      this.#inFlight -= 1;
      if (this.#waiting.length > 0) this.#schedule();
    }
  }

  /** Sends one batch, and hands every caller its own answer. */
  async #deliver(batch: Waiting<A>[]): Promise<void> {
    if (batch.length === 0) return;
    try {
      // The request ends at the latest deadline: one caller in a hurry must not end the request of the others.
      const deadline = new Deadline(Math.max(...batch.map(({ item }) => item.deadline.at)));
      const answers = await this.#answers(batch, deadline);
      if (answers.some(blamesServer) && this.client.settings.servers.length > 1) this.client.advance();
      batch.forEach(({ resolve }, index) => resolve(answers[index] as A));
    } catch (error) {
      // One malformed item makes the server refuse the whole batch, and nothing was executed. The others must not fail.
      if (batch.length > 1 && error instanceof RequestError && error.kind === "invalid") {
        const middle = Math.ceil(batch.length / 2);
        await Promise.all([this.#deliver(batch.slice(0, middle)), this.#deliver(batch.slice(middle))]);
        return;
      }
      for (const { reject } of batch) reject(error);
    }
  }

  async #answers(batch: Waiting<A>[], deadline: Deadline): Promise<A[]> {
    const [first] = batch;
    if (batch.length === 1 && first !== undefined) {
      const request: HttpRequest = { method: "POST", path: this.path, body: first.json };
      return [await this.client.askOnce(request, this.read, deadline, first.item.signal)];
    }
    const body = `{"requests":[${batch.map(({ json }) => json).join(",")}]}`;
    const read: Read<A[]> = (response) => {
      if (response.status !== 200) throw refusal(response);
      const { results } = fields<{ results: unknown[] }>("results")(response);
      if (!Array.isArray(results) || results.length !== batch.length) {
        throw unexpected(response, `results: expected ${batch.length}`);
      }
      return results.map((json) => this.read({ ...response, json }));
    };
    return await this.client.askOnce({ method: "POST", path: `${this.path}/batch`, body }, read, deadline);
  }
}

const blamesServer: BlamesServer<{ error: string }> = ({ error }) => error === "overloaded" || error === "backend_error";
