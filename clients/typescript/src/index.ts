/**
 * The client of Earmark: admission control and a credit ledger for LLM traffic. Servers only: a browser would expose the key.
 */
export { type Amount, type Amounts, InputError } from "./amount.js";
export type { BackoffOptions } from "./backoff.js";
export type { BatchOptions } from "./batcher.js";
export type { CallDescription, Labels } from "./call.js";
export {
  Client, type DecisionQuery, type EntryQuery, type Expected, type ListQuery, type Scope, type StatementQuery, type TopQuery,
  type UsageQuery,
} from "./client.js";
export type { WaitOptions } from "./deadline.js";
export {
  AcquireError, type AcquireReason, type Certainty, type Denial, ExtendError, type ExtendReason, type FailureKind, RequestError,
} from "./error.js";
export type { Extended } from "./extensions.js";
export type { KeepAlive } from "./keep_alive.js";
export { type AcquireOptions, type CallCompleted, CallLease, type Completed, type CompleteOptions, type Extension, Lease } from "./lease.js";
export { Limiter, type LimiterOptions, type Tried } from "./limiter.js";
export type { ClientOptions } from "./options.js";
export { SequenceFileError } from "./sequence_file.js";
export type {
  Account, AssetStatement, Balance, CallUsage, Decision, DecisionList, Entry, EntryChange, EntryList, Explanation, Grant,
  LeaseInfo, LimitDefinition, LimitInfo, LimitUsage, Operation, OperationResult, PolicyInfo, Receipt, Statement,
  StatementGroup, TemplateInfo, TopLimit, UsageItem, UsageList, Whoami, WriteRefusal,
} from "./wire.js";
export { type Fate, Writer, WriterError, type WriterOptions, type WriterReason } from "./writer.js";
