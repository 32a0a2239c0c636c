import { InputError } from "./amount.js";
import type { BackoffOptions } from "./backoff.js";

/** The options of a client. */
export interface ClientOptions {
  /** The servers of one cluster, in the order in which they are tried. Every server takes every request. */
  readonly servers: readonly string[];
  /** The API key or session token. */
  readonly key?: string;
  /** Allows the key over `http://` to another machine, where a tunnel or a proxy encrypts the connection. */
  readonly allowPlaintext?: boolean;
  /** How long a call waits for its answer, unless it says otherwise: 30 seconds. */
  readonly withinMs?: number;
  /** The timeout of one attempt, in milliseconds: 8 seconds. It must exceed the 5 s for which a node waits for a new leader. */
  readonly attemptTimeoutMs?: number;
  /** The waits between attempts: at first up to 20 ms, at most 2 seconds. */
  readonly backoff?: BackoffOptions;
  /** The most bytes of one answer: 64 MiB. */
  readonly answerBytesMax?: number;
  /** The wall time in milliseconds, for lease ids. */
  readonly now?: () => number;
  /** A random number from 0 to 1, for jitter. */
  readonly random?: () => number;
}

/** Checked options. */
export interface Settings {
  readonly servers: readonly string[];
  readonly key: string | undefined;
  readonly withinMs: number;
  readonly attemptTimeoutMs: number;
  readonly backoff: BackoffOptions;
  readonly answerBytesMax: number;
  readonly now: () => number;
  readonly random: () => number;
}

const ADDRESS = "is http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:7878, without a user, a path or a query";

function address(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isPlain = url !== undefined && url.pathname === "/" && url.search === "" && url.hash === "";
  if (!isPlain || !["http:", "https:"].includes(url.protocol) || url.username !== "" || url.password !== "") {
    // A user and a password must not end up in logs.
    throw new InputError("servers", String(text).replace(/\/\/.*@/, "//***@"), ADDRESS);
  }
  return url;
}

function isLoopback({ hostname }: URL): boolean {
  return hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
}

export function positive(field: string, value: number): number {
  if (typeof value !== "number" || !(value > 0)) throw new InputError(field, value, "are numbers above 0");
  return value;
}

/** The deadline of a call in milliseconds. */
export function checkWithin(withinMs: number): number {
  return positive("withinMs", withinMs);
}

export function checked(options: ClientOptions): Settings {
  if ("window" in globalThis && "document" in globalThis) {
    throw new Error("this client runs on servers only: a browser would expose the key");
  }
  // A program without types may pass a single address.
  if (!Array.isArray(options?.servers)) throw new InputError("servers", options?.servers, "is a list of addresses");
  const servers = options.servers.map(address);
  if (servers.length === 0) throw new InputError("servers", "none", "is at least one address");
  if (options.key !== undefined && !/^[\x21-\x7e]+$/.test(options.key)) {
    // The message must not repeat the key.
    throw new InputError("key", "other characters", "are visible ASCII characters, at least one");
  }
  const exposed = servers.find((url) => url.protocol === "http:" && !isLoopback(url));
  if (options.key !== undefined && options.allowPlaintext !== true && exposed !== undefined) {
    throw new TypeError(
      `servers: ${exposed.origin} is unencrypted and would expose the key; use https://, or set allowPlaintext if a ` +
        "tunnel encrypts the connection",
    );
  }
  return {
    servers: servers.map((url) => url.origin),
    key: options.key,
    withinMs: checkWithin(options.withinMs ?? 30_000),
    attemptTimeoutMs: positive("attemptTimeoutMs", options.attemptTimeoutMs ?? 8_000),
    backoff: {
      firstMs: positive("backoff.firstMs", options.backoff?.firstMs ?? 20),
      longestMs: positive("backoff.longestMs", options.backoff?.longestMs ?? 2_000),
    },
    answerBytesMax: positive("answerBytesMax", options.answerBytesMax ?? 64 * 1024 * 1024),
    now: options.now ?? Date.now,
    random: options.random ?? Math.random,
  };
}
