/** Answers in the shape of a provider, so that its SDK treats them as its own. */
import type { AcquireError, Denial } from "../error.js";
import type { Api } from "./bound.js";

/** Why a call was not made. */
interface Problem {
  readonly status: number;
  /** The type of the error for each provider, and the code for OpenAI. */
  readonly openai: readonly [type: string, code: string | null];
  readonly anthropic: string;
  readonly canRetry: boolean;
}

const DENIED: Problem = { status: 429, openai: ["rate_limit_error", "rate_limit_exceeded"], anthropic: "rate_limit_error", canRetry: true };
const CREDIT: Problem = { status: 429, openai: ["insufficient_quota", "insufficient_quota"], anthropic: "billing_error", canRetry: false };
const NEVER: Problem = { status: 400, openai: ["invalid_request_error", "exceeds_capacity"], anthropic: "invalid_request_error", canRetry: false };
const POLICY: Problem = { status: 403, openai: ["permission_error", "denied_by_policy"], anthropic: "permission_error", canRetry: false };
const INVALID: Problem = { status: 400, openai: ["invalid_request_error", null], anthropic: "invalid_request_error", canRetry: false };
const UNAVAILABLE: Problem = { status: 503, openai: ["server_error", "earmark_unavailable"], anthropic: "api_error", canRetry: true };

function answer(api: Api, problem: Problem, message: string, headers: Record<string, string> = {}): Response {
  const { openai: [type, code], anthropic } = problem;
  const status = api === "anthropic" && problem === CREDIT ? 402 : problem.status;
  const body =
    api === "openai"
      ? { error: { message, type, param: null, code } }
      : { type: "error", error: { type: anthropic, message }, request_id: null };
  return new Response(JSON.stringify(body), {
    status,
    headers: { "content-type": "application/json", "x-should-retry": String(problem.canRetry), ...headers },
  });
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
    missing_attribute: POLICY,
    no_price: POLICY,
    no_rule: POLICY,
    denied_by_rule: POLICY,
    deadline_passed: UNAVAILABLE,
  };
  const by = error.limitedBy.join(", ");
  // The rest are mistakes of the caller's set-up, such as a limit that does not exist: a retry does not help.
  const problem = problems[error.reason] ?? { ...INVALID, status: 403 };
  return answer(api, problem, `Earmark: ${error.message}`, by === "" ? {} : { "x-earmark-limited-by": by });
}

/** A request that has no bound, or is not metered. */
export function invalid(api: Api, message: string): Response {
  return answer(api, INVALID, `Earmark: ${message}`);
}
