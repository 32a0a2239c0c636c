/** A `fetch` for the official Anthropic SDK. */
import { type FetchOptions, meteredFetch } from "./sdk/fetch.js";

export type { CallBody } from "./sdk/bound.js";
export type { CallLimits, FetchOptions, MeteredCall } from "./sdk/fetch.js";

/**
 * A `fetch` for `new Anthropic({ fetch })`. Every attempt reserves and settles a lease of its own. A denial is a 429 with
 * `retry-after-ms`, so that the SDK waits and tries again by itself.
 */
export function anthropicFetch(options: FetchOptions): typeof globalThis.fetch {
  return meteredFetch("anthropic", options);
}
