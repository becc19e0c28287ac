// The openai package for Node: chat and completions, whole and streamed, its stream helper, tools, a schema, the
// Responses API, errors, and an answer that is given up in the middle.
//
// Usage: node openai_node.mjs http://127.0.0.1:8000, in a folder with node_modules/openai

import assert from "node:assert/strict";
import OpenAI from "openai";

const url = process.argv[2];
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const messages = [{ role: "user", content: "Name three rivers." }];
const greedy = { temperature: 0, max_tokens: 24 };

const model = (await client.models.list()).data[0].id;
const whole = await client.chat.completions.create({ model, messages, ...greedy });
const text = whole.choices[0].message.content;
assert.equal(whole.usage.completion_tokens, 24);

let streamed = "";
const stream = await client.chat.completions.create({
  model, messages, stream: true, stream_options: { include_usage: true }, ...greedy,
});
let usage;
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, 24);

const helper = client.chat.completions.stream({ model, messages, ...greedy });
assert.equal(await helper.finalContent(), text);

const long = await client.chat.completions.create({ model, messages, stream: true, max_tokens: 200 });
for await (const chunk of long) {
  if (chunk.choices[0]?.delta?.content) { long.controller.abort(); break; }
}

const parameters = {
  type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"], additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const called = await client.chat.completions.create({ model, messages, tools, tool_choice: "required", ...greedy, max_tokens: 80 });
assert.ok("city" in JSON.parse(called.choices[0].message.tool_calls[0].function.arguments));

const schema = { name: "city", schema: parameters, strict: true };
const formed = await client.chat.completions.create({
  model, messages, response_format: { type: "json_schema", json_schema: schema }, temperature: 0, max_tokens: 80,
});
assert.ok("city" in JSON.parse(formed.choices[0].message.content));

const completion = await client.completions.create({ model, prompt: "The river", ...greedy });
assert.ok(completion.choices[0].text);

const response = await client.responses.create({ model, input: "Name three rivers.", temperature: 0, max_output_tokens: 24 });
assert.ok(response.output_text);
let pieces = "";
for await (const event of await client.responses.create({
  model, input: "Name three rivers.", temperature: 0, max_output_tokens: 24, stream: true,
})) {
  if (event.type === "response.output_text.delta") pieces += event.delta;
}
assert.equal(pieces, response.output_text);

await assert.rejects(client.chat.completions.create({ model: "other", messages }), OpenAI.NotFoundError);
await assert.rejects(client.chat.completions.create({ model, messages: [] }), OpenAI.BadRequestError);
console.log(text);
