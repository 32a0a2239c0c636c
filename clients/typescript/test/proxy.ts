/** A proxy that injects faults between a client and a server. */
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/**
 * The fault of one request:
 * - `pass`: nothing.
 * - `lose_request`: the connection breaks before the server has it.
 * - `lose_answer`: the server executes it, then the connection breaks.
 * - `duplicate`: the server gets it twice; the second answer is returned.
 * - `late_request`: the connection breaks, and the server gets it {@link LATE_MS} later.
 * - `late_answer`: the server executes it, and its answer comes {@link LATE_MS} later.
 * - `hang`: the server does not get it, and no answer comes.
 * - `unavailable`: 503, and the server does not get it.
 * - `unavailable_after`: the server executes it, then the answer is 503.
 * - `not_earmark`: a page of another program with status 200.
 * - a number: the server does not get it, and the client gets this status.
 */
export type Fault =
  | "pass"
  | "lose_request"
  | "lose_answer"
  | "duplicate"
  | "late_request"
  | "late_answer"
  | "hang"
  | "unavailable"
  | "unavailable_after"
  | "not_earmark"
  | number;

/** Milliseconds for which a late request or answer is held back. */
export const LATE_MS = 1_000;

export interface Seen {
  readonly path: string;
  readonly body: any;
  readonly answer?: any;
  readonly authorization: string | undefined;
}

export interface Proxy extends AsyncDisposable {
  readonly url: string;
  /** The requests so far. */
  readonly seen: Seen[];
  /** The faults of the next requests, in order. Later ones pass. */
  faults: Fault[];
  /** Overrides `faults`. */
  choose: ((path: string, body: any) => Fault) | undefined;
}

interface Answer {
  readonly status: number;
  readonly text: string;
}

function forward(target: string, incoming: IncomingMessage, body: string): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const { method, headers, url } = incoming;
    const sent = request(target + (url ?? "/"), { method, headers: { ...headers, host: new URL(target).host } }, (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (chunk: string) => (text += chunk));
      response.on("end", () => resolve({ status: response.statusCode ?? 0, text }));
    });
    sent.on("error", reject);
    sent.end(body);
  });
}

async function text(incoming: IncomingMessage): Promise<string> {
  let all = "";
  incoming.setEncoding("utf8");
  for await (const chunk of incoming) all += chunk;
  return all;
}

function json(body: string): any {
  try {
    return JSON.parse(body);
  } catch {
    return body;
  }
}

function sleep(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, LATE_MS).unref());
}

export async function startProxy(target: string, onSeen: (seen: Seen) => void = () => {}): Promise<Proxy> {
  const late = new Set<Promise<unknown>>();
  const server = createServer((incoming, outgoing) => void handle(incoming, outgoing).catch(() => outgoing.destroy()));
  const proxy: Proxy = {
    url: "",
    seen: [],
    faults: [],
    choose: undefined,
    async [Symbol.asyncDispose]() {
      await Promise.allSettled(late);
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };

  async function handle(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    const body = await text(incoming);
    const path = incoming.url ?? "/";
    const seen = { path, body: json(body), authorization: incoming.headers.authorization } as { -readonly [K in keyof Seen]: Seen[K] };
    proxy.seen.push(seen);
    onSeen(seen);
    const fault = proxy.choose?.(path, seen.body) ?? proxy.faults.shift() ?? "pass";
    const execute = async () => {
      const answer = await forward(target, incoming, body);
      seen.answer = json(answer.text);
      return answer;
    };
    const reply = (status: number, text: string) => {
      outgoing.writeHead(status, { "content-type": "application/json" });
      outgoing.end(text);
    };
    const problem = JSON.stringify({ error: "overloaded", message: "injected" });
    if (typeof fault === "number") return reply(fault, problem);
    if (fault === "unavailable") return reply(503, problem);
    if (fault === "not_earmark") return reply(200, "<html>Welcome</html>");
    if (fault === "hang") return;
    if (fault === "lose_request" || fault === "late_request") {
      outgoing.destroy();
      if (fault === "late_request") late.add(sleep().then(execute));
      return;
    }
    let answer = await execute();
    if (fault === "duplicate") answer = await execute();
    if (fault === "late_answer") await sleep();
    if (fault === "unavailable_after") return reply(503, problem);
    if (fault === "lose_answer") outgoing.destroy();
    else reply(answer.status, answer.text);
  }

  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  (proxy as { url: string }).url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return proxy;
}
