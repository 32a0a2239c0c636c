// The SDKs of OpenAI and Anthropic for Node, through a gateway. `gateway_sdk.py` runs this against its own upstream.
//
//     node gateway_sdk.mjs GATEWAY PACKAGES [denied]
//
// With `denied` the account has no credit, and each SDK makes one call that it may retry.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [gateway, packages, mode] = process.argv.slice(2);
const require = createRequire(`${packages}/package.json`);
const { OpenAI, NotFoundError } = require("openai");
const { Anthropic } = require("@anthropic-ai/sdk");

const messages = [{ role: "user", content: "hi" }];
const openai = new OpenAI({ baseURL: `${gateway}/v1`, apiKey: "unused", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: gateway, apiKey: "unused", maxRetries: 0 });

if (mode === "denied") {
  const patient = { maxRetries: 5 };
  await assert.rejects(openai.chat.completions.create({ model: "fast", messages }, patient), (error) => {
    assert.equal(error.code, "insufficient_quota");
    return true;
  });
  await assert.rejects(anthropic.messages.create({ model: "claude", max_tokens: 5, messages }, patient), (error) => {
    assert.equal(error.status, 402);
    return true;
  });
  process.exit(0);
}

const answer = await openai.chat.completions.create({ model: "fast", messages, max_tokens: 100 });
assert.equal(answer.choices[0].message.content, "Hello world");

let text = "";
for await (const chunk of await openai.chat.completions.create({ model: "fast", messages, max_tokens: 100, stream: true })) {
  assert.equal(chunk.usage ?? null, null);
  text += chunk.choices[0].delta.content;
}
assert.equal(text, "Hello world");

const message = await anthropic.messages.stream({ model: "claude", max_tokens: 50, messages }).finalMessage();
assert.equal(message.content[0].text, "Hello world");
assert.equal(message.usage.output_tokens, 20);

await assert.rejects(openai.chat.completions.create({ model: "gpt-9", messages }), (error) => {
  assert(error instanceof NotFoundError);
  assert.equal(error.code, "model_not_found");
  return true;
});
