// The settings of a conversation, and the request that follows from them. An empty one leaves the choice to the server.

/** [name in requests, label, least, most, step, what it does] */
export const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.1, "0 always takes the most likely token; higher values vary more."],
  ["top_p", "Top p", 0, 1, 0.05, "Only the most likely tokens whose probabilities add up to this."],
  ["top_k", "Top k", 0, 1000, 1, "Only so many of the most likely tokens."],
  ["min_p", "Min p", 0, 1, 0.01, "Only tokens at least this likely, relative to the most likely one."],
  ["max_tokens", "Max tokens", 1, 1e9, 1, "The longest answer."],
  ["seed", "Seed", 0, Number.MAX_SAFE_INTEGER, 1, "The same seed gives the same answer."],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "Above 0: fewer tokens that the answer already has."],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "As presence penalty, by how often they occur."],
  ["repetition_penalty", "Repetition penalty", 0.1, 2, 0.05, "Above 1: fewer tokens of prompt and answer."],
];

const filled = (value) => value !== undefined && value !== null && value !== "";

/** The tools of a text: OpenAI's list, or plain functions. Raises an Error that says what is wrong. */
export function parseTools(text) {
  const found = parseJson(text, "Tools");
  const list = Array.isArray(found) ? found : [found];
  return list.map((one, at) => {
    const tool = one?.type === "function" ? one : { type: "function", function: one };
    if (typeof tool.function?.name !== "string") throw new Error(`Tools: entry ${at + 1} has no name`);
    return tool;
  });
}

function parseJson(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: ${error.message}`);
  }
}

function parseSchema(text) {
  const schema = parseJson(text || "{}", "JSON schema");
  if (typeof schema !== "object" || schema === null || Array.isArray(schema)) throw new Error("JSON schema: must be an object");
  return schema;
}

/** What is wrong with the settings: {field: message}. */
export function problems(settings) {
  const found = {};
  const check = (field, work) => {
    try {
      work();
    } catch (error) {
      found[field] = error.message;
    }
  };
  if (settings.output === "json_schema") check("schema", () => parseSchema(settings.schema));
  if (settings.tools?.trim()) check("tools", () => parseTools(settings.tools));
  for (const [name, label, least, most] of NUMBERS) {
    const value = settings[name];
    if (filled(value) && !(value >= least && value <= most)) found[name] = `${label}: from ${least} to ${most}`;
  }
  return found;
}

/** The body of a request for the next answer. Raises an Error if the settings don't allow one. */
export function requestBody(settings, messages, model) {
  const body = {
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  for (const message of Object.values(problems(settings))) throw new Error(message);
  for (const [name] of NUMBERS) if (filled(settings[name])) body[name] = Number(settings[name]);
  const stops = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stops.length) body.stop = stops;
  if (filled(settings.logprobs)) Object.assign(body, { logprobs: true, top_logprobs: Number(settings.logprobs) });
  if (settings.output === "json_object") body.response_format = { type: "json_object" };
  if (settings.output === "json_schema") {
    body.response_format = { type: "json_schema", json_schema: { name: "output", schema: parseSchema(settings.schema) } };
  }
  if (settings.tools?.trim()) {
    body.tools = parseTools(settings.tools);
    body.tool_choice = settings.toolChoice || "auto";
  }
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return body;
}
