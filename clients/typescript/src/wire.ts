/**
 * The bodies of requests and answers, in the words of the server. The tests compare them with its `/openapi.json`.
 */
import type { Actual, Amount, Requirement } from "./amount.js";

export interface ReserveRequest {
  lease_id: string;
  job_id?: string;
  requirements: Requirement[];
}

export interface ReserveAnswer {
  allowed: boolean;
  retry_after_ms: number;
  reserved_at_unix_ms: number;
  error: string;
  message?: string;
  limited_by?: string[];
  never?: true;
  would_deny?: string[];
}

export interface ExtendRequest {
  lease_id: string;
  extension: number;
  add?: Requirement[];
  used?: Actual[];
  renew?: boolean;
}

export interface ExtendAnswer {
  allowed: boolean;
  retry_after_ms: number;
  error: string;
  message?: string;
  limited_by?: string[];
  never?: true;
  ends_at_unix_ms: number;
}

export interface CompleteRequest {
  lease_id: string;
  job_id?: string;
  actuals: Actual[];
  labels?: Record<string, string>;
}

export interface CompleteAnswer {
  ok: boolean;
  error: string;
  message?: string;
  reconciled: boolean;
}

/** The tokens of a call. Cached and written tokens are part of the input, reasoning tokens part of the output. */
export interface CallUsage {
  input_tokens: Amount;
  output_tokens: Amount;
  cached_input_tokens?: Amount;
  cache_write_tokens?: Amount;
  cache_write_1h_tokens?: Amount;
  reasoning_tokens?: Amount;
  service_tier?: string;
}

export interface CallRequest {
  lease_id: string;
  job_id?: string;
  attributes: Record<string, string>;
  input_tokens_max: Amount;
  output_tokens_max: Amount;
}

export interface CallAnswer extends ReserveAnswer {
  requirements: { key: string; amount: Amount; namespace?: string }[];
  policy_revision?: number;
}

export interface ExplainRequest {
  job_id?: string;
  attributes: Record<string, string>;
  input_tokens_max: Amount;
  output_tokens_max: Amount;
}

/** The answer that a call would get, with its reasons. */
export interface Explanation {
  allowed: boolean;
  error: string;
  message?: string;
  /** All rules, in order. */
  rules: { name: string; matched: boolean }[];
  /** Of a limit of another namespace only the key and the amount are known. */
  limits: { key: string; amount: Amount; capacity?: Amount; available?: Amount; fits?: boolean }[];
  /** The most that it can cost, in minor units. */
  cost?: string;
  policy_revision?: number;
}

export interface CallExtendRequest {
  lease_id: string;
  extension: number;
  attributes: Record<string, string>;
  add_output_tokens?: Amount;
  used?: CallUsage;
  policy_revision?: number;
  namespace?: string;
}

/** How a call ended: with its usage, without the upstream having taken it, or unknown. */
export type CallOutcome = "done" | "refused" | "unknown";

export interface CallCompleteRequest {
  lease_id: string;
  attributes: Record<string, string>;
  usage?: CallUsage;
  outcome: CallOutcome;
  policy_revision?: number;
  namespace?: string;
  labels?: Record<string, string>;
}

export interface CallCompleteAnswer extends CompleteAnswer {
  /** The settled amounts. Limits that are not in it stay as reserved, or count what extensions reported. */
  actuals: { key: string; actual_amount: Amount; namespace?: string }[];
  /** The cost in minor units, as a decimal string; `null` if it is not known. */
  cost: string | null;
}

/** The definition of a limit. */
export interface LimitDefinition {
  key: string;
  kind: "rolling" | "concurrency" | "calendar" | "credit";
  capacity?: Amount;
  window_seconds?: number;
  timeout_seconds?: number;
  period?: "hour" | "day" | "week" | "month";
  utc_offset_minutes?: number;
  vault?: string;
  account?: string;
  asset?: string;
  revenue?: string;
  on_timeout?: "release" | "charge";
  unit?: string;
  description?: string;
  overage?: "debt" | "deny";
  shared?: boolean;
  enforce?: boolean;
}

export interface LimitInfo {
  definition: LimitDefinition;
  status: "active" | "decreasing";
  pending_decrease_to: Amount | null;
  paused_until_unix_ms?: number;
  pause_reason?: string;
  revision: number;
  template?: string;
}

export interface LimitChanged {
  ok: true;
  status: "active" | "decreasing" | "deleted";
}

export interface LimitUsage {
  capacity: Amount;
  reserved: Amount;
  available: Amount;
  debt: Amount;
  status: "active" | "decreasing";
  pending_decrease_to: Amount | null;
  paused_until_unix_ms?: number;
}

export interface UsageItem {
  key: string;
  kind: LimitDefinition["kind"];
  capacity: Amount;
  reserved: Amount;
  available: Amount;
  debt: Amount;
  status: "active" | "decreasing";
  paused_until_unix_ms?: number;
}

export interface UsageList {
  usage: UsageItem[];
  /** `after` of the next page; `null` on the last one. */
  next: string | null;
}

/** A template of limits. */
export interface TemplateInfo {
  definition: LimitDefinition;
  revision: number;
  /** The number of limits that are derived from it now. */
  live: number;
}

/** One of the heaviest limits. Of a limit of another namespace only the key is known. */
export interface TopLimit {
  key: string;
  /** The count, which is never too low. */
  amount?: Amount;
  /** The amount is too high by at most this. */
  error?: Amount;
}

/** A denial, a refusal, a timeout or an overage. */
export interface Decision {
  at_unix_ms: number;
  outcome: "denied" | "refused" | "timeout" | "overage";
  lease_id: string;
  job_id?: string;
  actor: string;
  /** Absent for a job. */
  attributes?: Record<string, string>;
  /** The limits in the way, the one that frees last first. Of a limit of another namespace only the key is known. */
  limits: { key: string; asked?: Amount; available?: Amount; capacity?: Amount }[];
  /** Further decisions of the same key and outcome in the same second, which are not listed. */
  repeated: number;
}

/** Decisions, newest first. */
export interface DecisionList {
  decisions: Decision[];
  /** `after` of the next page; `null` on the last one. */
  next: string | null;
}

export interface LeaseInfo {
  lease_id: string;
  job_id: string | null;
  reserved_at_unix_ms: number;
  requirements: { key: string; amount: Amount }[];
  state: "live" | "expired" | "completed" | "denied";
  extensions: number;
  used: { key: string; actual_amount: Amount }[];
  ends_at_unix_ms: number;
}

/** Amounts of credit are decimal strings of minor units. */
export interface Balance {
  asset: string;
  available: string;
  held: string;
  pending: string;
}

/** Credit that is spent by priority and expiry; plain credit is one, too. Amounts are decimal strings of minor units. */
export interface Grant {
  asset: string;
  remaining: string;
  held: string;
  /** The lowest number is spent first, then what expires first. */
  priority: number;
  /** Absent if it never expires. */
  expires_at_unix_ms?: number;
}

/** An account with its balances, sorted by asset. */
export interface Account {
  account: string;
  status: "open" | "frozen" | "closed";
  balances: Balance[];
  plan?: {
    asset: string;
    amount: string;
    period: "hour" | "day" | "week" | "month";
    utc_offset_minutes: number;
    carry_over: "none" | { max: string };
    /** When it issues next; absent before its first period. */
    next_at_unix_ms?: number;
  };
}

/** The change of one asset by an entry. Amounts are decimal strings of minor units. */
export interface EntryChange {
  asset: string;
  /** The change of the available amount. */
  amount: string;
  /** The change of the held amount. */
  held: string;
  /** The amount that a transaction issued to the account; absent if 0. */
  issued?: string;
  retired?: string;
  transferred_in?: string;
  transferred_out?: string;
}

interface EntryBase<Kind extends string> {
  kind: Kind;
  /** Its position in the journal. */
  number: number;
  committed_at_unix_ms: number;
  changes: EntryChange[];
}

interface TransactionEntry extends EntryBase<"transaction"> {
  tx_id: string;
  log_index: number;
  actor: string;
  memos: string[];
}

interface HoldEntry<Kind extends string> extends EntryBase<Kind> {
  lease_id: string;
  limit: string;
  /** The amount that the lease held. */
  hold: string;
  /** `system:earmark` for a timeout, null if it is not recorded. */
  actor: string | null;
}

interface SettleEntry extends HoldEntry<"settle"> {
  /** The amount paid to the revenue account. */
  paid: string;
  /** The part of it that the account owes. */
  debt: string;
  /** The cost that was not paid. */
  uncollected: string;
  /** `late`: a complete after the timeout. */
  reason: "complete" | "timeout" | "late";
  /** The labels of the complete. */
  labels: Record<string, string>;
}

interface GrantEntry<Kind extends string> extends EntryBase<Kind> {
  priority: number;
  expires_at_unix_ms: number;
}

interface PlanEntry extends GrantEntry<"plan"> {
  /** Unused credit of the period before that it kept; not in `changes`. */
  carried: string;
  actor: "system:earmark";
}

/** A movement of an account. */
export type Entry =
  | (TransactionEntry & { client_id: string; sequence: number })
  | (TransactionEntry & { idempotency_key: string })
  | HoldEntry<"hold">
  | SettleEntry
  | HoldEntry<"release">
  | GrantEntry<"expire">
  | PlanEntry;

/** A page of entries. */
export interface EntryList {
  entries: Entry[];
  /** `after` of the next page; `null` on the last one. A page with a period may be empty although more follow. */
  next: number | null;
}

/** The spending of a statement under one value of the label. */
export interface StatementGroup {
  /** Null for settlements without the label. */
  value: string | null;
  spent: string;
  settlements: number;
}

/**
 * The movements of one asset in a period, as decimal strings of minor units. `closing` is `opening + issued + received +
 * transferred_in - spent - transferred_out - expired - retired`; held credit is part of it.
 */
export interface AssetStatement {
  asset: string;
  opening: string;
  issued: string;
  received: string;
  transferred_in: string;
  spent: string;
  transferred_out: string;
  expired: string;
  retired: string;
  closing: string;
  settlements: number;
  /** Absent without a label. */
  groups?: StatementGroup[];
}

/** The statement of an account. */
export interface Statement {
  account: string;
  since: number | null;
  until: number | null;
  group_by: string | null;
  assets: AssetStatement[];
  /** `after` of the next page; null on the last one. */
  next: string | null;
}

/** A caller, as its credentials say. */
export interface Whoami {
  actor: string;
  namespace: string;
  role: string;
  /** The attributes that the key fixes. */
  labels: Record<string, string>;
  /** The attributes that its calls may set. */
  may_set: string[];
}

export interface PolicyInfo {
  policy: string;
  revision: number;
}

/** A recurring grant: `amount` is issued once per calendar period and expires at its end. */
export interface Plan {
  asset: string;
  amount: string | bigint;
  period: "hour" | "day" | "week" | "month";
  /** Local time of the periods, in minutes ahead of UTC. Default: 0. */
  utc_offset_minutes?: number;
  /** Unused credit that the next period keeps. Default: `"none"`. */
  carry_over?: "none" | { max: string };
}

/** An operation of a sequenced write: exactly one field. Amounts of credit are decimal strings of minor units, or `bigint`. */
export type Operation =
  | { put_limit: { definition: LimitDefinition; expected_revision?: number } }
  | { delete_limit: { key: string; expected_revision?: number } }
  | { open_vault: { vault: string } }
  | { delete_vault: { vault: string } }
  | { open_account: { account: string; overdraft: "deny" | "allow" | { limit: string }; plan?: Plan } }
  | { set_plan: { account: string; plan?: Plan } }
  | { freeze_account: { account: string } }
  | { unfreeze_account: { account: string } }
  | { close_account: { account: string } }
  | { issue: {
      account: string;
      asset: string;
      amount: string | bigint;
      memo?: string;
      expires_at_unix_ms?: number;
      priority?: number;
    } }
  | { transfer: { from: string; to: string; asset: string; amount: string | bigint; memo?: string } }
  | { retire_client: { client_id: string } }
  | { retire: { account: string; asset: string; amount: string | bigint; memo?: string } };

export interface WriteRequest {
  namespace: string;
  vault?: string;
  client_id?: string;
  sequence?: number;
  /** In place of `client_id` and `sequence`: 1 to 255 visible ASCII characters. */
  idempotency_key?: string;
  operations: readonly Operation[];
}

export type OperationResult =
  | { limit: string; revision: number; status: "active" | "decreasing" | "deleted" }
  | { vault: string }
  | { account: string }
  | { entry: string }
  | { client_id: string };

/** The receipt of a committed transaction. A repeated write gets the same one. */
export interface Receipt {
  tx_id: string;
  /** Absent for a write with an idempotency key. */
  sequence?: number;
  log_index: number;
  committed_at_unix_ms: number;
  actor: string;
  results: OperationResult[];
}

/** Why a transaction was not committed. */
export interface WriteRefusal {
  code: string;
  message: string;
  operation?: number;
  last_committed_sequence?: number;
}
