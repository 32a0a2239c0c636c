import { Deadline } from "./deadline.js";
import { ExtendError } from "./error.js";
import type { Asked, Extensions } from "./extensions.js";

/** A lease is renewed when a third of its timeout has passed, so that two renewals may fail before it runs out. */
const RENEWALS_PER_TIMEOUT = 3;
/** The shortest wait between two renewals. A lease at its latest end would otherwise be renewed ever faster. */
const WAIT_MIN_MS = 50;

/** The lease to renew. */
export interface Renewed {
  readonly extensions: Extensions;
  readonly renewal: Asked;
  /** When the lease was admitted, on the clock of the server and on the monotonic clock of this process. */
  readonly reservedAtUnixMs: number;
  readonly admittedAt: number;
  readonly timeoutMs: number;
}

/**
 * Renews a lease whenever a third of its timeout has passed, and reports the usage that `used` recorded. It stops with the
 * lease, or when it is disposed.
 */
export class KeepAlive implements Disposable {
  readonly #lost = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  #isOver = false;

  /** @internal */
  constructor(private readonly renewed: Renewed) {
    this.#schedule(renewed.timeoutMs - (performance.now() - renewed.admittedAt));
  }

  /**
   * Aborted once the lease cannot be renewed any more; its reason is the {@link ExtendError}. Pass it to the call: others
   * may take its capacity.
   */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** Stops the renewals. */
  stop(): void {
    this.#isOver = true;
    clearTimeout(this.#timer);
  }

  [Symbol.dispose](): void {
    this.stop();
  }

  #schedule(leftMs: number): void {
    if (this.#isOver) return;
    const endsAt = performance.now() + leftMs;
    const waitMs = Math.max(Math.min(leftMs, this.renewed.timeoutMs) / RENEWALS_PER_TIMEOUT, WAIT_MIN_MS);
    this.#timer = setTimeout(() => void this.#renew(endsAt), waitMs);
    // A forgotten lease must not keep the process alive.
    this.#timer.unref();
  }

  async #renew(endsAt: number): Promise<void> {
    const { extensions, renewal, timeoutMs } = this.renewed;
    // Until the end each attempt without an answer is repeated. After it one more attempt tells what became of the lease.
    const deadline = new Deadline(Math.max(endsAt, performance.now() + timeoutMs / RENEWALS_PER_TIMEOUT));
    try {
      const { endsAtUnixMs } = await extensions.extend(renewal, "keep_alive", deadline);
      this.#schedule(this.#leftMs(endsAtUnixMs));
    } catch (error) {
      const denial = error instanceof ExtendError && error.reason === "not_now" ? error.denial : undefined;
      if (denial !== undefined && performance.now() < endsAt) this.#schedule(denial.retryAfterMs);
      else if (!this.#isOver) this.#lost.abort(error);
    }
  }

  /** The rest of the lease, from the server's times: both are on its clock, so that the clocks need not agree. */
  #leftMs(endsAtUnixMs: number): number {
    const { reservedAtUnixMs, admittedAt, timeoutMs } = this.renewed;
    if (endsAtUnixMs === 0) return timeoutMs;
    return Math.max(0, endsAtUnixMs - reservedAtUnixMs - (performance.now() - admittedAt));
  }
}
