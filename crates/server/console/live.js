// The event stream: one request, read piece by piece, and opened again when it ends.

import { headers } from "./api.js";

const PAUSES_MS = [500, 1_000, 2_000, 5_000];

/** Emits `state` (`connecting`, `live`, `offline`, `signed-out`) and each event of the server under its name. */
export class Live extends EventTarget {
  #controller = null;
  #state = "connecting";
  #failures = 0;
  #usage = null;

  get state() {
    return this.#state;
  }

  /** The newest event `usage`. */
  get usage() {
    return this.#usage;
  }

  start() {
    this.#controller = new AbortController();
    this.#run(this.#controller.signal);
  }

  stop() {
    this.#controller?.abort();
    this.#controller = null;
  }

  #become(state) {
    if (state === this.#state) return;
    this.#state = state;
    this.#emit("state", state);
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  async #run(signal) {
    while (!signal.aborted) {
      try {
        const response = await fetch("/v1/events", { headers: headers(), cache: "no-store", credentials: "omit", signal });
        if (response.status === 401) return this.#become("signed-out");
        if (!response.ok) throw new Error(`status ${response.status}`);
        await this.#read(response.body.pipeThrough(new TextDecoderStream()).getReader());
      } catch {
        // The server went away, or the page did.
      }
      if (signal.aborted || this.#state === "signed-out") return;
      this.#become("offline");
      const pause = PAUSES_MS[Math.min(this.#failures, PAUSES_MS.length - 1)];
      this.#failures += 1;
      await new Promise((resume) => setTimeout(resume, pause));
    }
  }

  async #read(reader) {
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const pieces = (rest + value).split("\n\n");
      rest = pieces.pop();
      for (const piece of pieces) this.#take(piece);
    }
  }

  #take(piece) {
    let name = "";
    let data = "";
    for (const line of piece.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
    }
    if (name === "") return;
    const detail = JSON.parse(data);
    if (name === "hello") {
      this.#failures = 0;
      this.#become("live");
    }
    if (name === "usage") this.#usage = detail;
    if (name === "end" && detail.error === "unauthenticated") this.#become("signed-out");
    this.#emit(name, detail);
  }
}
