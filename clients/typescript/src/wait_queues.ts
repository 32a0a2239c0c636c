/** The most limits whose last release is remembered. Forgetting one costs a caller its hint, nothing else. */
const UNCLAIMED_MAX = 4_096;

/** A caller in the queues of some limits. */
export interface Waiter {
  /** Ends when a release wakes the caller. */
  readonly woken: Promise<void>;
  /** Leaves the queues. A caller that was woken and makes no attempt passes the release on. */
  leave(makesAttempt: boolean): void;
}

interface Entry {
  readonly wake: () => void;
  isWoken: boolean;
}

/** Callers that a release in this process wakes before their hint: the longest waiting one of each limit. */
export class WaitQueues {
  #releases = 0;
  readonly #queues = new Map<string, Set<Entry>>();
  /** The last release of a limit for which nobody waited. */
  readonly #unclaimed = new Map<string, number>();

  /** The number of releases so far. */
  get releases(): number {
    return this.#releases;
  }

  /** Wakes the longest waiting caller of each of these limits. */
  release(keys: readonly string[]): void {
    this.#releases += 1;
    for (const key of keys) this.#wakeOne(key);
  }

  /**
   * Puts a caller into the queues of these limits. Returns `undefined` when one of them was released since the attempt
   * began and no other caller has used that release.
   */
  waitFor(keys: readonly string[], before: number): Waiter | undefined {
    for (const key of keys) {
      if ((this.#unclaimed.get(key) ?? 0) > before) {
        this.#unclaimed.delete(key);
        return undefined;
      }
    }
    let wake = () => {};
    const woken = new Promise<void>((resolve) => (wake = resolve));
    const entry: Entry = { wake, isWoken: false };
    for (const key of keys) {
      const queue = this.#queues.get(key) ?? new Set();
      this.#queues.set(key, queue.add(entry));
    }
    return { woken, leave: (makesAttempt) => this.#leave(keys, entry, makesAttempt) };
  }

  #leave(keys: readonly string[], entry: Entry, makesAttempt: boolean): void {
    for (const key of keys) {
      const queue = this.#queues.get(key);
      const wasWaiting = queue?.delete(entry) ?? false;
      if (queue?.size === 0) this.#queues.delete(key);
      if (!wasWaiting && !makesAttempt) this.#wakeOne(key);
    }
  }

  #wakeOne(key: string): void {
    const queue = this.#queues.get(key);
    const first = queue?.values().next().value;
    if (queue === undefined || first === undefined) {
      if (this.#unclaimed.size >= UNCLAIMED_MAX) this.#unclaimed.clear();
      this.#unclaimed.set(key, this.#releases);
      return;
    }
    queue.delete(first);
    if (queue.size === 0) this.#queues.delete(key);
    first.isWoken = true;
    first.wake();
  }
}
