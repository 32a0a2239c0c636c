import { checkAmount, checkKey, InputError } from "./amount.js";
import { Backoff } from "./backoff.js";
import { type CallDescription, checkCall } from "./call.js";
import { bound, Deadline, PASSED, sleep, type WaitOptions } from "./deadline.js";
import { type Certainty, RequestError } from "./error.js";
import { stringify } from "./json.js";
import { checked, checkWithin, type ClientOptions, type Settings } from "./options.js";
import { type HttpRequest, type HttpResponse, refusal, send, unexpected } from "./transport.js";
import type {
  Account, Balance, DecisionList, EntryList, Explanation, Grant, LeaseInfo, LimitChanged, LimitDefinition, LimitInfo,
  LimitUsage, Operation, PolicyInfo, Receipt, Statement, TemplateInfo, TopLimit, UsageList, Whoami, WriteRequest,
} from "./wire.js";
import { checkOperations, WriterError, written } from "./writer.js";

/** Items on one page of a list that is read as a whole. */
const PAGE_SIZE = 1_000;

/** Which limits to list with their usage. */
export interface UsageQuery {
  /** Only limits whose key begins like this. */
  readonly prefix?: string;
  /** The order. Only a list by key has further pages. */
  readonly sort?: "key" | "fullness" | "debt";
  /** `next` of the previous page. */
  readonly after?: string;
  /** Limits on the page, 1 to 1,000. */
  readonly pageSize?: number;
}

/** Which items to list. */
export interface ListQuery {
  /** Only items whose key or name begins like this. */
  readonly prefix?: string;
}

/** Which of the heaviest limits to list. */
export interface TopQuery extends ListQuery {
  /** The counted amounts: reserved, which is the default, denied, or usage that became debt. */
  readonly of?: "taken" | "denied" | "debt";
  /** The window until now; by default 5 minutes. */
  readonly within?: "1m" | "5m" | "1h";
}

/** A part of a list by time, in milliseconds of Unix time. */
interface PeriodQuery<After> {
  readonly since?: number;
  /** The end, which does not belong to it. */
  readonly until?: number;
  /** `next` of the previous page, with the same filters. */
  readonly after?: After;
  /** Items on the page, 1 to 1,000. */
  readonly pageSize?: number;
}

/** Which decisions to list. */
export interface DecisionQuery extends PeriodQuery<string> {
  /** Only about limits whose key begins like this. */
  readonly key?: string;
  /** Only about requests of this actor. */
  readonly actor?: string;
  /** Only about this job. */
  readonly job?: string;
  readonly outcome?: "denied" | "refused" | "timeout" | "overage";
}

/** Which entries of an account to list. */
export interface EntryQuery extends PeriodQuery<number> {
  /** `asc`, the default: oldest first. */
  readonly order?: "asc" | "desc";
}

/** The revision that something must have to be changed; 0: it must not exist. */
export interface Expected {
  readonly expectedRevision?: number;
}

/** The period of a statement, and the label that groups its spending. */
export interface StatementQuery {
  /** The start, in milliseconds of Unix time; by default the first entry. */
  readonly since?: number;
  /** The end, which does not belong to it; by default after the last entry. */
  readonly until?: number;
  /** A label such as `model`. */
  readonly groupBy?: string;
  /** `next` of the previous page. */
  readonly after?: string;
  /** Groups of a page, by default 10,000 and at most 50,000. */
  readonly pageSize?: number;
}

/** A namespace, or a vault of it. */
export interface Scope {
  /** By default `default`. */
  readonly namespace?: string;
  readonly vault?: string;
}

/** How an answer is read from a response. It throws a {@link RequestError} if the response has none. */
export type Read<T> = (response: HttpResponse) => T;

/** The answer of status 200 that has all these fields. */
export function fields<T>(...names: (keyof T & string)[]): Read<T> {
  return (response) => {
    if (response.status !== 200) throw refusal(response);
    const json = response.json as Record<string, unknown> | null | undefined;
    const missing = names.find((name) => typeof json !== "object" || json === null || json[name] === undefined);
    if (missing !== undefined) throw unexpected(response, `${missing} is missing`);
    return json as T;
  };
}

/**
 * A client of the servers of one cluster.
 *
 * Leases need a {@link Limiter} and sequenced writes a {@link Writer}, which follow the retry rules. The methods here can
 * be called again without any rule.
 */
export class Client {
  /** @internal */
  readonly settings: Settings;
  /** The index of the server that the next request goes to. */
  #preferred = 0;

  constructor(options: ClientOptions) {
    this.settings = checked(options);
  }

  /** @internal */
  backoff(): Backoff {
    return new Backoff(this.settings.backoff, this.settings.random);
  }

  /** @internal */
  deadline(wait: WaitOptions | undefined): Deadline {
    return Deadline.after(checkWithin(wait?.withinMs ?? this.settings.withinMs));
  }

  /**
   * Sends a request once, to the preferred server. When that server is at fault, the next request goes to the next one.
   * @internal
   */
  async askOnce<T>(request: HttpRequest, read: Read<T>, deadline: Deadline, signal?: AbortSignal): Promise<T> {
    const { servers, attemptTimeoutMs } = this.settings;
    const index = this.#preferred;
    try {
      const by = deadline.orAfter(attemptTimeoutMs);
      return read(await send(this.settings, servers[index] as string, request, by, signal));
    } catch (error) {
      // Of several callers that saw it fail, only the first moves on.
      if (error instanceof RequestError && error.blamesServer && this.#preferred === index) this.advance();
      throw error;
    }
  }

  /** @internal */
  advance(): void {
    this.#preferred = (this.#preferred + 1) % this.settings.servers.length;
  }

  /**
   * Makes attempts until one has an answer, fails for good, or the deadline passes.
   * @internal
   */
  async retry<T>(changesState: boolean, deadline: Deadline, attempt: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const backoff = this.backoff();
    let last: RequestError | undefined;
    let earlier: Certainty = "nothing_happened";
    while (!deadline.hasPassed()) {
      try {
        const answer = await bound(attempt(), deadline, signal);
        if (answer === PASSED) break;
        return answer;
      } catch (error) {
        if (!(error instanceof RequestError)) throw error;
        if (!error.isTransient) throw error.after(earlier);
        if (changesState && error.certainty === "unknown") earlier = "unknown";
        last = error;
        await sleep(backoff.waitMs(error, this.settings.servers.length), deadline, signal);
      }
    }
    throw RequestError.deadlinePassed(last);
  }

  async #ask<T>(request: HttpRequest, read: Read<T>, wait: WaitOptions | undefined): Promise<T> {
    const deadline = this.deadline(wait);
    const attempt = () => this.askOnce(request, read, deadline, wait?.signal);
    return await this.retry(request.method !== "GET", deadline, attempt, wait?.signal);
  }

  /**
   * Creates a limit or changes its definition.
   *
   * An attempt whose answer was lost may still arrive later and undo a later change of the same limit. Use a
   * {@link Writer} where changes of one limit follow each other closely.
   */
  async putLimit(definition: LimitDefinition, wait?: WaitOptions): Promise<LimitChanged> {
    checkKey("key", definition.key);
    if (definition.capacity !== undefined) checkAmount("capacity", definition.capacity, 1n);
    return await this.#ask({ method: "PUT", path: "/v1/admin/limits", body: stringify(definition) }, fields<LimitChanged>("status"), wait);
  }

  /** Stops reserves on a limit, and deletes it once it is empty. */
  async deleteLimit(key: string, wait?: WaitOptions): Promise<LimitChanged> {
    return await this.#ask({ method: "DELETE", path: limitPath(key) }, fields<LimitChanged>("status"), wait);
  }

  /** One limit. */
  async limit(key: string, wait?: WaitOptions): Promise<LimitInfo> {
    const read = fields<{ limit: LimitInfo }>("limit");
    return (await this.#ask({ method: "GET", path: limitPath(key) }, read, wait)).limit;
  }

  /** A list that is read in pages, so items that change meanwhile may appear or not. */
  async #pages<Name extends string, Item>(path: string, name: Name, asked: ListQuery, wait?: WaitOptions): Promise<Item[]> {
    const all: Item[] = [];
    const read = fields<Record<Name, Item[]> & { next: string | null }>(name, "next");
    for (let after: string | null | undefined; after !== null; ) {
      const request: HttpRequest = { method: "GET", path: `${path}${query({ prefix: asked.prefix, after, page_size: PAGE_SIZE })}` };
      const page = await this.#ask(request, read, wait);
      all.push(...page[name]);
      after = page.next;
    }
    return all;
  }

  /** All limits, sorted by key. */
  async limits(asked: ListQuery = {}, wait?: WaitOptions): Promise<LimitInfo[]> {
    return await this.#pages("/v1/admin/limits", "limits", asked, wait);
  }

  /** Creates a template, whose key has placeholders such as `{tenant}:rpm`, or changes its definition. Returns its revision. */
  async putTemplate(definition: LimitDefinition, expected: Expected = {}, wait?: WaitOptions): Promise<number> {
    const path = `/v1/admin/templates${query({ expected_revision: expected.expectedRevision })}`;
    const request: HttpRequest = { method: "PUT", path, body: stringify(definition) };
    return (await this.#ask(request, fields<{ revision: number }>("revision"), wait)).revision;
  }

  /** Deletes a template and the limits that are derived from it. */
  async deleteTemplate(key: string, expected: Expected = {}, wait?: WaitOptions): Promise<void> {
    const path = `/v1/admin/templates${query({ key, expected_revision: expected.expectedRevision })}`;
    await this.#ask({ method: "DELETE", path }, fields<{ ok: true }>("ok"), wait);
  }

  /** All templates. */
  async templates(wait?: WaitOptions): Promise<TemplateInfo[]> {
    const read = fields<{ templates: TemplateInfo[] }>("templates");
    return (await this.#ask({ method: "GET", path: "/v1/admin/templates" }, read, wait)).templates;
  }

  /** The heaviest limits of the server that answers, the heaviest first. */
  async top(asked: TopQuery = {}, wait?: WaitOptions): Promise<TopLimit[]> {
    const { of, within, prefix } = asked;
    const read = fields<{ top: TopLimit[] }>("top");
    return (await this.#ask({ method: "GET", path: `/v1/top${query({ of, within, prefix })}` }, read, wait)).top;
  }

  /** Recent denials, refusals, timeouts and overages in the log of the server that answers, newest first. */
  async decisions(asked: DecisionQuery = {}, wait?: WaitOptions): Promise<DecisionList> {
    const { pageSize, ...rest } = asked;
    const path = `/v1/decisions${query({ ...rest, page_size: pageSize })}`;
    return await this.#ask({ method: "GET", path }, fields<DecisionList>("decisions", "next"), wait);
  }

  /** The usage of a limit. */
  async usage(key: string, wait?: WaitOptions): Promise<LimitUsage> {
    return await this.#ask({ method: "GET", path: `${limitPath(key)}/usage` }, fields<LimitUsage>("capacity", "reserved", "available"), wait);
  }

  /** Limits with their usage: a page by key, or the first ones by fullness or debt. */
  async usagePage(asked: UsageQuery = {}, wait?: WaitOptions): Promise<UsageList> {
    const { prefix, sort, after, pageSize } = asked;
    const path = `/v1/usage${query({ prefix, sort, after, page_size: pageSize })}`;
    return await this.#ask({ method: "GET", path }, fields<UsageList>("usage", "next"), wait);
  }

  /** Refuses new reserves of a limit for a time, at most one hour; 0 resumes it. */
  async pauseLimit(key: string, forMs: number, reason?: string, wait?: WaitOptions): Promise<void> {
    checkAmount("forMs", forMs, 0n);
    const request: HttpRequest = { method: "POST", path: `${limitPath(key)}/pause`, body: stringify({ for_ms: forMs, reason }) };
    await this.#ask(request, fields<{ ok: true }>("ok"), wait);
  }

  /** One lease, as far as the server remembers it. */
  async lease(id: string, wait?: WaitOptions): Promise<LeaseInfo> {
    const read = fields<{ lease: LeaseInfo }>("lease");
    return (await this.#ask({ method: "GET", path: `/v1/leases/${encodeURIComponent(id)}` }, read, wait)).lease;
  }

  /** The names of all vaults, sorted. */
  async vaults(wait?: WaitOptions): Promise<string[]> {
    return await this.#pages("/v1/vaults", "vaults", {}, wait);
  }

  /** All accounts of a vault, sorted by name, with their balances. */
  async accounts(vault: string, asked: ListQuery = {}, wait?: WaitOptions): Promise<Account[]> {
    return await this.#pages(`/v1/vaults/${encodeURIComponent(vault)}/accounts`, "accounts", asked, wait);
  }

  /** The balances of an account, sorted by asset. */
  async balances(vault: string, account: string, wait?: WaitOptions): Promise<Balance[]> {
    const path = `${accountPath(vault, account)}/balances`;
    return (await this.#ask({ method: "GET", path }, fields<{ balances: Balance[] }>("balances"), wait)).balances;
  }

  /** The grants of an account, by asset and then in the order in which they are spent. */
  async grants(vault: string, account: string, wait?: WaitOptions): Promise<Grant[]> {
    const path = `${accountPath(vault, account)}/grants`;
    return (await this.#ask({ method: "GET", path }, fields<{ grants: Grant[] }>("grants"), wait)).grants;
  }

  /** The movements of an account in a period. */
  async entries(vault: string, account: string, asked: EntryQuery = {}, wait?: WaitOptions): Promise<EntryList> {
    const { pageSize, ...rest } = asked;
    const path = `${accountPath(vault, account)}/entries${query({ ...rest, page_size: pageSize })}`;
    return await this.#ask({ method: "GET", path }, fields<EntryList>("entries", "next"), wait);
  }

  /** The sums of an account in a period, and its spending by the value of a label. The server reads the whole history. */
  async statement(vault: string, account: string, asked: StatementQuery = {}, wait?: WaitOptions): Promise<Statement> {
    const { since, until, groupBy, after, pageSize } = asked;
    const of = query({ since, until, group_by: groupBy, after, page_size: pageSize });
    const path = `${accountPath(vault, account)}/statement${of}`;
    return await this.#ask({ method: "GET", path }, fields<Statement>("account", "assets"), wait);
  }

  /**
   * Writes a transaction once under an idempotency key of 1 to 255 visible ASCII characters, such as the id of a payment
   * event. It needs no sequence file, and any process may repeat it: a repeat within a day gets the same receipt, a later one
   * is refused with `ALREADY_COMMITTED`. Throws a {@link WriterError} with reason `refused` when the server refuses the write,
   * and a {@link RequestError} when the outcome is unknown: then write it again under the same key.
   */
  async writeOnce(key: string, operations: readonly Operation[], scope: Scope = {}, wait?: WaitOptions): Promise<Receipt> {
    const { namespace = "default", vault } = scope;
    const request: WriteRequest = { namespace, ...(vault !== undefined && { vault }), idempotency_key: key, operations: checkOperations(operations) };
    const answer = await this.#ask({ method: "POST", path: "/v1/write", body: stringify(request) }, written, wait);
    if ("receipt" in answer) return answer.receipt;
    throw new WriterError("refused", `the write was refused: ${answer.refusal.code}: ${answer.refusal.message}`, answer.refusal);
  }

  /** Puts the policy of a namespace: a TOML document. Returns its revision. */
  async putPolicy(policy: string, options: Expected & { readonly namespace?: string } = {}, wait?: WaitOptions): Promise<number> {
    const { namespace, expectedRevision: expected_revision } = options;
    const body = stringify({ policy, expected_revision });
    const request: HttpRequest = { method: "PUT", path: `/v1/admin/policy${query({ namespace })}`, body };
    return (await this.#ask(request, fields<{ ok: true; revision: number }>("revision"), wait)).revision;
  }

  /** The caller, as its key says: its namespace, its role, and the attributes of its calls. */
  async whoami(wait?: WaitOptions): Promise<Whoami> {
    return await this.#ask({ method: "GET", path: "/v1/whoami" }, fields<Whoami>("actor", "namespace", "role"), wait);
  }

  /** The policy of a namespace. */
  async policy(namespace?: string, wait?: WaitOptions): Promise<PolicyInfo> {
    const path = `/v1/admin/policy${query({ namespace })}`;
    return await this.#ask({ method: "GET", path }, fields<PolicyInfo>("policy", "revision"), wait);
  }

  /** Explains what the answer to a call would be: the rules that match, the limits, and how full they are. Takes nothing. */
  async explain(call: CallDescription, wait?: WaitOptions): Promise<Explanation> {
    const request: HttpRequest = { method: "POST", path: "/v1/calls/explain", body: stringify(checkCall(call)) };
    return await this.#ask(request, fields<Explanation>("allowed", "rules", "limits"), wait);
  }

  /** The last sequence number that a client committed in a scope; 0 before the first. */
  async clientState(scope: Scope, clientId: string, wait?: WaitOptions): Promise<number> {
    const path = `/v1/clients/${encodeURIComponent(clientId)}${query({ namespace: scope.namespace ?? "default", vault: scope.vault })}`;
    const read = fields<{ last_committed_sequence: number }>("last_committed_sequence");
    return (await this.#ask({ method: "GET", path }, read, wait)).last_committed_sequence;
  }
}

function limitPath(key: string): string {
  if (checkKey("key", key).namespace !== undefined) throw new InputError("key", key, "is a key of the caller's namespace");
  return `/v1/admin/limits/${encodeURIComponent(key)}`;
}

function accountPath(vault: string, account: string): string {
  return `/v1/vaults/${encodeURIComponent(vault)}/accounts/${encodeURIComponent(account)}`;
}

function query(values: Record<string, string | number | null | undefined>): string {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null);
  return given.length === 0 ? "" : `?${given.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join("&")}`;
}
