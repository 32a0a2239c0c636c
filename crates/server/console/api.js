// Requests to the server. The key stays in this module, in memory.

let key = null;

/** Time after which a request counts as unanswered. The server itself gives up after 30 seconds. */
const ANSWER_MAX_MS = 40_000;

/** An answer that is not a success. */
export class Problem extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function useKey(next) {
  key = next;
}

/** The headers of a request: the key, never in a URL. */
export function headers(more) {
  return key === null ? { ...more } : { authorization: `Bearer ${key}`, ...more };
}

/** Integers beyond 2^53 become BigInt, so that none is rounded. */
function parse(body) {
  return JSON.parse(body, (_, value, context) => {
    const isRounded = typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "");
    return isRounded ? BigInt(context.source) : value;
  });
}

async function ask(path, { signal, ...options }) {
  let response;
  let body;
  try {
    const late = AbortSignal.timeout(ANSWER_MAX_MS);
    const either = signal ? AbortSignal.any([signal, late]) : late;
    response = await fetch(path, { cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer", signal: either, ...options });
    body = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "disconnected", "The server does not answer.");
  }
  let parsed = {};
  try {
    parsed = parse(body);
  } catch {
    if (response.ok) throw new Problem(0, "malformed", "The server sent an answer that is not JSON.");
  }
  if (!response.ok) throw new Problem(response.status, parsed.error ?? "failed", parsed.message ?? response.statusText);
  return parsed;
}

/** A path with its query. Empty parameters are left out. */
export function path(base, query = {}) {
  const filled = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const parts = filled.map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  return parts.length === 0 ? base : `${base}?${parts.join("&")}`;
}

export function get(base, query, signal) {
  return ask(path(base, query), { headers: headers(), signal });
}

export function post(base, body, signal) {
  return ask(base, { method: "POST", headers: headers({ "content-type": "application/json" }), body: JSON.stringify(body), signal });
}
