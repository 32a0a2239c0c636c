/** Whether a failed request may have been executed. */
export type Certainty = "nothing_happened" | "unknown";

/**
 * Why a request has no answer, or one that cannot be used.
 *
 * - `unreachable`: no connection could be made, so nothing was sent.
 * - `busy`: the queue of the batcher is full; nothing was sent.
 * - `no_answer`: the connection broke, or no response came in time.
 * - `unavailable`: the server could not execute the request, or does not know whether it did.
 * - `unexpected`: the response is not one of an Earmark server of this version.
 * - `invalid`: the request is malformed, expects another revision or exceeds a quota, and was not executed.
 * - `unauthorized`: the key was not accepted, and the request was not executed.
 * - `rate_limited`: the key exceeds its request rate, and the request was not executed.
 * - `not_found`: the named thing does not exist.
 * - `unknown_then_refused`: one attempt got no answer and may have been executed; a later one was refused.
 * - `deadline_passed`: no answer came before the deadline of the caller.
 */
export type FailureKind =
  | "unreachable"
  | "busy"
  | "no_answer"
  | "unavailable"
  | "unexpected"
  | "invalid"
  | "unauthorized"
  | "rate_limited"
  | "not_found"
  | "unknown_then_refused"
  | "deadline_passed";

const CERTAIN: ReadonlySet<FailureKind> = new Set<FailureKind>([
  "unreachable", "busy", "invalid", "unauthorized", "rate_limited", "not_found",
]);
const TRANSIENT: ReadonlySet<FailureKind> = new Set<FailureKind>([
  "unreachable", "busy", "rate_limited", "no_answer", "unavailable", "unexpected",
]);
const BLAMES_SERVER: ReadonlySet<FailureKind> = new Set<FailureKind>([
  "unreachable", "no_answer", "unavailable", "unexpected",
]);

/** A failed request. */
export class RequestError extends Error {
  override readonly name = "RequestError";

  constructor(readonly kind: FailureKind, message: string, options?: ErrorOptions) {
    super(message, options);
  }

  /** Whether the server may have executed the request. */
  get certainty(): Certainty {
    return CERTAIN.has(this.kind) ? "nothing_happened" : "unknown";
  }

  /** Whether the same request may succeed when it is sent again. */
  get isTransient(): boolean {
    return TRANSIENT.has(this.kind);
  }

  /** Whether another server may answer. */
  get blamesServer(): boolean {
    return BLAMES_SERVER.has(this.kind);
  }

  /** This failure as the last of several attempts, of which one before may have been executed. */
  after(earlier: Certainty): RequestError {
    // If an earlier attempt deleted it, that is the goal.
    if (this.kind === "not_found" || earlier === "nothing_happened" || this.certainty === "unknown") return this;
    const message = `one attempt got no answer and may have been executed; the next one was refused: ${this.message}`;
    return new RequestError("unknown_then_refused", message, { cause: this });
  }

  static deadlinePassed(last: RequestError | undefined): RequestError {
    const behind = last === undefined ? "" : `; the last attempt: ${last.message}`;
    return new RequestError("deadline_passed", `no answer came before the deadline${behind}`, { cause: last });
  }
}

/** Not enough is free now. */
export interface Denial {
  /** Milliseconds before another attempt can succeed. */
  readonly retryAfterMs: number;
  /** The limits without room, the one that frees last first. */
  readonly limitedBy: readonly string[];
}

/**
 * Why a job or a call was not admitted.
 *
 * - `never`: it needs more than the capacity of a limit, so waiting does not help.
 * - `insufficient_credit`: an account has too little credit.
 * - `account_not_found`, `unknown_limit_key`: the account of a credit limit, or the limit, does not exist.
 * - `missing_attribute`, `no_price`, `no_rule`, `denied_by_rule`: the policy of the server refuses the call.
 * - `invalid_request`: the server refused the request as malformed.
 * - `unauthorized`: the key of the client was not accepted.
 * - `deadline_passed`: it was not admitted before the deadline; see `denial` and `cause`.
 */
export type AcquireReason =
  | "never"
  | "insufficient_credit"
  | "account_not_found"
  | "unknown_limit_key"
  | "missing_attribute"
  | "no_price"
  | "no_rule"
  | "denied_by_rule"
  | "invalid_request"
  | "unauthorized"
  | "deadline_passed";

/** A job or a call that was not admitted. It holds nothing. */
export class AcquireError extends Error {
  override readonly name = "AcquireError";
  /** The limits in the way. */
  readonly limitedBy: readonly string[];
  /** The last denial, with `deadline_passed`. */
  readonly denial: Denial | undefined;

  constructor(
    readonly reason: AcquireReason,
    message: string,
    more: { limitedBy?: readonly string[]; denial?: Denial | undefined; cause?: unknown } = {},
  ) {
    super(message, "cause" in more ? { cause: more.cause } : undefined);
    this.limitedBy = more.limitedBy ?? more.denial?.limitedBy ?? [];
    this.denial = more.denial;
  }
}

/**
 * Why a lease was not extended. It keeps what it has.
 *
 * - `denied`: a limit has no room now.
 * - `not_now`: a limit is paused or decreasing, or a quota is used up.
 * - `lease_expired`: the lease has ended; acquire again.
 * - `too_many`: the lease has the most extensions that it may have.
 * - `failed`: no answer came, so the outcome is unknown. The next extension repeats this one first.
 * - the others: as for {@link AcquireReason}. Another attempt would end alike.
 */
export type ExtendReason = Exclude<AcquireReason, "deadline_passed"> | "denied" | "not_now" | "lease_expired" | "too_many" | "failed";

/** An extension that was not applied. */
export class ExtendError extends Error {
  override readonly name = "ExtendError";

  constructor(readonly reason: ExtendReason, message: string, readonly denial?: Denial, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
  }
}
