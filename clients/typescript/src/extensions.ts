import { Deadline, bound, PASSED } from "./deadline.js";
import { ExtendError, RequestError } from "./error.js";
import { stringify } from "./json.js";
import type { Purpose, Shared } from "./shared.js";

/** The most extensions of one lease. */
const EXTENSIONS_MAX = 10_000;
/**
 * Answers that are kept for extensions that the caller gave up on. Beyond this the oldest is forgotten; a job that gives up
 * on more than 16 different extensions has a deadline that is too short.
 */
const ANSWERED_MAX = 16;

/** An extension that was applied, now or by an earlier attempt. */
export interface Extended {
  /** The server time at which the first of its concurrency and credit reservations ends; 0 without any. */
  readonly endsAtUnixMs: number;
  /** A note for people, such as the keys whose usage was ignored. */
  readonly message: string | undefined;
}

/** The part of the client that asks for an extension. */
export type AskedBy = "caller" | "keep_alive";

/** The fields of one extension besides lease, number and usage. */
export type Asked = object;

interface Unanswered {
  readonly asked: Asked;
  readonly by: AskedBy;
  readonly number: number;
  readonly body: object;
}

/** The extensions of one lease. A lease and its renewals share them; one is in flight at a time. */
export class Extensions {
  #last = 0;
  #unanswered: Unanswered | undefined;
  /** Extensions that the caller gave up on and a later one finished. Their answers are the caller's if it asks again. */
  readonly #answered: { asked: Asked; answer: Extended }[] = [];
  #turn: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly shared: Shared,
    private readonly paths: Purpose["paths"],
    /** The body with a number, and the usage that is certain now. */
    private readonly body: (number: number, asked: Asked) => object,
    private readonly onExtended: (asked: Asked) => void,
  ) {}

  /** The extension whose outcome is unknown: the lease may have it. */
  get maybe(): Asked | undefined {
    return this.#unanswered?.asked;
  }

  /**
   * Sends an extension until it has an answer or the deadline passes. One without an answer is sent again first, with its
   * number and body: if it is the same, its answer is the answer.
   */
  async extend(asked: Asked, by: AskedBy, deadline: Deadline, signal?: AbortSignal): Promise<Extended> {
    const turn = this.#turn;
    let isOver = () => {};
    this.#turn = new Promise<void>((resolve) => (isOver = resolve));
    // The turn of the next one comes after this one and all before it.
    const next = () => void turn.then(isOver, isOver);
    try {
      if ((await bound(turn, deadline, signal)) === PASSED) throw failed(RequestError.deadlinePassed(undefined));
      return await this.#inTurn(asked, by, deadline, signal);
    } finally {
      next();
    }
  }

  async #inTurn(asked: Asked, by: AskedBy, deadline: Deadline, signal: AbortSignal | undefined): Promise<Extended> {
    const place = by === "caller" ? this.#answered.findIndex((answered) => isSame(answered.asked, asked)) : -1;
    const [answered] = place < 0 ? [] : this.#answered.splice(place, 1);
    if (answered !== undefined) return answered.answer;
    const earlier = this.#unanswered;
    if (earlier !== undefined) {
      const answer = await this.#send(earlier, deadline, signal).catch(asExtendError);
      const isFinal = answer instanceof ExtendError && (answer.reason === "lease_expired" || answer.reason === "failed");
      if (isFinal || isSame(earlier.asked, asked)) return given(answer);
      // One that was denied took nothing, so it may be tried again.
      if (!(answer instanceof ExtendError) && earlier.by === "caller") {
        if (this.#answered.length === ANSWERED_MAX) this.#answered.shift();
        this.#answered.push({ asked: earlier.asked, answer });
      }
    }
    if (this.#last >= EXTENSIONS_MAX) {
      throw new ExtendError("too_many", `the lease has ${EXTENSIONS_MAX} extensions; acquire again`);
    }
    const number = this.#last + 1;
    return await this.#send({ asked, by, number, body: this.body(number, asked) }, deadline, signal);
  }

  /** Sends one extension with its number. It counts as unanswered until its answer is here, also when the caller is gone. */
  async #send(item: Unanswered, deadline: Deadline, signal: AbortSignal | undefined): Promise<Extended> {
    const wasSent = this.#unanswered !== undefined;
    this.#unanswered = item;
    let answered;
    try {
      answered = await this.shared.extend(this.paths, item.body, deadline, signal);
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      if (error.certainty === "nothing_happened" && !wasSent) this.#unanswered = undefined;
      throw failed(error);
    }
    this.#unanswered = undefined;
    const [answer, judgement] = answered;
    switch (judgement.kind) {
      case "allowed":
        this.#last = item.number;
        this.onExtended(item.asked);
        return { endsAtUnixMs: answer.ends_at_unix_ms, message: answer.message };
      case "expired":
        throw new ExtendError("lease_expired", "the lease has ended; acquire again");
      case "denied": {
        // A refusal by name leaves the number free.
        if (!judgement.isNamed) this.#last = item.number;
        const by = judgement.denial.limitedBy.join(", ");
        if (judgement.isNamed) throw new ExtendError("not_now", `refused for now${by && ` by ${by}`}`, judgement.denial);
        throw new ExtendError("denied", `no room in ${by}`, judgement.denial);
      }
      case "refused": {
        const { error } = judgement;
        if (judgement.mayHold === "no") this.#last = item.number;
        throw new ExtendError(error.reason === "deadline_passed" ? "failed" : error.reason, error.message);
      }
    }
  }
}

function isSame(one: Asked, other: Asked): boolean {
  return stringify(one) === stringify(other);
}

function given(answer: Extended | ExtendError): Extended {
  if (answer instanceof ExtendError) throw answer;
  return answer;
}

function asExtendError(error: unknown): ExtendError {
  if (error instanceof ExtendError) return error;
  throw error;
}

function failed(failure: RequestError): ExtendError {
  const reasons: Partial<Record<string, "unauthorized" | "invalid_request">> = { unauthorized: "unauthorized", invalid: "invalid_request" };
  return new ExtendError(reasons[failure.kind] ?? "failed", failure.message, undefined, failure);
}
