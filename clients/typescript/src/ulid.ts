import { randomBytes } from "node:crypto";

const ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const ULID_LENGTH = 26;

/** A new lease id: a ULID of 48 bits of wall time in milliseconds and 80 random bits. */
export function ulid(unixMs: number, random: Uint8Array = randomBytes(10)): string {
  let bits = BigInt(Math.trunc(unixMs)) & 0xffff_ffff_ffffn;
  for (const byte of random) bits = (bits << 8n) | BigInt(byte);
  let text = "";
  for (let place = 0; place < ULID_LENGTH; place += 1) {
    text = ALPHABET[Number(bits & 31n)] + text;
    bits >>= 5n;
  }
  return text;
}
