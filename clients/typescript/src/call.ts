import { type Amount, checkAmount, InputError, TOKENS_MAX } from "./amount.js";
import type { ExplainRequest } from "./wire.js";

const ATTRIBUTES_MAX = 32;

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
    attributes: checkAttributes(call.attributes),
    input_tokens_max: checkAmount("inputTokensMax", call.inputTokensMax, 0n, TOKENS_MAX),
    output_tokens_max: checkAmount("outputTokensMax", call.outputTokensMax, 0n, TOKENS_MAX),
  };
}

function checkAttributes(attributes: Readonly<Record<string, string>>): Record<string, string> {
  const entries = Object.entries(attributes);
  if (entries.length > ATTRIBUTES_MAX) throw new InputError("attributes", entries.length, `are up to ${ATTRIBUTES_MAX}`);
  for (const [name, value] of entries) {
    if (!/^[a-z][a-z0-9_]*$/.test(name)) throw new InputError("attributes", name, "are names of a-z, 0-9 and _, from a letter on");
    const isText = typeof value === "string" && value !== "" && Buffer.byteLength(value) <= 256 && !/\p{Cc}/u.test(value);
    if (!isText) throw new InputError(`attributes.${name}`, value, "are 1 to 256 bytes of text without control characters");
  }
  return { ...attributes };
}
