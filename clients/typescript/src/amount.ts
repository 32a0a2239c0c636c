/** An amount of a limit: an integer, as a number up to 2^53 - 1 or as a `bigint`. Answers have a `bigint` only beyond that. */
export type Amount = number | bigint;

/** Amounts by limit key. A shared limit of another namespace is written `!namespace:key`, as in the answers of the server. */
export type Amounts = Readonly<Record<string, Amount>>;

/** The greatest amount that a server takes: 2^64 - 1. */
const AMOUNT_MAX = 2n ** 64n - 1n;
/** The most tokens of a call, as a bound or as a usage: 2^32 - 1. */
export const TOKENS_MAX = 2n ** 32n - 1n;
/** The most limits of one lease. */
const REQUIREMENTS_MAX = 32;

const KEY = /^[A-Za-z0-9:._@+/|=~%-]{1,256}$/;
const NAMESPACE = /^[A-Za-z0-9._@+-]{1,64}$/;
const JOB = /^[A-Za-z0-9:._@+-]{1,128}$/;

/** Bad input, found before anything was sent. The message names the field, what was found and what is allowed. */
export class InputError extends TypeError {
  override readonly name = "InputError";

  constructor(field: string, found: unknown, allowed: string) {
    super(`${field}: found ${shown(found)}, allowed ${allowed}`);
  }
}

function shown(found: unknown): string {
  if (typeof found === "string") return JSON.stringify(found);
  if (typeof found === "bigint" || typeof found === "number" || found === undefined || found === null) return String(found);
  return Array.isArray(found) ? "an array" : `a ${typeof found}`;
}

export function checkAmount(field: string, amount: unknown, min: bigint, max: bigint = AMOUNT_MAX): Amount {
  const isInteger = typeof amount === "bigint" || Number.isSafeInteger(amount);
  if (!isInteger || BigInt(amount as Amount) < min || BigInt(amount as Amount) > max) {
    throw new InputError(field, amount, `are integers from ${min} to ${max}, from 2^53 on as bigint`);
  }
  return amount as Amount;
}

/** A limit key with the namespace of a shared limit, as a request has them. */
export interface LimitName {
  key: string;
  namespace?: string;
}

export function checkKey(field: string, name: string): LimitName {
  const [, namespace, key] = /^!([^:]*):(.*)$/s.exec(name) ?? [undefined, undefined, name];
  if (!KEY.test(key as string)) {
    throw new InputError(field, name, "is a key of 1 to 256 letters, digits and :._@+-/|=~%");
  }
  if (namespace === undefined) return { key: key as string };
  if (!NAMESPACE.test(namespace)) {
    throw new InputError(field, name, "is !NAMESPACE:KEY with a namespace of 1 to 64 letters, digits and ._@+-");
  }
  return { key: key as string, namespace };
}

export function checkJob(job: string | undefined): string | undefined {
  if (job !== undefined && !JOB.test(job)) {
    throw new InputError("jobId", job, "are 1 to 128 letters, digits and :._@+-");
  }
  return job;
}

export interface Requirement extends LimitName {
  amount: Amount;
}

export interface Actual extends LimitName {
  actual_amount: Amount;
}

/** An object whose fields are the entries, which programs without types may get wrong. */
export function checkRecord(field: string, value: unknown): void {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return;
  throw new InputError(field, value, "is an object, such as { \"gpt-4o\": 1 }");
}

export function requirements(field: string, amounts: Amounts, min: 0 | 1): Requirement[] {
  checkRecord(field, amounts);
  const entries = Object.entries(amounts);
  if (entries.length < min || entries.length > REQUIREMENTS_MAX) {
    throw new InputError(field, entries.length, `are ${min} to ${REQUIREMENTS_MAX} limits`);
  }
  return entries.map(([key, amount]) => ({
    ...checkKey(field, key),
    amount: checkAmount(`${field}[${JSON.stringify(key)}]`, amount, 1n),
  }));
}

export function actuals(field: string, amounts: Amounts): Actual[] {
  checkRecord(field, amounts);
  return Object.entries(amounts).map(([key, amount]) => ({
    ...checkKey(field, key),
    actual_amount: checkAmount(`${field}[${JSON.stringify(key)}]`, amount, 0n),
  }));
}
