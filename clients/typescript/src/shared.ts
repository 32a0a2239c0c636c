import { judge, type Judgement, unavailable } from "./answer.js";
import { type BatchOptions, Batcher, type Item } from "./batcher.js";
import { type Client, fields, type Read } from "./client.js";
import { Deadline, PASSED, bound, sleep } from "./deadline.js";
import { AcquireError, type Denial, RequestError } from "./error.js";
import { stringify } from "./json.js";
import { ulid } from "./ulid.js";
import { WaitQueues } from "./wait_queues.js";
import type { CallAnswer, CompleteAnswer, ExtendAnswer, ReserveAnswer } from "./wire.js";

/** The answer to a reserve. That to a call has more fields. */
export type Admission = ReserveAnswer & Partial<CallAnswer>;

/**
 * Milliseconds after which an attempt takes a new lease and completes the old one: 5 minutes. An outage may last longer
 * than the retention of leases, 15 minutes by default, and servers refuse older leases.
 */
const LEASE_AGE_MAX_MS = 5 * 60 * 1_000;

const reserved = fields<ReserveAnswer>("allowed", "error", "retry_after_ms");
const extended = fields<ExtendAnswer>("allowed", "error", "retry_after_ms", "ends_at_unix_ms");
const completed = fields<CompleteAnswer>("ok", "error", "reconciled");

/** The purpose of a lease: limits by key, or a call that a policy turns into limits. */
export interface Purpose {
  readonly paths: "limits" | "calls";
  /** The limits of the lease, as far as they are known. */
  readonly keys: readonly string[];
  reserve(lease: string): object;
  /** The complete of a lease whose call was not made: everything is freed. */
  release(lease: string): object;
}

/** The result of one attempt. */
export type Attempt =
  | { readonly kind: "admitted"; readonly lease: string; readonly answer: Admission }
  | { readonly kind: "denied"; readonly denial: Denial }
  | { readonly kind: "no_answer"; readonly failure: RequestError | undefined };

/** Options that all leases of a limiter share. */
export interface SharedOptions {
  readonly batching: BatchOptions | undefined;
  readonly completeWithinMs: number;
  readonly settlingMax: number;
  readonly onAbandoned: (lease: string, error: RequestError | undefined) => void;
}

/** The state that a limiter and its leases share. */
export class Shared {
  readonly waitQueues = new WaitQueues();
  readonly #batchers: Record<"reserve" | "extend" | "complete", Batcher<never>> | undefined;
  readonly #settling = new Set<Promise<unknown>>();
  abandoned = 0;

  constructor(readonly client: Client, readonly options: SharedOptions) {
    const { batching } = options;
    this.#batchers = batching && {
      reserve: new Batcher(client, "/v1/reserve", reserved as Read<never>, batching),
      extend: new Batcher(client, "/v1/extend", extended as Read<never>, batching),
      complete: new Batcher(client, "/v1/complete", completed as Read<never>, batching),
    };
  }

  /** Sends one request once: in a batch if it names limits and there is a batcher. */
  #ask<T>(paths: Purpose["paths"], name: "reserve" | "extend" | "complete", read: Read<T>, item: Item): Promise<T> {
    if (paths === "limits" && this.#batchers !== undefined) return this.#batchers[name].ask(item);
    const calls = name === "reserve" ? "/v1/calls" : `/v1/calls/${name}`;
    const path = paths === "limits" ? `/v1/${name}` : calls;
    return this.client.askOnce({ method: "POST", path, body: stringify(item.body) }, read, item.deadline, item.signal);
  }

  /** Sends an extension until it has an answer or the deadline passes. */
  async extend(paths: Purpose["paths"], body: object, deadline: Deadline, signal?: AbortSignal): Promise<[ExtendAnswer, Judgement]> {
    const attempt = async (): Promise<[ExtendAnswer, Judgement]> => {
      const answer = await this.#ask(paths, "extend", extended, { body, deadline, signal: undefined });
      return [answer, judge(answer)];
    };
    return await this.client.retry(true, deadline, attempt, signal);
  }

  /** One lease, from its first request until its outcome is known or the deadline passes. */
  async attempt(purpose: Purpose, deadline: Deadline, signal: AbortSignal | undefined): Promise<Attempt> {
    const { settings } = this.client;
    const backoff = this.client.backoff();
    let lease = { id: ulid(settings.now()), madeAt: settings.now(), mayHold: false };
    let last: RequestError | undefined;
    try {
      while (!deadline.hasPassed()) {
        // A caller that is gone already sends nothing.
        signal?.throwIfAborted();
        const mayHaveHeld: boolean = lease.mayHold;
        lease.mayHold = true;
        try {
          const item = { body: purpose.reserve(lease.id), deadline, signal };
          const asked = this.#ask<Admission>(purpose.paths, "reserve", reserved, item);
          const answer = await bound(asked, deadline, signal);
          if (answer === PASSED) break;
          return this.#judged(lease, mayHaveHeld, answer);
        } catch (error) {
          if (!(error instanceof RequestError)) throw error;
          // An earlier copy of this request may still arrive.
          lease.mayHold = mayHaveHeld || error.certainty === "unknown";
          if (error.kind === "deadline_passed") break;
          if (!error.isTransient) throw refused(error);
          last = error;
          await sleep(backoff.waitMs(error, settings.servers.length), deadline, signal);
          if (settings.now() - lease.madeAt >= LEASE_AGE_MAX_MS) {
            this.#free(purpose, lease);
            lease = { id: ulid(settings.now()), madeAt: settings.now(), mayHold: false };
          }
        }
      }
      return { kind: "no_answer", failure: last };
    } finally {
      this.#free(purpose, lease);
    }
  }

  /** Completes a lease that may hold amounts with a usage of 0, in the background. */
  #free(purpose: Purpose, lease: { id: string; mayHold: boolean }): void {
    if (lease.mayHold) void this.settle(purpose, lease.id, purpose.release(lease.id)).catch(() => {});
    lease.mayHold = false;
  }

  #judged(lease: { id: string; mayHold: boolean }, mayHaveHeld: boolean, answer: Admission): Attempt {
    const judgement = judge(answer);
    switch (judgement.kind) {
      case "allowed":
        lease.mayHold = false;
        return { kind: "admitted", lease: lease.id, answer };
      // An earlier copy of a lease that expired meanwhile may hold amounts.
      case "expired":
        return { kind: "denied", denial: { retryAfterMs: 0, limitedBy: [] } };
      case "denied":
        if (judgement.mayHold !== "maybe") lease.mayHold = judgement.mayHold === "as_before" && mayHaveHeld;
        return { kind: "denied", denial: judgement.denial };
      case "refused":
        if (judgement.mayHold !== "maybe") lease.mayHold = judgement.mayHold === "as_before" && mayHaveHeld;
        throw judgement.error;
    }
  }

  /**
   * Completes a lease, and retries until a server took it or {@link SharedOptions.completeWithinMs} passed. It goes on when
   * the caller stops waiting.
   */
  settle(purpose: Purpose, lease: string, body: object, keys: readonly string[] = purpose.keys): Promise<CompleteAnswer> {
    if (this.#settling.size >= this.options.settlingMax) {
      const full = new RequestError("busy", `${this.options.settlingMax} leases are being completed already`);
      this.#abandon(lease, full);
      return Promise.reject(full);
    }
    const deadline = Deadline.after(this.options.completeWithinMs);
    const attempt = async () => {
      const answer = await this.#ask(purpose.paths, "complete", completed, { body, deadline, signal: undefined });
      if (answer.ok) return answer;
      if (answer.error === "overloaded" || answer.error === "backend_error") throw unavailable(answer.message, answer.error);
      throw new RequestError("invalid", `the complete was refused: ${answer.message ?? answer.error}`);
    };
    const settled = this.client.retry(true, deadline, attempt).then(
      (answer) => {
        this.waitQueues.release(keys);
        return answer;
      },
      (error: RequestError) => {
        this.#abandon(lease, error);
        throw error;
      },
    );
    this.#settling.add(settled);
    const done = () => this.#settling.delete(settled);
    settled.then(done, done);
    return settled;
  }

  #abandon(lease: string, error: RequestError): void {
    this.abandoned += 1;
    this.options.onAbandoned(lease, error);
  }

  /** Waits until all completes are done. Returns whether they were before the deadline. */
  async flush(deadline: Deadline, signal?: AbortSignal): Promise<boolean> {
    while (this.#settling.size > 0) {
      if ((await bound(Promise.allSettled([...this.#settling]), deadline, signal)) === PASSED) return false;
    }
    return true;
  }
}

function refused(failure: RequestError): AcquireError {
  const reason = failure.kind === "unauthorized" ? "unauthorized" : "invalid_request";
  return new AcquireError(reason, failure.message, { cause: failure });
}
