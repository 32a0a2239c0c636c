import type { RequestError } from "./error.js";

/** The waits between attempts: exponential, with jitter. */
export interface BackoffOptions {
  /** The upper bound of the first wait, in milliseconds. */
  readonly firstMs: number;
  /** The upper bound of every wait, in milliseconds. */
  readonly longestMs: number;
}

/** The waits between the attempts of one request. */
export class Backoff {
  #nextMs: number;
  /** The number of servers asked since the last wait. */
  #asked = 0;

  constructor(private readonly options: BackoffOptions, private readonly random: () => number) {
    this.#nextMs = options.firstMs;
  }

  /**
   * The wait after a failure. A failure of one server leads to the next server at once; the wait comes when all of them
   * failed. Half of it is random, so that callers who failed together do not retry together.
   */
  waitMs(failure: RequestError, servers: number): number {
    this.#asked += 1;
    if (failure.blamesServer && this.#asked < servers) return 0;
    this.#asked = 0;
    const wait = this.#nextMs / 2 + this.random() * (this.#nextMs / 2);
    this.#nextMs = Math.min(this.#nextMs * 2, this.options.longestMs);
    return wait;
  }
}
