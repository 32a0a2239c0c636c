/** A `fetch` for the official OpenAI SDK. */
import { type FetchOptions, meteredFetch } from "./sdk/fetch.js";

export type { CallBody } from "./sdk/bound.js";
export type { CallLimits, FetchOptions, MeteredCall } from "./sdk/fetch.js";

/**
 * A `fetch` for `new OpenAI({ fetch })`. Every attempt reserves and settles a lease of its own. A denial is a 429 with
 * `retry-after-ms`, so that the SDK waits and tries again by itself.
 */
export function openaiFetch(options: FetchOptions): typeof globalThis.fetch {
  return meteredFetch("openai", options);
}
