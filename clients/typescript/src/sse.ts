/** Bytes of one frame of a stream. A longer one is passed on unread. */
const FRAME_BYTES_MAX = 16 * 1024 * 1024;

const LF = 10;
const CR = 13;

/** Splits a stream of server-sent events into frames of the exact bytes, whatever their line ends. */
export class SseFramer {
  #rest = Buffer.alloc(0);
  #from = 0;
  #isLineEmpty = true;
  #wasCr = false;

  /** The frames that are complete with this chunk. */
  push(chunk: Uint8Array): Buffer[] {
    this.#rest = this.#rest.length === 0 ? Buffer.from(chunk) : Buffer.concat([this.#rest, chunk]);
    const frames: Buffer[] = [];
    let start = 0;
    for (let place = this.#from; place < this.#rest.length; place += 1) {
      const byte = this.#rest[place];
      // The second half of CRLF is no line of its own.
      if (byte === LF && this.#wasCr) {
        this.#wasCr = false;
        continue;
      }
      this.#wasCr = byte === CR;
      if (byte !== LF && byte !== CR) {
        this.#isLineEmpty = false;
        continue;
      }
      if (this.#isLineEmpty) {
        const hasLf = byte === CR && this.#rest[place + 1] === LF;
        if (hasLf) {
          place += 1;
          this.#wasCr = false;
        }
        frames.push(this.#rest.subarray(start, place + 1));
        start = place + 1;
      }
      this.#isLineEmpty = true;
    }
    this.#rest = this.#rest.subarray(start);
    this.#from = this.#rest.length;
    if (this.#rest.length > FRAME_BYTES_MAX) frames.push(this.take());
    return frames;
  }

  /** The bytes behind the last complete frame. */
  take(): Buffer {
    const rest = this.#rest;
    this.#rest = Buffer.alloc(0);
    this.#from = 0;
    return rest;
  }
}

/** The data of a frame; `undefined` if it has none, such as a comment. */
export function frameData(frame: Buffer): string | undefined {
  const lines = frame.toString("utf8").replace(/^\ufeff/, "").split(/\r\n|\n|\r/);
  const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(line[5] === " " ? 6 : 5));
  return data.length === 0 ? undefined : data.join("\n");
}
