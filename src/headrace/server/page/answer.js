// One answer of the model: built from the chunks of a stream, with its times and counts.

export function newAnswer() {
  return {
    content: "",
    reasoning: "",
    calls: [], // {id, name, arguments, result}
    status: "streaming", // done, stopped, failed
    finish: null,
    error: null,
    usage: null,
    seconds: { first: null, last: null, thought: null },
    counted: null, // tokens of the first chunk
  };
}

/** Add a chunk of the API's stream that came `seconds` after the request. */
export function apply(answer, chunk, seconds) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (thought) answer.reasoning += thought;
  if (delta.content) answer.content += delta.content;
  if (delta.content && answer.reasoning && answer.seconds.thought === null) answer.seconds.thought = seconds;
  for (const call of delta.tool_calls ?? []) addCall(answer, call);
  if (choice?.logprobs?.content?.length) (answer.logprobs ??= []).push(...choice.logprobs.content.map(entry));
  if (choice?.finish_reason) answer.finish = choice.finish_reason;
  const brings = Boolean(thought || delta.content || delta.tool_calls?.length);
  if (brings && answer.seconds.first === null) answer.seconds.first = seconds;
  if (chunk.usage) {
    const tokens = chunk.usage.completion_tokens;
    if (answer.counted === null && tokens) answer.counted = { tokens, seconds };
    if (tokens !== answer.usage?.completion_tokens) answer.seconds.last = seconds;
    answer.usage = chunk.usage;
  } else if (brings) answer.seconds.last = seconds;
}

function addCall(answer, { index, id, function: part }) {
  const call = (answer.calls[index] ??= { id: "", name: "", arguments: "", result: null });
  if (id) call.id = id;
  if (part?.name) call.name = part.name;
  if (part?.arguments) call.arguments += part.arguments;
}

function entry({ token, bytes, logprob, top_logprobs: top = [] }) {
  return { token, bytes, logprob, top: top.map((one) => ({ token: one.token, bytes: one.bytes, logprob: one.logprob })) };
}

/** Tokens a second between the first and the last token; null if there are too few. */
export function speed({ counted, usage, seconds }) {
  if (!counted || !usage || seconds.last === null) return null;
  const tokens = usage.completion_tokens - counted.tokens;
  const time = seconds.last - counted.seconds;
  return tokens > 0 && time > 0 ? tokens / time : null;
}

export function shortTime(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 60 ? `${seconds.toFixed(seconds < 10 ? 2 : 1)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

const number = (value) => value.toLocaleString("en");

/** What is said below an answer: [short text, what it means]. */
export function facts(answer) {
  const { usage, seconds, finish, status } = answer;
  const found = [];
  const rate = speed(answer);
  if (usage) found.push([`${number(usage.completion_tokens)} tokens`, "Tokens of the answer"]);
  if (rate !== null) found.push([`${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s`, "Between the first and the last token"]);
  if (seconds.first !== null) found.push([`first after ${shortTime(seconds.first)}`, "Time to the first token (TTFT)"]);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (usage) {
    const prompt = `${number(usage.prompt_tokens)} prompt tokens`;
    const text = cached ? `${number(cached)} of ${prompt} cached` : prompt;
    found.push([text, "Cached tokens were not computed again"]);
  }
  const reasoning = usage?.completion_tokens_details?.reasoning_tokens;
  if (reasoning) found.push([`${number(reasoning)} of reasoning`, "Tokens of the reasoning"]);
  if (status === "stopped") found.push(["stopped", "You ended this answer"]);
  else if (finish === "length") found.push(["length limit", "The answer reached max tokens or the end of the context"]);
  return found;
}
