import { actuals, type Amount, type Amounts, checkAmount, requirements, TOKENS_MAX } from "./amount.js";
import { checkLabels, type Labels } from "./call.js";
import type { WaitOptions } from "./deadline.js";
import { type Asked, type Extended, Extensions } from "./extensions.js";
import { KeepAlive } from "./keep_alive.js";
import type { Admission, Purpose, Shared } from "./shared.js";
import type { CallAnswer, CallCompleteAnswer, CallOutcome, CallUsage, CompleteAnswer } from "./wire.js";

/** The part of a lease that outlives its object, so that a lost lease can still be settled. */
interface Core {
  readonly shared: Shared;
  readonly purpose: Purpose;
  readonly id: string;
  isOpen: boolean;
  keepAlive: KeepAlive | undefined;
  /** The complete of a call whose usage is unknown. */
  readonly unknown: () => object;
  /** The limits of the lease, with those that extensions took. */
  readonly keys: () => readonly string[];
}

/** Leases that nobody completed yet. When the event loop is empty, their callers are gone. */
const OPEN = new Set<Core>();
const LOST = new FinalizationRegistry<Core>((core) => void settleUnknown(core));
let isExitWatched = false;

function watch(lease: object, core: Core): void {
  OPEN.add(core);
  LOST.register(lease, core, core);
  if (isExitWatched) return;
  isExitWatched = true;
  process.on("beforeExit", () => OPEN.forEach((open) => void settleUnknown(open)));
}

function settle(core: Core, body: () => object): Promise<CompleteAnswer> | undefined {
  if (!core.isOpen) return undefined;
  // A complete with bad input must leave the lease open.
  const complete = body();
  core.isOpen = false;
  core.keepAlive?.stop();
  OPEN.delete(core);
  LOST.unregister(core);
  return core.shared.settle(core.purpose, core.id, complete, core.keys());
}

async function settleUnknown(core: Core): Promise<void> {
  // The limiter counts and reports a lease that could not be completed.
  await settle(core, core.unknown)?.catch(() => {});
}

/** Options of one admission. */
export interface AcquireOptions extends WaitOptions {
  /** The job behind it, which all its attempts carry in logs and traces. */
  readonly jobId?: string;
}

/** The parts that leases of limits and of calls have in common. */
abstract class Held implements AsyncDisposable, Disposable {
  /** The lease id, for logs. */
  readonly id: string;
  /** The server time of the admission. */
  readonly reservedAtUnixMs: number;
  /** The limits that are not enforced and would have denied it. */
  readonly wouldDeny: readonly string[];
  readonly #admittedAt = performance.now();
  readonly #core: Core;
  protected readonly extensions: Extensions;

  protected constructor(
    protected readonly shared: Shared,
    answer: Admission,
    parts: {
      id: string;
      purpose: Purpose;
      unknown: () => object;
      keys: () => readonly string[];
      extension: (number: number, asked: Asked) => object;
      onExtended: (asked: Asked) => void;
    },
  ) {
    const { id, purpose, unknown, keys } = parts;
    this.id = id;
    this.reservedAtUnixMs = answer.reserved_at_unix_ms;
    this.wouldDeny = answer.would_deny ?? [];
    this.extensions = new Extensions(shared, purpose.paths, parts.extension, parts.onExtended);
    this.#core = { shared, purpose, id, isOpen: true, keepAlive: undefined, unknown, keys };
    watch(this, this.#core);
  }

  /** Whether it was not completed yet. */
  get isOpen(): boolean {
    return this.#core.isOpen;
  }

  /**
   * Keeps the lease of a long call alive: renews it whenever a third of `timeoutMs` has passed, the shortest timeout of its
   * concurrency and credit limits. It stops with this lease.
   */
  keepAlive(timeoutMs: number): KeepAlive {
    checkAmount("timeoutMs", Math.trunc(timeoutMs), 1n);
    this.#core.keepAlive?.stop();
    const { reservedAtUnixMs, extensions } = this;
    const keepAlive = new KeepAlive({ extensions, renewal: {}, reservedAtUnixMs, admittedAt: this.#admittedAt, timeoutMs });
    if (this.#core.isOpen) this.#core.keepAlive = keepAlive;
    else keepAlive.stop();
    return keepAlive;
  }

  /** Completes it. The complete goes on when the caller stops waiting. */
  protected async settle(body: () => object): Promise<CompleteAnswer> {
    const settled = settle(this.#core, body);
    if (settled === undefined) throw new Error(`lease ${this.id} is completed already`);
    return await settled;
  }

  /** Completes it with unknown usage, unless it was completed: everything counts as used, and concurrency slots are freed. */
  async [Symbol.asyncDispose](): Promise<void> {
    await settleUnknown(this.#core);
  }

  /** As `Symbol.asyncDispose`, in the background. */
  [Symbol.dispose](): void {
    void settleUnknown(this.#core);
  }
}

/** The changes of one extension of a lease. By default it moves the end of the lease and nothing else. */
export interface Extension {
  /** More amounts, of limits that the lease has or of new ones: all of it, or nothing. */
  readonly add?: Amounts;
  /** Whether to move the end of the lease: by default true. */
  readonly renew?: boolean;
}

/** Options of a complete. */
export interface CompleteOptions {
  /** Labels of its settlements, which statements group by. */
  readonly labels?: Labels;
}

/** The answer to a complete. */
export type Completed = CompleteAnswer;

/**
 * Holds the amounts of an admitted job until it is completed, once. A lease that leaves its `await using` block without a
 * complete counts as fully used.
 */
export class Lease extends Held {
  readonly #amounts: Map<string, bigint>;
  readonly #used: Map<string, bigint>;
  readonly #jobId: string | undefined;

  /** @internal */
  constructor(shared: Shared, purpose: Purpose, id: string, answer: Admission, asked: Amounts, jobId: string | undefined) {
    // The closures must not hold the lease itself: a lease that is lost is settled when it is collected.
    const amounts = new Map(Object.entries(asked).map(([key, amount]) => [key, BigInt(amount)]));
    const used = new Map<string, bigint>();
    super(shared, answer, {
      id,
      purpose,
      unknown: () => ({ lease_id: id, job_id: jobId, actuals: [] }),
      keys: () => [...amounts.keys()],
      extension: (number, extension) => ({
        lease_id: id,
        extension: number,
        ...extension,
        used: used.size === 0 ? undefined : actuals("used", Object.fromEntries(used)),
      }),
      onExtended: (extension) => {
        for (const { key, namespace, amount } of (extension as { add?: ReturnType<typeof requirements> }).add ?? []) {
          const name = namespace === undefined ? key : `!${namespace}:${key}`;
          amounts.set(name, (amounts.get(name) ?? 0n) + BigInt(amount));
        }
      },
    });
    this.#amounts = amounts;
    this.#used = used;
    this.#jobId = jobId;
  }

  /** The amounts that it holds, with those that extensions took. */
  get amounts(): Readonly<Record<string, bigint>> {
    return Object.fromEntries(this.#amounts);
  }

  /**
   * Changes the lease, all or nothing: takes more, moves its end, and reports the usage that {@link Lease.used} recorded. A
   * denial changes nothing.
   *
   * After an {@link ExtendError} with `failed` the outcome is unknown. Call it again with the same extension, before any
   * other one: that takes nothing twice.
   */
  async extend(extension: Extension = {}, wait?: WaitOptions): Promise<Extended> {
    const add = extension.add === undefined ? undefined : requirements("add", extension.add, 0);
    const renew = extension.renew === false ? false : undefined;
    return await this.extensions.extend({ add, renew }, "caller", this.shared.client.deadline(wait), wait?.signal);
  }

  /**
   * Records the usage of a limit so far, in total. The next extension reports it, also one of `keepAlive`. It is charged
   * even if this process dies, and a complete cannot report less.
   */
  used(key: string, amount: Amount): void {
    actuals("used", { [key]: amount });
    const known = this.#used.get(key) ?? 0n;
    this.#used.set(key, known > BigInt(amount) ? known : BigInt(amount));
  }

  /**
   * Reports the actual usage. A limit that is missing counts as fully used, except that a concurrency slot is always freed;
   * an amount of 0 frees everything. It retries, and goes on when the caller stops waiting.
   */
  async complete(used: Amounts = {}, options: CompleteOptions = {}): Promise<Completed> {
    const labels = checkLabels(options.labels);
    const known = new Set(this.#keys());
    const ignored = Object.keys(used).filter((key) => !known.has(key));
    const kept = Object.fromEntries(Object.entries(used).filter(([key]) => known.has(key)));
    actuals("actuals", used);
    const answer = await this.settle(() => ({ lease_id: this.id, job_id: this.#jobId, actuals: actuals("actuals", kept), labels }));
    if (ignored.length === 0) return answer;
    const note = `not reserved, so ignored: ${ignored.join(", ")}`;
    return { ...answer, message: answer.message === undefined ? note : `${answer.message}; ${note}` };
  }

  /** Frees everything, because no call was made. */
  async release(): Promise<Completed> {
    return await this.complete(Object.fromEntries(this.#keys().map((key) => [key, 0])));
  }

  /** The limits that the lease has, or may have by an extension whose outcome is unknown. */
  #keys(): string[] {
    const maybe = (this.extensions.maybe as { add?: ReturnType<typeof requirements> } | undefined)?.add ?? [];
    return [...this.#amounts.keys(), ...maybe.map(({ key, namespace }) => (namespace === undefined ? key : `!${namespace}:${key}`))];
  }
}

/** The usage of a call, in tokens. */
export type { CallUsage };

/** The answer to the complete of a call. */
export type CallCompleted = CallCompleteAnswer;

/** Holds the limits that the policy of the server names for a call, until it is completed, once. */
export class CallLease extends Held {
  /** The limits and amounts that the policy named. Empty if it named none: then nothing is held. */
  readonly requirements: CallAnswer["requirements"];
  /** The revision of the policy, which the call keeps. */
  readonly policyRevision: number | undefined;
  readonly #attributes: Record<string, string>;
  readonly #state: { used: CallUsage | undefined };

  /** @internal */
  constructor(shared: Shared, purpose: Purpose, id: string, answer: Admission, attributes: Record<string, string>) {
    const state: { used: CallUsage | undefined } = { used: undefined };
    const named = answer.requirements ?? [];
    const policy_revision = answer.policy_revision;
    super(shared, answer, {
      id,
      purpose,
      unknown: () => ({ lease_id: id, attributes, outcome: "unknown", policy_revision }),
      keys: () => named.map(({ key, namespace }) => (namespace === undefined ? key : `!${namespace}:${key}`)),
      extension: (number, extension) => ({ lease_id: id, extension: number, attributes, ...extension, used: state.used, policy_revision }),
      onExtended: () => {},
    });
    this.requirements = named;
    this.policyRevision = policy_revision;
    this.#attributes = attributes;
    this.#state = state;
  }

  /** Renews the lease, takes more output tokens, and reports the usage that {@link CallLease.used} recorded. */
  async extend(extension: { readonly addOutputTokens?: Amount } = {}, wait?: WaitOptions): Promise<Extended> {
    const { addOutputTokens } = extension;
    const add_output_tokens = addOutputTokens === undefined ? undefined : checkAmount("addOutputTokens", addOutputTokens, 0n);
    return await this.extensions.extend({ add_output_tokens }, "caller", this.shared.client.deadline(wait), wait?.signal);
  }

  /** Records the usage so far, in total, which the next extension reports. */
  used(usage: CallUsage): void {
    this.#state.used = checkUsage(usage);
  }

  /** Settles the call with its usage; without one, with the bound that was reserved. */
  async complete(usage?: CallUsage, options: CompleteOptions = {}): Promise<CallCompleted> {
    return await this.#end("done", usage === undefined ? undefined : checkUsage(usage), checkLabels(options.labels));
  }

  /** Frees everything but what {@link CallLease.used} reported, because the upstream refused the call or none was made. */
  async refused(): Promise<CallCompleted> {
    return await this.#end("refused");
  }

  /** Settles the bound, because the outcome of the call is unknown. */
  async unknown(): Promise<CallCompleted> {
    return await this.#end("unknown");
  }

  async #end(outcome: CallOutcome, usage?: CallUsage, labels?: Record<string, string>): Promise<CallCompleted> {
    const body = { lease_id: this.id, attributes: this.#attributes, usage, outcome, policy_revision: this.policyRevision, labels };
    return (await this.settle(() => body)) as CallCompleted;
  }
}

/** Checks the token counts of a usage. */
function checkUsage(usage: CallUsage): CallUsage {
  for (const [name, value] of Object.entries(usage)) {
    if (name !== "service_tier" && value !== undefined) checkAmount(`usage.${name}`, value, 0n, TOKENS_MAX);
  }
  checkAmount("usage.input_tokens", usage.input_tokens, 0n, TOKENS_MAX);
  checkAmount("usage.output_tokens", usage.output_tokens, 0n, TOKENS_MAX);
  return { ...usage };
}
