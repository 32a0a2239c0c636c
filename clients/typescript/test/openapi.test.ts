/** The types of `src/wire.ts` against the `/openapi.json` of a running server: a changed field fails. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { startServer } from "./server.js";

interface Schema {
  readonly $ref?: string;
  readonly oneOf?: readonly Schema[];
  readonly anyOf?: readonly Schema[];
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly type?: string | readonly string[];
  readonly properties?: Record<string, Schema>;
  readonly required?: readonly string[];
  readonly additionalProperties?: boolean | Schema;
  readonly maxProperties?: number;
  readonly items?: Schema;
}

interface Document {
  readonly paths: Record<string, Record<string, Operation>>;
  readonly components: { readonly schemas: Record<string, Schema> };
}

interface Operation {
  readonly requestBody?: Body;
  readonly responses: Record<string, Body>;
}

interface Body {
  readonly content: Record<string, { readonly schema: Schema }>;
}

/** The TypeScript type of a schema. Requests take a `bigint`, and leave out what could be null. */
function typeOf(document: Document, schema: Schema, isRequest: boolean): string {
  const inner = (part: Schema) => typeOf(document, part, isRequest);
  if (schema.$ref !== undefined) {
    const name = schema.$ref.replace("#/components/schemas/", "");
    return inner(document.components.schemas[name] as Schema);
  }
  const union = schema.oneOf ?? schema.anyOf;
  if (union !== undefined) return `(${union.filter((part) => !isRequest || part.type !== "null").map(inner).join(" | ")})`;
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum !== undefined) return `(${schema.enum.map((value) => JSON.stringify(value)).join(" | ")})`;
  const types = (typeof schema.type === "string" ? [schema.type] : schema.type ?? []).filter((type) => !isRequest || type !== "null");
  return `(${types.map((type) => named(document, schema, type, isRequest)).join(" | ") || "unknown"})`;
}

function named(document: Document, schema: Schema, type: string, isRequest: boolean): string {
  const inner = (part: Schema) => typeOf(document, part, isRequest);
  switch (type) {
    case "integer":
    case "number":
      return isRequest ? "number | bigint" : "number";
    case "array":
      return `${isRequest ? "readonly " : ""}${inner(schema.items ?? {})}[]`;
    case "object": {
      const properties = Object.entries(schema.properties ?? {});
      // Exactly one of the fields, as in an operation.
      if (schema.maxProperties === 1) return properties.map(([name, part]) => `{ ${name}: ${inner(part)} }`).join(" | ");
      if (properties.length === 0 && typeof schema.additionalProperties === "object") {
        return `Record<string, ${inner(schema.additionalProperties)}>`;
      }
      const isRequired = (name: string) => schema.required?.includes(name) === true;
      return `{ ${properties.map(([name, part]) => `${name}${isRequired(name) ? "" : "?"}: ${inner(part)}`).join("; ")} }`;
    }
    default:
      return type;
  }
}

/** Type, method, path, and how it is compared: only by the names of its fields, or only by their types. */
type Check = readonly [type: string, method: string, path: string, as: "request" | "answer", only?: "names" | "types"];

/** A write without the definitions of limits, which have other fields for every kind. */
const WRITE = "Omit<WriteRequest, 'operations'> & { operations: readonly Exclude<Operation, { put_limit: unknown }>[] }";

const CHECKS: readonly Check[] = [
  ["ReserveRequest", "post", "/v1/reserve", "request"],
  ["ReserveAnswer", "post", "/v1/reserve", "answer"],
  ["ExtendRequest", "post", "/v1/extend", "request"],
  ["ExtendAnswer", "post", "/v1/extend", "answer"],
  ["CompleteRequest", "post", "/v1/complete", "request"],
  ["CompleteAnswer", "post", "/v1/complete", "answer"],
  ["{ requests: ReserveRequest[] }", "post", "/v1/reserve/batch", "request"],
  ["{ results: CompleteAnswer[] }", "post", "/v1/complete/batch", "answer"],
  ["CallRequest", "post", "/v1/calls", "request"],
  ["CallAnswer", "post", "/v1/calls", "answer"],
  ["CallExtendRequest", "post", "/v1/calls/extend", "request"],
  ["ExtendAnswer", "post", "/v1/calls/extend", "answer"],
  ["CallCompleteRequest", "post", "/v1/calls/complete", "request"],
  ["CallCompleteAnswer", "post", "/v1/calls/complete", "answer"],
  ["ExplainRequest", "post", "/v1/calls/explain", "request"],
  ["Explanation", "post", "/v1/calls/explain", "answer"],
  // A definition has other fields for every kind.
  ["LimitDefinition", "put", "/v1/admin/limits", "request", "names"],
  ["LimitChanged", "put", "/v1/admin/limits", "answer"],
  ["{ limit: LimitInfo }", "get", "/v1/admin/limits/{key}", "answer", "names"],
  ["{ limits: LimitInfo[]; next: string | null }", "get", "/v1/admin/limits", "answer", "names"],
  ["LimitUsage", "get", "/v1/admin/limits/{key}/usage", "answer"],
  ["UsageList", "get", "/v1/usage", "answer"],
  ["{ lease: LeaseInfo }", "get", "/v1/leases/{lease_id}", "answer"],
  ["{ balances: Balance[] }", "get", "/v1/vaults/{vault}/accounts/{account}/balances", "answer"],
  ["{ grants: Grant[] }", "get", "/v1/vaults/{vault}/accounts/{account}/grants", "answer"],
  ["Statement", "get", "/v1/vaults/{vault}/accounts/{account}/statement", "answer"],
  ["{ vaults: string[]; next: string | null }", "get", "/v1/vaults", "answer"],
  ["{ accounts: Account[]; next: string | null }", "get", "/v1/vaults/{vault}/accounts", "answer"],
  ["EntryList", "get", "/v1/vaults/{vault}/accounts/{account}/entries", "answer"],
  // A definition has other fields for every kind.
  ["LimitDefinition", "put", "/v1/admin/templates", "request", "names"],
  ["{ revision: number; ok: true }", "put", "/v1/admin/templates", "answer"],
  ["{ templates: TemplateInfo[] }", "get", "/v1/admin/templates", "answer", "names"],
  ["{ top: TopLimit[] }", "get", "/v1/top", "answer"],
  ["DecisionList", "get", "/v1/decisions", "answer"],
  ["Whoami", "get", "/v1/whoami", "answer"],
  ["PolicyInfo", "get", "/v1/admin/policy", "answer"],
  ["{ last_committed_sequence: number }", "get", "/v1/clients/{client_id}", "answer"],
  ["WriteRequest", "post", "/v1/write", "request", "names"],
  [WRITE, "post", "/v1/write", "request", "types"],
  ["{ success: Receipt }", "post", "/v1/write", "answer"],
];

const PRELUDE = `
import type * as wire from "../src/wire.js";
/** The names of all fields, with those inside of them. */
type Names<T> = T extends readonly (infer I)[] ? Names<I>
  // The names of a record are data.
  : T extends object ? string extends keyof T ? never : { [K in keyof T & string]-?: K | \`\${K}.\${Names<NonNullable<T[K]>>}\` }[keyof T & string] : never;
type Missing<One, Other> = Exclude<Names<One>, Names<Other>>;
declare function none<T extends never>(): T;
declare function assignable<From extends To, To>(): From;
`;

function checksOf(document: Document): string {
  const lines = CHECKS.map(([name, method, path, as, only], index) => {
    const operation = document.paths[path]?.[method];
    assert.ok(operation, `${method} ${path} is not in /openapi.json`);
    const body = as === "request" ? operation.requestBody : operation.responses["200"];
    const schema = body?.content["application/json"]?.schema;
    assert.ok(schema, `${method} ${path} has no ${as}`);
    const ours = name.replace(/\b(?!Omit|Exclude)[A-Z]\w+/g, "wire.$&");
    const [from, to] = as === "request" ? ["Ours", "Theirs"] : ["Theirs", "Ours"];
    return `
      // ${as} of ${method} ${path}
      namespace check${index} {
        type Theirs = ${typeOf(document, schema, as === "request")};
        type Ours = ${ours};
        ${only === "types" ? "" : "none<Missing<Theirs, Ours>>(); none<Missing<Ours, Theirs>>();"}
        ${only === "names" ? "" : `assignable<${from}, ${to}>();`}
      }`;
  });
  return PRELUDE + lines.join("\n");
}

const root = fileURLToPath(new URL("../..", import.meta.url));

/** The errors of the compiler about files with the checks of each document. */
async function errorsOf(documents: Record<string, Document>): Promise<(name: string) => string[]> {
  const folder = `${root}build/openapi`;
  await mkdir(folder, { recursive: true });
  const files = Object.keys(documents).map((name) => `${folder}/${name}.ts`);
  await Promise.all(Object.values(documents).map((document, index) => writeFile(files[index] as string, checksOf(document))));
  const args = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "--ignoreConfig", ...files];
  const ran = promisify(execFile)(`${root}node_modules/.bin/tsc`, args, { cwd: root, maxBuffer: 64 * 1024 * 1024 });
  const lines = (await ran.then(() => "", (error: { stdout: string }) => error.stdout)).split("\n");
  return (name) => lines.filter((line) => line.includes(`${name}.ts(`));
}

/** Fields that a later server might rename. */
const RENAMED = ["retry_after_ms", "reconciled", "actual_amount", "expected_revision"];

test("the types of requests and answers are those of /openapi.json, and a changed field fails", async () => {
  await using server = await startServer();
  const document = (await (await fetch(`${server.url}/openapi.json`)).json()) as Document;
  const text = JSON.stringify(document);
  const renamed = RENAMED.map((field) => [field, JSON.parse(text.replaceAll(`"${field}"`, `"${field}_2"`)) as Document] as const);
  const errors = await errorsOf({ same: document, ...Object.fromEntries(renamed) });
  assert.deepEqual(errors("same"), []);
  for (const field of RENAMED) assert.match(errors(field)[0] ?? "", /error TS2344/, field);
});
