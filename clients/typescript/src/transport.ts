import { type Deadline, timer } from "./deadline.js";
import { RequestError } from "./error.js";
import { parse } from "./json.js";
import type { Settings } from "./options.js";

/** One request, as every server takes it. */
export interface HttpRequest {
  readonly method: "GET" | "POST" | "PUT" | "DELETE";
  /** The path with its query, percent-encoded. */
  readonly path: string;
  /** The JSON body. */
  readonly body?: string;
}

/** A response with a JSON body, whatever its status. */
export interface HttpResponse {
  readonly server: string;
  readonly status: number;
  /** The parsed body; `undefined` if it is not JSON. */
  readonly json: unknown;
  /** The beginning of the body on one line, for messages. */
  readonly excerpt: string;
}

/** The number of characters of an unexpected body that a message shows. */
const EXCERPT_CHARS = 200;

/** Errors before the first byte was sent. Every other error leaves the outcome unknown. */
const NOT_CONNECTED: ReadonlySet<string> = new Set([
  "ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "EADDRNOTAVAIL", "UND_ERR_CONNECT_TIMEOUT",
  "CERT_HAS_EXPIRED", "DEPTH_ZERO_SELF_SIGNED_CERT", "ERR_TLS_CERT_ALTNAME_INVALID", "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY", "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
]);

/** Sends a request once. */
export async function send(
  settings: Settings,
  server: string,
  request: HttpRequest,
  by: Deadline,
  signal?: AbortSignal,
): Promise<HttpResponse> {
  const controller = new AbortController();
  const onAbort = () => controller.abort();
  signal?.throwIfAborted();
  signal?.addEventListener("abort", onAbort, { once: true });
  const timeout = timer(by.leftMs());
  let isOver = false;
  void timeout.done.then(() => isOver || controller.abort());
  try {
    const headers: Record<string, string> = { accept: "application/json" };
    if (request.body !== undefined) headers["content-type"] = "application/json";
    if (settings.key !== undefined) headers["authorization"] = `Bearer ${settings.key}`;
    const init: RequestInit = { method: request.method, headers, redirect: "manual", signal: controller.signal };
    if (request.body !== undefined) init.body = request.body;
    const response = await fetch(server + request.path, init);
    const text = await read(response, settings.answerBytesMax);
    return { server, status: response.status, json: parsed(text), excerpt: excerpt(text) };
  } catch (error) {
    signal?.throwIfAborted();
    throw failure(server, error, controller.signal.aborted);
  } finally {
    isOver = true;
    timeout.cancel();
    signal?.removeEventListener("abort", onAbort);
  }
}

function failure(server: string, error: unknown, isLate: boolean): RequestError {
  if (error instanceof RequestError) return error;
  if (isLate) return new RequestError("no_answer", `${server} gave no answer: no response in time`);
  const cause = causeOf(error);
  const why = cause instanceof Error ? (cause.message || (cause as NodeJS.ErrnoException).code || cause.name) : String(cause);
  return isNotConnected(error)
    ? new RequestError("unreachable", `${server} cannot be reached: ${why}`, { cause: error })
    : new RequestError("no_answer", `${server} gave no answer: ${why}`, { cause: error });
}

function causeOf(error: unknown): unknown {
  return error instanceof Error && error.cause instanceof Error ? error.cause : error;
}

/** Whether a `fetch` failed before its first byte was sent. */
export function isNotConnected(error: unknown): boolean {
  return NOT_CONNECTED.has((causeOf(error) as NodeJS.ErrnoException | undefined)?.code ?? "");
}

/** The body as text, at most `bytesMax` of it. */
async function read(response: Response, bytesMax: number): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  if (response.body === null) return text;
  for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
    bytes += chunk.byteLength;
    if (bytes > bytesMax) {
      throw new RequestError("unexpected", `the answer has more than ${bytesMax} bytes; raise answerBytesMax`);
    }
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}

function parsed(text: string): unknown {
  try {
    return parse(text);
  } catch {
    return undefined;
  }
}

/** The beginning of a body. Characters that a terminal obeys or hides become visible. */
function excerpt(text: string): string {
  const visible = (hidden: string) => `\\u{${(hidden.codePointAt(0) ?? 0).toString(16)}}`;
  return text.slice(0, EXCERPT_CHARS).replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, visible);
}

/** The failure behind an answer that is not the expected one. */
export function refusal(response: HttpResponse): RequestError {
  const { server, status } = response;
  const problem = response.json as { error?: unknown; message?: unknown } | null | undefined;
  if (typeof problem !== "object" || problem === null || typeof problem.error !== "string") {
    return unexpected(response, "the body is not one of an Earmark server");
  }
  const message = typeof problem.message === "string" && problem.message !== "" ? problem.message : problem.error;
  switch (status) {
    case 400:
    // Another revision than the expected one, or a quota that is used up.
    case 409:
    case 413:
      return new RequestError("invalid", `the request was refused: ${message}`);
    case 401:
    case 403:
      return new RequestError("unauthorized", `the caller was refused: ${message}; check the key`);
    case 404:
      return new RequestError("not_found", message);
    case 429:
      return new RequestError("rate_limited", `${server} limits the request rate of this key: ${message}`);
    // The body did not arrive in time, so nothing was executed. It may arrive with the next attempt.
    case 408:
      return new RequestError("unavailable", `${server} is unavailable: ${message}`);
    default:
      if (status >= 500) return new RequestError("unavailable", `${server} is unavailable: ${message}`);
      return unexpected(response, "the status is unknown");
  }
}

export function unexpected({ server, status, excerpt }: HttpResponse, what: string): RequestError {
  const message = `${server} gave an answer that this version does not understand: ${what}; status ${status}: ${excerpt}; check the address`;
  return new RequestError("unexpected", message);
}
