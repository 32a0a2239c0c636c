/** A proxy that injects faults between a client and a server. */
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/**
 * What happens to one request:
 * - `pass`: nothing.
 * - `lose_request`: the connection breaks before the server has it.
 * - `lose_answer`: the server executes it, then the connection breaks.
 * - `duplicate`: the server gets it twice; the second answer is returned.
 * - `delay`: the server gets it only after the client has an error.
 * - a number: the server does not get it, and the client gets this status.
 */
export type Fault = "pass" | "lose_request" | "lose_answer" | "duplicate" | "delay" | "hang" | number;

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

export async function startProxy(target: string): Promise<Proxy> {
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
    const fault = proxy.choose?.(path, seen.body) ?? proxy.faults.shift() ?? "pass";
    const execute = async () => {
      const answer = await forward(target, incoming, body);
      seen.answer = json(answer.text);
      return answer;
    };
    if (typeof fault === "number") {
      outgoing.writeHead(fault, { "content-type": "application/json" });
      outgoing.end(JSON.stringify({ error: "unavailable", message: "injected" }));
      return;
    }
    if (fault === "hang") return;
    if (fault === "lose_request" || fault === "delay") {
      outgoing.destroy();
      if (fault === "delay") late.add(new Promise((resolve) => setTimeout(resolve, 300)).then(execute));
      return;
    }
    let answer = await execute();
    if (fault === "duplicate") answer = await execute();
    if (fault === "lose_answer") {
      outgoing.destroy();
      return;
    }
    outgoing.writeHead(answer.status, { "content-type": "application/json" });
    outgoing.end(answer.text);
  }

  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  (proxy as { url: string }).url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return proxy;
}
