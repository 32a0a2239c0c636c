// The event stream: one request, read piece by piece, and opened again when it ends.

import { headers } from "./api.js";

const PAUSES_MS = [500, 1_000, 2_000, 5_000];
/** Silence after which the server counts as away. It sends something at least every 12 seconds. */
const SILENCE_MAX_MS = 15_000;

/**
 * Emits `state` (`connecting`, `live`, `offline`, `signed-out`) and each event of the server under its name. The state
 * `offline` has a reason if the server refused the stream.
 */
export class Live extends EventTarget {
  #controller = null;
  #state = "connecting";
  #reason = "";
  #failures = 0;
  #usage = null;

  get state() {
    return this.#state;
  }

  /** Why the server refused the stream; empty if it did not answer. */
  get reason() {
    return this.#reason;
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

  #become(state, reason = "") {
    if (state === this.#state && reason === this.#reason) return;
    this.#state = state;
    this.#reason = reason;
    this.#emit("state", state);
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  async #run(signal) {
    while (!signal.aborted) {
      const reason = await this.#stream(signal);
      if (signal.aborted || this.#state === "signed-out") return;
      this.#become("offline", reason);
      const pause = PAUSES_MS[Math.min(this.#failures, PAUSES_MS.length - 1)];
      this.#failures += 1;
      await new Promise((resume) => setTimeout(resume, pause));
    }
  }

  /** Reads one stream to its end. Returns why the server refused it. */
  async #stream(signal) {
    const silence = new AbortController();
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MAX_MS);
    };
    heard();
    try {
      const either = AbortSignal.any([signal, silence.signal]);
      const response = await fetch("/v1/events", { headers: headers(), cache: "no-store", credentials: "omit", signal: either });
      if (response.status === 401) this.#become("signed-out");
      else if (response.ok) await this.#read(response.body.pipeThrough(new TextDecoderStream()).getReader(), heard);
      else return (await response.json()).message ?? "";
    } catch {
      // The server went away, or the page did.
    } finally {
      clearTimeout(timer);
    }
    return "";
  }

  async #read(reader, heard) {
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
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
