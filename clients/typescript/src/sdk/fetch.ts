/** A `fetch` for the official SDKs: one lease for each attempt, settled by the usage of the answer. */
import { type Amounts, InputError } from "../amount.js";
import { AcquireError } from "../error.js";
import type { CallLease, Lease } from "../lease.js";
import type { Limiter, Tried } from "../limiter.js";
import { frameData, SseFramer } from "../sse.js";
import { isNotConnected } from "../transport.js";
import { UsageMeter } from "../usage.js";
import type { CallUsage } from "../wire.js";
import { denied, invalid, refused } from "./answer.js";
import { type Api, type BoundCall, boundCall, type BoundOptions, isMetered } from "./bound.js";

/** A call, for a program that names its limits itself. */
export interface MeteredCall {
  readonly provider: string;
  readonly model: string;
  readonly inputTokensMax: number;
  readonly outputTokensMax: number;
  /** The attributes of the options and of the request. */
  readonly attributes: Readonly<Record<string, string>>;
}

/** The limits of a call, and what it used of them. */
export interface CallLimits {
  readonly amounts: Amounts;
  /** The amounts of a usage. A limit that is missing counts as fully used. */
  readonly actuals: (usage: CallUsage) => Amounts;
}

/** The options of a `fetch` for an SDK. */
export interface FetchOptions extends BoundOptions {
  readonly limiter: Limiter;
  /** The attribute `provider`. By default the name of the API. */
  readonly provider?: string;
  /**
   * Attributes of every call, besides `model` and `provider`. A request adds its own with the header
   * `x-earmark-attributes: user=u1, feature=chat`, which is not sent to the provider.
   */
  readonly attributes?: Readonly<Record<string, string>>;
  /** Names the limits of a call. By default the policy of the server does. */
  readonly limits?: (call: MeteredCall) => CallLimits;
  /** The shortest timeout of the concurrency and credit limits. With it the leases of long calls are renewed. */
  readonly timeoutMs?: number;
  /** Milliseconds to wait for the answer of Earmark: that of the client. */
  readonly withinMs?: number;
  /** Whether a request to a path that is not metered may pass. By default none; GET, HEAD, DELETE and OPTIONS pass. */
  readonly unmetered?: (method: string, path: string) => boolean;
  /** The `fetch` that reaches the provider. */
  readonly fetch?: typeof globalThis.fetch;
}

/** Methods that make no call to a model. */
const FREE: ReadonlySet<string> = new Set(["GET", "HEAD", "DELETE", "OPTIONS"]);
const ATTRIBUTES_HEADER = "x-earmark-attributes";

/** A lease of either kind. */
interface Admitted {
  readonly held: Lease | CallLease;
  soFar(usage: CallUsage): void;
  complete(usage: CallUsage): Promise<unknown>;
  release(): Promise<unknown>;
}

/** A `fetch` for the SDK of a provider. */
export function meteredFetch(api: Api, options: FetchOptions): typeof globalThis.fetch {
  const upstream = options.fetch ?? globalThis.fetch;
  return async (input, init) => {
    const request = input instanceof Request ? input : undefined;
    const method = (init?.method ?? request?.method ?? "GET").toUpperCase();
    const { pathname } = new URL(request?.url ?? String(input));
    if (FREE.has(method)) return await upstream(input, init);
    if (!isMetered(api, pathname)) {
      if (options.unmetered?.(method, pathname) === true) return await upstream(input, init);
      return invalid(api, `${method} ${pathname} is not metered; allow it with the option unmetered`);
    }
    const headers = new Headers(init?.headers ?? request?.headers);
    const signal = init?.signal ?? request?.signal;
    let call: BoundCall;
    let tried: Tried<Admitted> | undefined;
    try {
      const body = await bodyText(init?.body ?? (await request?.clone().text()));
      call = boundCall(api, pathname, body, options);
      const attributes = { ...options.attributes, ...headerAttributes(headers.get(ATTRIBUTES_HEADER)) };
      tried = await admit(api, options, call, attributes, signal ?? undefined);
    } catch (error) {
      if (error instanceof InputError) return invalid(api, error.message);
      if (error instanceof AcquireError) return refused(api, error);
      throw error;
    }
    if (tried === undefined) return await upstream(input, init);
    if (tried.denial !== undefined) return denied(api, tried.denial);
    headers.delete(ATTRIBUTES_HEADER);
    headers.delete("content-length");
    const url = request?.url ?? input;
    return await settled(tried.lease, call, options, signal ?? undefined, (kept) => {
      const sent: RequestInit = { ...init, method, headers, body: call.body };
      if (kept !== undefined) sent.signal = kept;
      return upstream(url, sent);
    });
  };
}

async function bodyText(body: RequestInit["body"] | undefined): Promise<string> {
  if (typeof body === "string") return body;
  if (body instanceof ArrayBuffer || ArrayBuffer.isView(body) || body instanceof Blob) return await new Response(body as Blob).text();
  throw new InputError("body", typeof body, "is a JSON text");
}

/** The attributes of `user=u1, feature=chat`. */
function headerAttributes(header: string | null): Record<string, string> {
  const parts = (header ?? "").split(",").map((part) => part.trim()).filter((part) => part !== "");
  return Object.fromEntries(
    parts.map((part) => {
      const [, name, value] = /^([a-z][a-z0-9_]*)=(.+)$/.exec(part) ?? [];
      if (name === undefined || value === undefined) throw new InputError(ATTRIBUTES_HEADER, part, "is a list of NAME=VALUE");
      if (name === "model" || name === "provider") throw new InputError(ATTRIBUTES_HEADER, part, "are other attributes: the request has this one");
      return [name, value];
    }),
  );
}

/** Admits a call. `undefined` if it takes nothing: then no limit applies to it. */
async function admit(
  api: Api,
  options: FetchOptions,
  call: BoundCall,
  added: Record<string, string>,
  signal: AbortSignal | undefined,
): Promise<Tried<Admitted> | undefined> {
  const { limiter, provider = api } = options;
  const { model, inputTokensMax, outputTokensMax } = call;
  const attributes = { ...added, model, provider };
  const wait = { ...(options.withinMs !== undefined && { withinMs: options.withinMs }), ...(signal !== undefined && { signal }) };
  if (options.limits === undefined) {
    const { lease, denial } = await limiter.tryAcquireCall({ attributes, inputTokensMax, outputTokensMax }, wait);
    if (lease === undefined) return { denial };
    return {
      lease: { held: lease, soFar: (usage) => lease.used(usage), complete: (usage) => lease.complete(usage), release: () => lease.refused() },
    };
  }
  const { amounts, actuals } = options.limits({ provider, model, inputTokensMax, outputTokensMax, attributes });
  // A request that only counts tokens takes none.
  const taken = Object.entries(amounts).filter(([, amount]) => amount !== 0 && amount !== 0n);
  if (taken.length === 0) return undefined;
  const { lease, denial } = await limiter.tryAcquire(Object.fromEntries(taken), wait);
  if (lease === undefined) return { denial };
  return {
    lease: { held: lease, soFar: () => {}, complete: (usage) => lease.complete(actuals(usage)), release: () => lease.release() },
  };
}

/** Settles a lease once, in the background: the answer does not wait for it, and the limiter reports a failure. */
class Settlement {
  readonly #meter = new UsageMeter();

  constructor(private readonly lease: Admitted) {}

  /** The upstream refused the call, or never got it. */
  released(): void {
    if (this.lease.held.isOpen) this.lease.release().catch(() => {});
  }

  /** The call has ended: by its usage, or by its bound if that is unknown. */
  ended(): void {
    if (!this.lease.held.isOpen) return;
    const { usage } = this.#meter;
    const settled = usage === undefined ? this.lease.held[Symbol.asyncDispose]() : this.lease.complete(usage);
    settled.catch(() => {});
  }

  answer(text: string): void {
    try {
      this.#meter.answer(JSON.parse(text));
    } catch {
      // An answer that is not JSON has no usage.
    }
    this.ended();
  }

  /** Reads a frame. Returns whether it is the extra chunk with the usage. */
  frame(frame: Buffer): boolean {
    const data = frameData(frame);
    if (data === undefined) return false;
    const isUsage = this.#meter.event(data);
    const soFar = this.#meter.soFar;
    if (soFar !== undefined) this.lease.soFar(soFar);
    return isUsage;
  }
}

async function settled(
  lease: Admitted,
  call: BoundCall,
  options: FetchOptions,
  signal: AbortSignal | undefined,
  send: (signal: AbortSignal | undefined) => Promise<Response>,
): Promise<Response> {
  const settlement = new Settlement(lease);
  // A lease that is lost ends the call: others may have its capacity.
  const kept = options.timeoutMs === undefined ? undefined : lease.held.keepAlive(options.timeoutMs).signal;
  const signals = [signal, kept].filter((given) => given !== undefined);
  let response: Response;
  try {
    response = await send(signals.length > 1 ? AbortSignal.any(signals) : signals[0]);
  } catch (error) {
    if (isNotConnected(error)) settlement.released();
    else settlement.ended();
    throw error;
  }
  if (response.status >= 400) {
    settlement.released();
    return response;
  }
  const headers = new Headers(response.headers);
  // The body is decoded already.
  for (const name of ["content-encoding", "content-length"]) headers.delete(name);
  headers.set("x-earmark-lease", lease.held.id);
  const { status, statusText } = response;
  if (response.body !== null && headers.get("content-type")?.includes("text/event-stream") === true) {
    // A caller that aborts may never read the error of the stream.
    signal?.addEventListener("abort", () => settlement.ended(), { once: true });
    return new Response(meteredStream(response.body, settlement, call.hidesUsage), { status, statusText, headers });
  }
  try {
    const text = await response.text();
    settlement.answer(text);
    return new Response(text === "" ? null : text, { status, statusText, headers });
  } catch (error) {
    settlement.ended();
    throw error;
  }
}

/** The same stream, counted as it passes. It settles when it ends, breaks or is cancelled. */
function meteredStream(body: ReadableStream<Uint8Array>, settlement: Settlement, hidesUsage: boolean): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  const framer = new SseFramer();
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        // A chunk may have no whole frame, or only the one that is removed.
        for (let isEmpty = true; isEmpty; ) {
          const { done, value } = await reader.read();
          const frames = done ? [framer.take()] : framer.push(value);
          for (const frame of frames) {
            if (frame.length === 0 || (settlement.frame(frame) && hidesUsage)) continue;
            controller.enqueue(frame);
            isEmpty = false;
          }
          if (!done) continue;
          settlement.ended();
          controller.close();
          return;
        }
      } catch (error) {
        settlement.ended();
        controller.error(error);
      }
    },
    async cancel(reason) {
      settlement.ended();
      await reader.cancel(reason);
    },
  });
}
