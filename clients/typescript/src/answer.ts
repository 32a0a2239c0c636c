import { AcquireError, type AcquireReason, type Denial, RequestError } from "./error.js";
import type { ReserveAnswer } from "./wire.js";

/**
 * Whether a lease may hold amounts after an answer: `no`; `as_before` if the server does not remember the lease, so that
 * only an earlier copy of the request may hold some; `maybe` if the answer does not tell.
 */
export type MayHold = "no" | "as_before" | "maybe";

/** The meaning of an answer to a reserve, or of an extension that was not allowed. */
export type Judgement =
  | { readonly kind: "allowed" }
  /** Waiting helps. `isNumbered`: the answer uses the number of an extension. */
  | { readonly kind: "denied"; readonly denial: Denial; readonly mayHold: MayHold; readonly isNamed: boolean }
  | { readonly kind: "expired" }
  | { readonly kind: "refused"; readonly error: AcquireError; readonly mayHold: MayHold };

type Answer = Pick<ReserveAnswer, "allowed" | "error" | "message" | "limited_by" | "never" | "retry_after_ms">;

/** Judges an answer. Throws a {@link RequestError} if it means that the outcome is unknown. */
export function judge(answer: Answer): Judgement {
  if (answer.allowed) return { kind: "allowed" };
  const [code, subject] = split(answer.error);
  const limitedBy = answer.limited_by ?? (subject === "" ? [] : [subject]);
  const denied = (mayHold: MayHold, by: readonly string[] = limitedBy): Judgement => ({
    kind: "denied",
    denial: { retryAfterMs: answer.retry_after_ms, limitedBy: by },
    mayHold,
    isNamed: mayHold !== "no",
  });
  const refused = (reason: AcquireReason, mayHold: MayHold, message: string): Judgement => ({
    kind: "refused",
    error: new AcquireError(reason, message, { limitedBy }),
    mayHold,
  });
  const note = answer.message === undefined || answer.message === "" ? "" : `: ${answer.message}`;
  switch (code) {
    case "":
    case "exceeds_capacity":
      if (answer.never !== true) return denied("no");
      return refused("never", "no", `the job needs more than the capacity of ${limitedBy.join(", ")}; ask for less, or raise the limit`);
    case "limit_decreasing":
    case "limit_paused":
      return denied("as_before");
    // Leases are forgotten and days end, so waiting helps.
    case "quota_exceeded":
      return denied("as_before", []);
    case "lease_expired":
      return { kind: "expired" };
    case "insufficient_credit":
      return refused("insufficient_credit", "no", `the account of ${subject} has too little credit${note}`);
    case "account_not_found":
      return refused("account_not_found", "as_before", `the account of ${subject} does not exist; open it first`);
    case "unknown_limit_key":
      return refused("unknown_limit_key", "as_before", `limit ${subject} does not exist; create it first`);
    case "missing_attribute":
      return refused(code, "as_before", `the policy needs attribute ${subject}; add it to the call${note}`);
    case "no_price":
      return refused(code, "as_before", `the policy has no price for model ${subject}; add one${note}`);
    case "no_rule":
      return refused(code, "as_before", `no rule of the policy matches the call${note}`);
    case "denied_by_rule":
      return refused(code, "as_before", `rule ${subject} of the policy denies the call${note}`);
    case "invalid_request":
      return refused("invalid_request", "maybe", `invalid request${note}`);
    case "overloaded":
    case "backend_error":
      throw unavailable(answer.message, code);
    default:
      throw new RequestError("unexpected", `the server gave an answer that this version does not understand: error ${JSON.stringify(code)}`);
  }
}

/** The failure of an item that the server could not execute, or does not know whether it did. */
export function unavailable(message: string | undefined, code: string): RequestError {
  return new RequestError("unavailable", `the server is unavailable: ${message ?? code}`);
}

function split(error: string): [code: string, subject: string] {
  const colon = error.indexOf(":");
  return colon < 0 ? [error, ""] : [error.slice(0, colon), error.slice(colon + 1)];
}
