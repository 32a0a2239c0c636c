/** The upper bound of a call to a provider, from its own bytes. */
import { InputError } from "../amount.js";

/** The interface of a provider. */
export type Api = "openai" | "anthropic";

/** A metered endpoint. */
interface Endpoint {
  readonly api: Api;
  readonly path: RegExp;
  /** The fields that cap the output. The first one is inserted where none is given. */
  readonly caps: readonly string[];
  /** Whether the input counts. Counting tokens takes a request only. */
  readonly countsInput: boolean;
}

const ENDPOINTS: readonly Endpoint[] = [
  { api: "openai", path: /\/chat\/completions$/, caps: ["max_completion_tokens", "max_tokens"], countsInput: true },
  { api: "openai", path: /\/completions$/, caps: ["max_tokens"], countsInput: true },
  { api: "openai", path: /\/responses$/, caps: ["max_output_tokens"], countsInput: true },
  { api: "openai", path: /\/embeddings$/, caps: [], countsInput: true },
  { api: "anthropic", path: /\/messages$/, caps: ["max_tokens"], countsInput: true },
  { api: "anthropic", path: /\/messages\/count_tokens$/, caps: [], countsInput: false },
];

/** The body of a call, as the SDK sends it. */
export type CallBody = Record<string, unknown>;

/** A call with its bounds. */
export interface BoundCall {
  readonly model: string;
  readonly inputTokensMax: number;
  readonly outputTokensMax: number;
  /** The body to send: with the inserted cap, and with the usage of a stream. */
  readonly body: string;
  /** Whether the caller did not ask for the chunk with the usage of a stream, so that it must be removed again. */
  readonly hidesUsage: boolean;
}

/** Settings for the bounds. */
export interface BoundOptions {
  /** The cap on output tokens that is inserted into requests without one. */
  readonly outputTokensMax?: number;
  /** Input tokens besides the bytes of the request, such as templates and tool prompts: 512. */
  readonly inputOverheadTokens?: number;
  /** A closer bound of the input tokens, such as by a tokenizer. By default the bytes of the request: a token is at least one. */
  readonly inputTokensMax?: (body: Readonly<CallBody>) => number;
}

const OVERHEAD_TOKENS = 512;

export function isMetered(api: Api, path: string): boolean {
  return ENDPOINTS.some((endpoint) => endpoint.api === api && endpoint.path.test(path));
}

/** Bounds a call. Throws an {@link InputError} that says what is missing. */
export function boundCall(api: Api, path: string, text: string, options: BoundOptions): BoundCall {
  const endpoint = ENDPOINTS.find((known) => known.api === api && known.path.test(path));
  const body = parsed(text);
  if (endpoint === undefined || typeof body["model"] !== "string") {
    throw new InputError("model", body["model"], "is the name of a model");
  }
  const caps = endpoint.caps.filter((name) => body[name] !== undefined && body[name] !== null);
  const [inserted] = endpoint.caps;
  let isChanged = false;
  if (caps.length === 0 && inserted !== undefined) {
    if (options.outputTokensMax === undefined) {
      throw new InputError(inserted, "none", `is a cap on the output tokens: set ${inserted}, or outputTokensMax of the Earmark fetch`);
    }
    body[inserted] = options.outputTokensMax;
    caps.push(inserted);
    isChanged = true;
  }
  const output = Math.max(0, ...caps.map((name) => integer(name, body[name])), budget(body));
  const hidesUsage = endpoint.path.source.includes("completions") && body["stream"] === true && insertUsage(body);
  const overhead = options.inputOverheadTokens ?? OVERHEAD_TOKENS;
  const input = options.inputTokensMax?.(body) ?? Buffer.byteLength(text);
  return {
    model: body["model"],
    inputTokensMax: endpoint.countsInput ? input + overhead : 0,
    outputTokensMax: output * answers(body) + prediction(body),
    body: isChanged || hidesUsage ? JSON.stringify(body) : text,
    hidesUsage,
  };
}

function parsed(text: string): CallBody {
  try {
    const body: unknown = JSON.parse(text);
    if (typeof body === "object" && body !== null && !Array.isArray(body)) return body as CallBody;
  } catch {
    // The error below names the field.
  }
  throw new InputError("body", text.slice(0, 40), "is a JSON object");
}

function integer(field: string, value: unknown): number {
  if (!Number.isSafeInteger(value) || (value as number) < 0) throw new InputError(field, value, "are integers from 0");
  return value as number;
}

/** The tokens that a model may think, which are output. */
function budget(body: CallBody): number {
  const thinking = body["thinking"] as { budget_tokens?: unknown } | null | undefined;
  return thinking?.budget_tokens === undefined ? 0 : integer("thinking.budget_tokens", thinking.budget_tokens);
}

/** The number of answers that one request asks for. */
function answers(body: CallBody): number {
  const of = (field: string) => (body[field] === undefined || body[field] === null ? 1 : Math.max(1, integer(field, body[field])));
  const prompt = body["prompt"];
  // A list of numbers is one prompt, in tokens.
  const prompts = Array.isArray(prompt) && typeof prompt[0] !== "number" ? Math.max(1, prompt.length) : 1;
  return Math.max(of("n"), of("best_of")) * prompts;
}

/** Rejected tokens of a predicted answer are charged as output. */
function prediction(body: CallBody): number {
  return body["prediction"] === undefined || body["prediction"] === null ? 0 : Buffer.byteLength(JSON.stringify(body["prediction"]));
}

/** Asks for the usage of a stream. Returns whether the caller had not asked for it. */
function insertUsage(body: CallBody): boolean {
  const options = (body["stream_options"] ?? {}) as { include_usage?: unknown };
  if (options.include_usage === true) return false;
  body["stream_options"] = { ...options, include_usage: true };
  return true;
}
