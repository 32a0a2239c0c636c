/** Answers in the shape of a provider, so that its SDK treats them as its own. */
import type { AcquireError, Denial } from "../error.js";
import type { Api } from "./bound.js";

/** The reason of an answer that Earmark gives instead of the provider. The gateway gives the same. */
interface Problem {
  readonly status: number;
  /** The type and the code of the error for OpenAI, and its type for Anthropic. */
  readonly openai: readonly [type: string, code: string | null];
  readonly anthropic: string;
  /** Whether another attempt must fail too. */
  readonly isFinal: boolean;
}

const DENIED: Problem = { status: 429, openai: ["rate_limit_error", "rate_limit_exceeded"], anthropic: "rate_limit_error", isFinal: false };
const CREDIT: Problem = { status: 429, openai: ["insufficient_quota", "insufficient_quota"], anthropic: "billing_error", isFinal: true };
const NEVER: Problem = { status: 400, openai: ["invalid_request_error", "exceeds_capacity"], anthropic: "invalid_request_error", isFinal: true };
const FORBIDDEN: Problem = { status: 403, openai: ["invalid_request_error", "permission_denied"], anthropic: "permission_error", isFinal: true };
const INVALID: Problem = { status: 400, openai: ["invalid_request_error", null], anthropic: "invalid_request_error", isFinal: true };
const UNAVAILABLE: Problem = { status: 503, openai: ["server_error", "service_unavailable"], anthropic: "api_error", isFinal: false };

function answer(api: Api, problem: Problem, message: string, headers: Record<string, string> = {}): Response {
  const { openai: [type, code], anthropic } = problem;
  const status = api === "anthropic" && problem === CREDIT ? 402 : problem.status;
  const body =
    api === "openai"
      ? { error: { message, type, param: null, code } }
      : { type: "error", error: { type: anthropic, message }, request_id: null };
  const fixed = { "content-type": "application/json", ...(problem.isFinal && { "x-should-retry": "false" }) };
  return new Response(JSON.stringify(body), { status, headers: { ...fixed, ...headers } });
}

/** A denial: 429 with the wait, after which the SDK tries again by itself. */
export function denied(api: Api, denial: Denial): Response {
  const { retryAfterMs, limitedBy } = denial;
  const by = limitedBy.join(", ");
  return answer(api, DENIED, `Earmark: no room${by && ` in ${by}`}; retry in ${retryAfterMs} ms`, {
    "retry-after-ms": String(retryAfterMs),
    "retry-after": String(Math.ceil(retryAfterMs / 1_000)),
    ...(by && { "x-earmark-limited-by": by }),
  });
}

/** A refusal of Earmark, or no answer from it: the call is not made. */
export function refused(api: Api, error: AcquireError): Response {
  const problems: Partial<Record<AcquireError["reason"], Problem>> = {
    insufficient_credit: CREDIT,
    never: NEVER,
    deadline_passed: UNAVAILABLE,
  };
  const by = error.limitedBy.join(", ");
  // The policy refuses the rest, or the set-up has a mistake, such as a limit that does not exist: a retry does not help.
  const problem = problems[error.reason] ?? FORBIDDEN;
  return answer(api, problem, `Earmark: ${error.message}`, by === "" ? {} : { "x-earmark-limited-by": by });
}

/** A request that has no bound, or is not metered. */
export function invalid(api: Api, message: string): Response {
  return answer(api, INVALID, `Earmark: ${message}`);
}
