import { type Amount, checkAmount, checkRecord, InputError, TOKENS_MAX } from "./amount.js";
import type { ExplainRequest } from "./wire.js";

const ATTRIBUTES_MAX = 32;
const LABELS_MAX = 8;

/** A call, as the policy of the server sees it. */
export interface CallDescription {
  /** At most 32 attributes, such as `model`, `provider` and those that the key may set. */
  readonly attributes: Readonly<Record<string, string>>;
  /** An upper bound of the input tokens. */
  readonly inputTokensMax: Amount;
  /** An upper bound of the output tokens. */
  readonly outputTokensMax: Amount;
}

/** The body of a call without its lease. */
export function checkCall(call: CallDescription): ExplainRequest {
  return {
    attributes: checkTexts("attributes", call.attributes, ATTRIBUTES_MAX, 256),
    input_tokens_max: checkAmount("inputTokensMax", call.inputTokensMax, 0n, TOKENS_MAX),
    output_tokens_max: checkAmount("outputTokensMax", call.outputTokensMax, 0n, TOKENS_MAX),
  };
}

/** The labels of a complete; `undefined` without any. */
export function checkLabels(labels: Labels | undefined): Record<string, string> | undefined {
  if (labels === undefined || Object.keys(labels).length === 0) return undefined;
  return checkTexts("labels", labels, LABELS_MAX, 128);
}

/** Labels of a settlement, which statements group by: up to 8, such as `model` and `user`. */
export type Labels = Readonly<Record<string, string>>;

function checkTexts(field: string, texts: Labels, most: number, bytesMax: number): Record<string, string> {
  checkRecord(field, texts);
  const entries = Object.entries(texts);
  if (entries.length > most) throw new InputError(field, entries.length, `are up to ${most}`);
  for (const [name, value] of entries) {
    if (!/^[a-z][a-z0-9_]{0,63}$/.test(name)) throw new InputError(field, name, "are names of a-z, 0-9 and _, from a letter on");
    const isText = typeof value === "string" && value !== "" && Buffer.byteLength(value) <= bytesMax && !/\p{Cc}/u.test(value);
    if (!isText) throw new InputError(`${field}.${name}`, value, `are 1 to ${bytesMax} bytes of text without control characters`);
  }
  return { ...texts };
}
