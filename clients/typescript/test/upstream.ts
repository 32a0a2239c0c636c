/** A double of the providers: OpenAI and Anthropic on one port. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/** How the double answers one request: as usual, with a status, with a broken stream, or not at all. */
export type Behaviour = "usual" | "cut" | "hang" | "reset" | number;

export interface Upstream extends AsyncDisposable {
  readonly url: string;
  /** The requests so far. */
  readonly seen: { readonly path: string; readonly body: any; readonly headers: IncomingMessage["headers"] }[];
  /** How the next requests are answered, in order. */
  behaviours: Behaviour[];
  /** Milliseconds between two events of a stream. */
  gapMs: number;
}

const TOOL = { id: "call_1", type: "function", function: { name: "weather", arguments: '{"city":"Bern"}' } };
const CHAT_USAGE = {
  prompt_tokens: 19, completion_tokens: 10, total_tokens: 29,
  prompt_tokens_details: { cached_tokens: 4 }, completion_tokens_details: { reasoning_tokens: 3 },
};
const RESPONSE_USAGE = {
  input_tokens: 37, output_tokens: 11, total_tokens: 48,
  input_tokens_details: { cached_tokens: 32 }, output_tokens_details: { reasoning_tokens: 8 },
};
const MESSAGE_USAGE = { input_tokens: 25, cache_creation_input_tokens: 1_000, cache_read_input_tokens: 4_000, output_tokens: 1 };

function chat(body: any): object {
  const message = body.tools === undefined ? { role: "assistant", content: "Hello!" } : { role: "assistant", content: null, tool_calls: [TOOL] };
  const finish_reason = body.tools === undefined ? "stop" : "tool_calls";
  return { id: "c1", object: "chat.completion", created: 1, model: body.model, choices: [{ index: 0, message, finish_reason }], usage: CHAT_USAGE };
}

function chatEvents(body: any): unknown[] {
  const chunk = (choices: object[], more: object = {}) => ({ id: "c1", object: "chat.completion.chunk", created: 1, model: body.model, choices, ...more });
  const delta = (delta: object, finish_reason: string | null = null) => chunk([{ index: 0, delta, finish_reason }]);
  const text = ["Hel", "lo", "!"].map((content) => delta({ content }));
  const tool = [delta({ tool_calls: [{ index: 0, ...TOOL }] })];
  const usage = body.stream_options?.include_usage === true ? [chunk([], { usage: CHAT_USAGE })] : [];
  return [delta({ role: "assistant" }), ...(body.tools === undefined ? text : tool), delta({}, "stop"), ...usage, "[DONE]"];
}

function response(body: any): object {
  const content = [{ type: "output_text", text: "Hello!", annotations: [] }];
  const output = [{ id: "m1", type: "message", role: "assistant", status: "completed", content }];
  return { id: "r1", object: "response", created_at: 1, status: "completed", model: body.model, output, usage: RESPONSE_USAGE };
}

function responseEvents(body: any): unknown[] {
  return [
    { type: "response.created", response: { ...response(body), status: "in_progress", output: [], usage: null } },
    { type: "response.output_text.delta", item_id: "m1", output_index: 0, content_index: 0, delta: "Hello!" },
    { type: "response.completed", response: response(body) },
  ];
}

function message(body: any): object {
  const content = [{ type: "text", text: "Hello!" }];
  const usage = { ...MESSAGE_USAGE, output_tokens: 15 };
  return { id: "msg_1", type: "message", role: "assistant", model: body.model, content, stop_reason: "end_turn", stop_sequence: null, usage };
}

function messageEvents(body: any): unknown[] {
  return [
    { type: "message_start", message: { ...message(body), content: [], stop_reason: null, usage: MESSAGE_USAGE } },
    { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
    { type: "ping" },
    ...["Hel", "lo!"].map((text) => ({ type: "content_block_delta", index: 0, delta: { type: "text_delta", text } })),
    { type: "content_block_stop", index: 0 },
    { type: "message_delta", delta: { stop_reason: "end_turn", stop_sequence: null }, usage: { output_tokens: 15 } },
    { type: "message_stop" },
  ];
}

/** The answer to a path, and its events when it is streamed. */
const ANSWERS: Record<string, [answer: (body: any) => object, events: (body: any) => unknown[]]> = {
  "/v1/chat/completions": [chat, chatEvents],
  "/v1/responses": [response, responseEvents],
  "/v1/messages": [message, messageEvents],
  "/v1/messages/count_tokens": [() => ({ input_tokens: 7 }), () => []],
  "/v1/embeddings": [
    (body) => ({ object: "list", model: body.model, data: [{ object: "embedding", index: 0, embedding: [0.5] }], usage: { prompt_tokens: 8, total_tokens: 8 } }),
    () => [],
  ],
  "/v1/models": [() => ({ object: "list", data: [{ id: "gpt-4o", object: "model", created: 1, owned_by: "openai" }] }), () => []],
};

export async function startUpstream(): Promise<Upstream> {
  const server = createServer((incoming, outgoing) => void handle(incoming, outgoing).catch(() => outgoing.destroy()));
  const upstream: Upstream = {
    url: "",
    seen: [],
    behaviours: [],
    gapMs: 0,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };

  async function handle(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    let text = "";
    for await (const chunk of incoming) text += String(chunk);
    const body = text === "" ? {} : JSON.parse(text);
    const path = (incoming.url ?? "").split("?")[0] as string;
    upstream.seen.push({ path, body, headers: incoming.headers });
    const behaviour = upstream.behaviours.shift() ?? "usual";
    if (behaviour === "hang") return;
    if (behaviour === "reset") return void outgoing.destroy();
    const found = ANSWERS[path];
    const status = typeof behaviour === "number" ? behaviour : found === undefined ? 404 : 200;
    if (found === undefined || status !== 200) {
      outgoing.writeHead(status, { "content-type": "application/json", "retry-after-ms": "1" });
      return void outgoing.end(JSON.stringify({ type: "error", error: { type: "api_error", message: "injected" } }));
    }
    if (body.stream === true) return await stream(outgoing, found[1](body), behaviour === "cut");
    outgoing.writeHead(200, { "content-type": "application/json" });
    const answer = JSON.stringify(found[0](body));
    if (behaviour !== "cut") return void outgoing.end(answer);
    outgoing.write(answer.slice(0, 20));
    setTimeout(() => outgoing.destroy(), 20);
  }

  async function stream(outgoing: ServerResponse, events: unknown[], isCut: boolean): Promise<void> {
    outgoing.writeHead(200, { "content-type": "text/event-stream; charset=utf-8" });
    for (const event of isCut ? events.slice(0, 2) : events) {
      const type = (event as { type?: string }).type;
      const data = typeof event === "string" ? event : JSON.stringify(event);
      outgoing.write(`${type === undefined ? "" : `event: ${type}\n`}data: ${data}\n\n`);
      await new Promise((resolve) => setTimeout(resolve, upstream.gapMs));
    }
    if (isCut) outgoing.destroy();
    else outgoing.end();
  }

  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  (upstream as { url: string }).url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return upstream;
}
