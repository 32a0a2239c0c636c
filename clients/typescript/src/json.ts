/**
 * JSON with integers of any size. `JSON.parse` rounds integers beyond 2^53, and `JSON.stringify` refuses a `bigint`.
 */

/** Marks an integer that becomes a `bigint`. No string of the server begins with it: the server sends no control characters. */
const MARK = "\u0000bigint:";
/** A string, or an integer of at least 16 digits. Strings are matched so that digits inside of them are left alone. */
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d{16,}(?![\d.eE])/g;

/** Parses JSON. An integer that a number cannot hold exactly becomes a `bigint`. */
export function parse(text: string): unknown {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const marked = text.replace(TOKENS, (token) => {
    const isSafe = token.startsWith('"') || Number.isSafeInteger(Number(token));
    return isSafe ? token : JSON.stringify(MARK + token);
  });
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value,
  );
}

/** Writes JSON. A `bigint` becomes an integer. Fields that are `undefined` are left out. */
export function stringify(value: unknown): string {
  if (typeof value === "bigint") return value.toString();
  if (Array.isArray(value)) return `[${value.map(stringify).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    const fields = Object.entries(value).filter(([, field]) => field !== undefined);
    return `{${fields.map(([name, field]) => `${JSON.stringify(name)}:${stringify(field)}`).join(",")}}`;
  }
  return JSON.stringify(value) ?? "null";
}
