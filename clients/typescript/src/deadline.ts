/** The longest timer of Node: 2^31 - 1 ms. A longer one would fire at once. */
const TIMER_MAX_MS = 2 ** 31 - 1;

/** How long a call may wait. Every call that may wait takes one, so that none waits forever. */
export interface WaitOptions {
  /** Milliseconds after which the call gives up. By default {@link ClientOptions.withinMs}. */
  readonly withinMs?: number;
  /** Ends the call. It rejects with the reason of the signal, and frees what an attempt may have reserved. */
  readonly signal?: AbortSignal;
}

/** The moment at which a caller stops waiting, on the monotonic clock. */
export class Deadline {
  constructor(readonly at: number) {}

  static after(ms: number): Deadline {
    return new Deadline(performance.now() + ms);
  }

  leftMs(): number {
    return Math.max(0, this.at - performance.now());
  }

  hasPassed(): boolean {
    return performance.now() >= this.at;
  }

  /** The earlier of this deadline and `ms` from now. */
  orAfter(ms: number): Deadline {
    return new Deadline(Math.min(this.at, performance.now() + ms));
  }
}

/** A timer that ends its promise. `cancel` ends it early. */
export interface Timer {
  readonly done: Promise<void>;
  cancel(): void;
}

export function timer(ms: number): Timer {
  let cancel = () => {};
  const done = new Promise<void>((resolve) => {
    // Timers count whole milliseconds and may fire up to one early. A deadline must have passed when its timer fires.
    const handle = setTimeout(resolve, Math.min(Math.ceil(Math.max(ms, 0)) + 1, TIMER_MAX_MS));
    cancel = () => {
      clearTimeout(handle);
      resolve();
    };
  });
  return { done, cancel: () => cancel() };
}

/** Marks that a deadline passed before the work was done. */
export const PASSED: unique symbol = Symbol("the deadline passed");

/** The result of `work`, or {@link PASSED} at the deadline. Rejects when the signal is aborted. `work` goes on. */
export async function bound<T>(work: Promise<T>, deadline: Deadline, signal?: AbortSignal): Promise<T | typeof PASSED> {
  signal?.throwIfAborted();
  const { done, cancel } = timer(deadline.leftMs());
  let onAbort: (() => void) | undefined;
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(signal?.reason);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
  try {
    return await Promise.race([work, done.then((): typeof PASSED => PASSED), aborted]);
  } finally {
    cancel();
    // The loser of the race may still reject.
    work.catch(() => {});
    aborted.catch(() => {});
    if (onAbort !== undefined) signal?.removeEventListener("abort", onAbort);
  }
}

/** Waits, at most until the deadline. Rejects when the signal is aborted. */
export async function sleep(ms: number, deadline: Deadline, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  if (ms > 0) await bound(new Promise<void>(() => {}), deadline.orAfter(ms), signal);
}
