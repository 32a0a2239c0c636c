import type { CallUsage } from "./wire.js";

type Json = { readonly [name: string]: unknown } | null | undefined;

/** The counts of a usage object; `undefined` where it has no such field. */
interface Counts {
  /** The input, without cached tokens where the provider counts those apart. */
  input?: number;
  /** Tokens that are part of the input. */
  cached?: number;
  reasoning?: number;
  /** Anthropic counts tokens that it wrote to its cache or read from there apart from the input. */
  cacheCreation?: number;
  cacheCreation1h?: number;
  cacheRead?: number;
  output?: number;
  total?: number;
}

function object(value: unknown): Json {
  return typeof value === "object" ? (value as Json) : undefined;
}

function count(json: Json, ...names: string[]): number | undefined {
  const found = names.map((name) => json?.[name]).find((value) => Number.isSafeInteger(value) && (value as number) >= 0);
  return found as number | undefined;
}

function counts(usage: Json): Counts {
  const found: Record<keyof Counts, number | undefined> = {
    input: count(usage, "prompt_tokens", "input_tokens"),
    cached: count(object(usage?.["prompt_tokens_details"] ?? usage?.["input_tokens_details"]), "cached_tokens"),
    reasoning: count(object(usage?.["completion_tokens_details"] ?? usage?.["output_tokens_details"]), "reasoning_tokens"),
    cacheCreation: count(usage, "cache_creation_input_tokens"),
    cacheCreation1h: count(object(usage?.["cache_creation"]), "ephemeral_1h_input_tokens"),
    cacheRead: count(usage, "cache_read_input_tokens"),
    output: count(usage, "completion_tokens", "output_tokens"),
    total: count(usage, "total_tokens"),
  };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
}

/** The usage that the counts make up; `undefined` if a part is missing. */
function usageOf(counts: Counts, serviceTier: string | undefined): CallUsage | undefined {
  if (counts.input === undefined) return undefined;
  const { cacheCreation = 0, cacheCreation1h = 0, cacheRead = 0 } = counts;
  const input = counts.input + cacheCreation + cacheRead;
  // Embeddings have a total and no output. Tokens in the total only, such as reasoning, are output.
  const beyondInput = counts.total === undefined ? undefined : Math.max(0, counts.total - input);
  if (counts.output === undefined && beyondInput === undefined) return undefined;
  const cached = cacheRead + (counts.cached ?? 0);
  const written = Math.max(0, cacheCreation - cacheCreation1h);
  return {
    input_tokens: input,
    output_tokens: Math.max(counts.output ?? 0, beyondInput ?? 0),
    ...(cached > 0 && { cached_input_tokens: cached }),
    ...(written > 0 && { cache_write_tokens: written }),
    ...(cacheCreation1h > 0 && { cache_write_1h_tokens: cacheCreation1h }),
    ...(counts.reasoning && { reasoning_tokens: counts.reasoning }),
    ...(serviceTier !== undefined && { service_tier: serviceTier }),
  };
}

/** The events after which a stream has ended by itself. */
const TERMINAL: ReadonlySet<unknown> = new Set([
  "message_stop", "response.completed", "response.incomplete", "response.failed", "response.cancelled",
]);

/**
 * Reads the usage that a provider reports, from an answer or from the events of a stream. Each field counts by its maximum,
 * because events repeat counts that only grow, and may leave fields out. A stream that is cut off has no usage.
 */
export class UsageMeter {
  #counts: Counts = {};
  #serviceTier: string | undefined;
  #isComplete = false;

  /** Adds a whole answer. */
  answer(answer: unknown): void {
    this.#add(object(answer));
    this.#isComplete = true;
  }

  /** Adds the data of an event. Returns whether it is the extra chunk of OpenAI that has nothing but the usage. */
  event(data: string): boolean {
    if (data.trim() === "[DONE]") {
      this.#isComplete = true;
      return false;
    }
    const event = parsed(data);
    this.#add(event);
    if (TERMINAL.has(event?.["type"])) this.#isComplete = true;
    const choices = event?.["choices"];
    return Array.isArray(choices) && choices.length === 0 && typeof object(event?.["usage"]) === "object" && event?.["usage"] !== null;
  }

  /** The usage, once the answer is complete. */
  get usage(): CallUsage | undefined {
    return this.#isComplete ? this.soFar : undefined;
  }

  /** The usage that is certain so far. */
  get soFar(): CallUsage | undefined {
    return usageOf(this.#counts, this.#serviceTier);
  }

  #add(event: Json): void {
    const holder = [event, object(event?.["message"]), object(event?.["response"])].find((json) => object(json?.["usage"]) != null);
    const usage = object(holder?.["usage"]);
    if (usage == null) return;
    for (const [name, value] of Object.entries(counts(usage)) as [keyof Counts, number][]) {
      this.#counts[name] = Math.max(this.#counts[name] ?? 0, value);
    }
    const tier = usage["service_tier"] ?? holder?.["service_tier"];
    if (typeof tier === "string" && /^[\w.-]{1,64}$/.test(tier)) this.#serviceTier = tier;
  }
}

function parsed(data: string): Json {
  try {
    return object(JSON.parse(data));
  } catch {
    return undefined;
  }
}
