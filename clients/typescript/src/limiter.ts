import { type Amounts, checkJob, requirements } from "./amount.js";
import { type BatchOptions, checkBatching } from "./batcher.js";
import { type CallDescription, checkCall } from "./call.js";
import type { Client } from "./client.js";
import { bound, Deadline, type WaitOptions } from "./deadline.js";
import { AcquireError, type Denial, type RequestError } from "./error.js";
import { type AcquireOptions, CallLease, Lease } from "./lease.js";
import { positive } from "./options.js";
import { type Attempt, type Purpose, Shared } from "./shared.js";

/** The shortest wait after a denial, whatever the hint says. */
const WAIT_MIN_MS = 5;
/** The longest wait after a denial: the limit may have been raised before its hint. */
const WAIT_MAX_MS = 60_000;
/** The time before the deadline at which the last attempt is made: another job may have completed meanwhile. */
const LAST_ATTEMPT_MS = 20;
/** The jitter added to a wait: at most this fraction of it. */
const JITTER = 0.1;

/** The options of a limiter. */
export interface LimiterOptions {
  /** How callers share requests. `false` sends every request alone. */
  readonly batching?: Partial<BatchOptions> | false;
  /** Milliseconds for retries of a complete: 60 seconds. After it the lease is left to expire. */
  readonly completeWithinMs?: number;
  /** Concurrent completes. Leases beyond it are left to expire. */
  readonly settlingMax?: number;
  /** Called with a lease that could not be completed and was left to expire. By default it emits a process warning. */
  readonly onAbandoned?: (leaseId: string, error: RequestError | undefined) => void;
}

/** The result of an attempt that does not wait: a lease, or a denial. */
export type Tried<L> = { readonly lease: L; readonly denial?: undefined } | { readonly lease?: undefined; readonly denial: Denial };

/**
 * Admits jobs and calls. Every attempt has its own lease. The same lease is retried while its outcome is unknown, and a
 * denied lease is never used again.
 */
export class Limiter implements AsyncDisposable {
  readonly #shared: Shared;

  constructor(client: Client, options: LimiterOptions = {}) {
    this.#shared = new Shared(client, {
      batching: options.batching === false ? undefined : checkBatching(options.batching),
      completeWithinMs: positive("completeWithinMs", options.completeWithinMs ?? 60_000),
      settlingMax: positive("settlingMax", options.settlingMax ?? 65_536),
      onAbandoned: options.onAbandoned ?? warn,
    });
  }

  /** Waits until the limits have room for these amounts, all or none. An error that waiting cannot cure is thrown at once. */
  async acquire(amounts: Amounts, options: AcquireOptions = {}): Promise<Lease> {
    const { purpose, admitted } = this.#job(amounts, options.jobId);
    return admitted(await this.#admit(purpose, options));
  }

  /** Makes one attempt. A denial is an answer; only an unknown outcome is retried. */
  async tryAcquire(amounts: Amounts, options: AcquireOptions = {}): Promise<Tried<Lease>> {
    const { purpose, admitted } = this.#job(amounts, options.jobId);
    return await this.#try(purpose, admitted, options);
  }

  /** As {@link Limiter.acquire}, for a call that the policy of the server turns into limits. */
  async acquireCall(call: CallDescription, options: AcquireOptions = {}): Promise<CallLease> {
    const { purpose, admitted } = this.#call(call, options.jobId);
    return admitted(await this.#admit(purpose, options));
  }

  /** As {@link Limiter.tryAcquire}, for a call that the policy of the server turns into limits. */
  async tryAcquireCall(call: CallDescription, options: AcquireOptions = {}): Promise<Tried<CallLease>> {
    const { purpose, admitted } = this.#call(call, options.jobId);
    return await this.#try(purpose, admitted, options);
  }

  /**
   * Runs `work` with a lease, which is settled on every way out. `work` completes it with the actual usage; otherwise
   * everything counts as used.
   */
  async with<T>(amounts: Amounts, work: (lease: Lease) => Promise<T>, options: AcquireOptions = {}): Promise<T> {
    const lease = await this.acquire(amounts, options);
    try {
      return await work(lease);
    } finally {
      await lease[Symbol.asyncDispose]();
    }
  }

  /** Waits until all completes are done. Returns whether they were before the deadline. */
  async flush(wait?: WaitOptions): Promise<boolean> {
    return await this.#shared.flush(this.#shared.client.deadline(wait), wait?.signal);
  }

  /** The number of leases that could not be completed and were left to expire. */
  get abandoned(): number {
    return this.#shared.abandoned;
  }

  /** Waits until all completes are done. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.flush();
  }

  #job(amounts: Amounts, jobId: string | undefined): { purpose: Purpose; admitted: (admission: Admission) => Lease } {
    const needs = requirements("requirements", amounts, 1);
    const copy = { ...amounts };
    const job_id = checkJob(jobId);
    const nothing = needs.map(({ amount: _, ...name }) => ({ ...name, actual_amount: 0 }));
    const purpose: Purpose = {
      paths: "limits",
      keys: Object.keys(copy),
      reserve: (lease_id) => ({ lease_id, job_id, requirements: needs }),
      release: (lease_id) => ({ lease_id, job_id, actuals: nothing }),
    };
    return { purpose, admitted: ({ lease, answer }) => new Lease(this.#shared, purpose, lease, answer, copy, job_id) };
  }

  #call(call: CallDescription, jobId: string | undefined): { purpose: Purpose; admitted: (admission: Admission) => CallLease } {
    const described = checkCall(call);
    const { attributes } = described;
    const job_id = checkJob(jobId);
    const purpose: Purpose = {
      paths: "calls",
      keys: [],
      reserve: (lease_id) => ({ lease_id, job_id, ...described }),
      release: (lease_id) => ({ lease_id, attributes, outcome: "refused" }),
    };
    return { purpose, admitted: ({ lease, answer }) => new CallLease(this.#shared, purpose, lease, answer, attributes) };
  }

  async #try<L>(purpose: Purpose, admitted: (admission: Admission) => L, options: AcquireOptions): Promise<Tried<L>> {
    const attempt = await this.#shared.attempt(purpose, this.#shared.client.deadline(options), options.signal);
    if (attempt.kind === "admitted") return { lease: admitted(attempt) };
    if (attempt.kind === "denied") return { denial: attempt.denial };
    throw tooLate(undefined, attempt.failure);
  }

  async #admit(purpose: Purpose, options: AcquireOptions): Promise<Admission> {
    const deadline = this.#shared.client.deadline(options);
    for (let last: Denial | undefined; ; ) {
      const before = this.#shared.waitQueues.releases;
      const attempt = await this.#shared.attempt(purpose, deadline, options.signal);
      if (attempt.kind === "admitted") return attempt;
      if (attempt.kind === "no_answer") throw tooLate(last, attempt.failure);
      last = attempt.denial;
      if (!(await this.#wait(last, before, deadline, options.signal))) throw tooLate(last, undefined);
    }
  }

  /**
   * Waits for the hint, for a release of a limit without room, or for the last attempt before the deadline. Returns whether
   * there is time for another attempt.
   */
  async #wait(denial: Denial, before: number, deadline: Deadline, signal: AbortSignal | undefined): Promise<boolean> {
    const { random } = this.#shared.client.settings;
    const hintMs = Math.min(Math.max(denial.retryAfterMs, WAIT_MIN_MS), WAIT_MAX_MS);
    const last = new Deadline(deadline.at - LAST_ATTEMPT_MS);
    if (last.hasPassed()) {
      await bound(new Promise<void>(() => {}), deadline, signal);
      return false;
    }
    const waiter = this.#shared.waitQueues.waitFor(denial.limitedBy, before);
    if (waiter === undefined) return true;
    let makesAttempt = false;
    try {
      await bound(waiter.woken, last.orAfter(hintMs * (1 + JITTER * random())), signal);
      makesAttempt = true;
    } finally {
      waiter.leave(makesAttempt);
    }
    return true;
  }
}

type Admission = Extract<Attempt, { kind: "admitted" }>;

function tooLate(denial: Denial | undefined, failure: RequestError | undefined): AcquireError {
  const by = denial?.limitedBy.join(", ") ?? "";
  const room = denial === undefined ? "" : `; no room${by && ` in ${by}`}`;
  const why = failure === undefined ? "" : `; ${failure.message}`;
  return new AcquireError("deadline_passed", `not admitted before the deadline${room}${why}`, { denial, cause: failure });
}

function warn(leaseId: string, error: RequestError | undefined): void {
  process.emitWarning(`lease ${leaseId} could not be completed and will expire: ${error?.message ?? "too many"}`, "EarmarkWarning");
}
