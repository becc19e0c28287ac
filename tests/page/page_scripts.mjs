// The page's scripts that need no browser: `node --test page_scripts.mjs`.

import assert from "node:assert/strict";
import { test } from "node:test";

const page = (name) => import(new URL(`../../src/headrace/server/page/${name}`, import.meta.url));
const { parse, inline, safeUrl } = await page("markdown.js");
const { highlight } = await page("highlight.js");
const { SseReader } = await page("sse.js");
const { apply, facts, newAnswer, shortTime, speed } = await page("answer.js");
const { answerOf, apiMessages, asMarkdown, assistantMessage, newConversation, openCalls, Store, titleOf, userMessage } =
  await page("conversations.js");
const { parseTools, problems, requestBody } = await page("settings.js");
const { Colours, History } = await page("history.js");

/** The text of nodes, with their types as tags. */
function shown(nodes) {
  return nodes
    .map((node) => {
      if (node.type === "text") return node.text;
      if (node.type === "code") return `<code>${node.text}</code>`;
      if (node.type === "break") return "<break>";
      return `<${node.type}${node.url ? ` ${node.url}` : ""}>${shown(node.inline)}</>`;
    })
    .join("");
}

const types = (text) => parse(text).map((block) => block.type);

test("blocks", () => {
  const text = "# A #\n\npara\nmore\n\n- x\n- y\n\n1. a\n2) b\n\n> q\n\n---\n\n```js\ncode\n```\n\n| a | b |\n|--|:-:|\n| 1 | 2 |\n";
  assert.deepEqual(types(text), ["heading", "paragraph", "list", "list", "quote", "rule", "code", "table"]);
  assert.equal(parse("####### no")[0].type, "paragraph");
  assert.equal(parse("###### yes")[0].level, 6);
  assert.equal(parse("#no")[0].type, "paragraph");
});

test("code fences", () => {
  const [block] = parse("```python\n  a = 1\n\n# no heading\n```");
  assert.deepEqual({ lang: block.lang, text: block.text, closed: block.closed }, { lang: "python", text: "  a = 1\n\n# no heading", closed: true });
  assert.equal(parse("~~~\n```\n~~~")[0].text, "```");
  const open = parse("text\n```\nhalf");
  assert.deepEqual([open[1].type, open[1].closed, open[1].text], ["code", false, "half"]);
  assert.equal(parse("a\n```\nb\n```\nc").length, 3);
});

test("lists", () => {
  const [list] = parse("3. a\n4. b\n   - c\n   - d\n\n   more\n");
  assert.deepEqual([list.ordered, list.start, list.items.length], [true, 3, 2]);
  assert.deepEqual(list.items[1].blocks.map((block) => block.type), ["paragraph", "list", "paragraph"]);
  const [tasks] = parse("- [x] done\n- [ ] open\n- plain");
  assert.deepEqual(tasks.items.map((item) => item.done), [true, false, null]);
  const [code] = parse("1. first:\n   ```sh\n   ls\n   ```\n2. second");
  assert.equal(code.items.length, 2);
  assert.equal(code.items[0].blocks[1].text, "ls");
  assert.equal(parse("1 - no list\n2024. yes")[0].type, "paragraph");
});

test("tables", () => {
  const [table] = parse("| a | b |\n|:--|--:|\n| `x|y` | 1 \\| 2 |\n| short |\n");
  assert.deepEqual(table.align, [null, "right"]);
  assert.deepEqual(table.rows.map((row) => row.map(shown)), [["<code>x|y</code>", "1 | 2"], ["short", ""]]);
  assert.equal(parse("a | b\nno | table")[0].type, "paragraph");
});

test("text within a block", () => {
  for (const [text, wanted] of [
    ["**a** and *b* and ***c*** ~~d~~", "<strong><text></> and"],
    ["`a * b` * c", "<code>a * b</code> * c"],
    ["``a ` b``", "<code>a ` b</code>"],
    ["snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"],
    ["\\*no\\*", "*no*"],
    ["a  \nb\nc", "a<break>b\nc"],
    ["**open", "**open"],
    ["~one~", "~one~"],
    ["_it_ __bold__", "<em>it</> <strong>bold</>"],
    ["**a *b* c**", "<strong>a <em>b</> c</>"],
  ]) {
    if (wanted.includes("<text>")) assert.equal(shown(inline(text)), "<strong>a</> and <em>b</> and <strong><em>c</></> <del>d</>");
    else assert.equal(shown(inline(text)), wanted, text);
  }
});

test("links", () => {
  assert.equal(shown(inline("[a](https://x.org/a_(b) \"t\")")), "<link https://x.org/a_(b)>a</>");
  assert.equal(shown(inline("see https://x.org/path, or <https://y.org>.")), "see <link https://x.org/path>https://x.org/path</>, or <link https://y.org>https://y.org</>.");
  assert.equal(shown(inline("[a](javascript:alert(1)) [b](data:text/html,x) [c]( JavaScript:x)")), "<span>a</> <span>b</> <span>c</>");
  assert.equal(shown(inline("![alt](https://x.org/i.png)")), "!<link https://x.org/i.png>alt</>".replace("!", ""));
  for (const url of ["javascript:x", "data:x", "//x.org", "vbscript:x", "file:///etc", " https://x.org", "java\nscript:x"]) assert.equal(safeUrl(url), null);
});

test("HTML is text", () => {
  const text = "<script>alert(1)</script> <img src=x onerror=y> &amp; <b>";
  assert.deepEqual(parse(text)[0].inline, [{ type: "text", text }]);
});

test("a text in growing pieces never fails, and its blocks have their source", () => {
  const text = "# T\n\n- a **b\n  ```js\n  x\n  ```\n\n| a |\n|---|\n| [l](https://x.org) `c` |\n\n> - q\n> 1. r\n\n***";
  for (let end = 0; end <= text.length; end += 1) {
    const blocks = parse(text.slice(0, end));
    for (const block of blocks) assert.ok(text.includes(block.raw));
  }
});

test("hostile texts take no time", () => {
  const started = performance.now();
  for (const part of ["*a ", "**", "`", "[", "[a](", "![", "> ", "- ", "_a*", "<", "https://", "|", "``` \n", "  - a\n", "\\", "~~a", "*a_ "]) {
    parse(part.repeat(4000));
  }
  parse("> ".repeat(500) + "x");
  parse(Array.from({ length: 300 }, (_, depth) => `${" ".repeat(2 * depth)}- x`).join("\n"));
  assert.ok(performance.now() - started < 10_000);
});

test("colours lose no character", () => {
  const code = "def f(x):  # c\n    return \"a\\\"b\" + 'c' + 1.5e3\n/* x */ // y\n`t";
  for (const lang of ["python", "js", "sql", "", "text", "unknown"]) {
    assert.equal(highlight(code, lang).map(([, text]) => text).join(""), code);
  }
  const kinds = Object.fromEntries(highlight("def f(1) # c", "python").map(([kind, text]) => [text, kind]));
  assert.deepEqual([kinds.def, kinds.f, kinds["1"], kinds["# c"]], ["keyword", "name", "number", "comment"]);
});

test("events in any pieces", () => {
  const text = 'data: {"a":1}\n\n: nothing yet\n\nevent: x\ndata: one\ndata: two\r\n\r\ndata: [DONE]\n\n';
  for (let size = 1; size < text.length; size += 1) {
    const reader = new SseReader();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...reader.push(text.slice(at, at + size)));
    assert.deepEqual(found, ['{"a":1}', "one\ntwo", "[DONE]"], `pieces of ${size}`);
  }
});

const chunk = (delta, extra = {}) => ({ choices: [{ delta, ...extra }] });
const usage = (tokens, more = {}) => ({ usage: { prompt_tokens: 20, completion_tokens: tokens, ...more } });

test("an answer of chunks", () => {
  const answer = newAnswer();
  apply(answer, chunk({ role: "assistant", content: "" }), 0.1);
  apply(answer, { ...chunk({ reasoning_content: "Hm" }), ...usage(1) }, 0.5);
  apply(answer, { ...chunk({ content: "He" }), ...usage(2) }, 1.5);
  apply(answer, { ...chunk({ content: "y" }, { finish_reason: "stop" }), ...usage(5) }, 2.5);
  apply(answer, { choices: [], ...usage(5, { prompt_tokens_details: { cached_tokens: 16 }, completion_tokens_details: { reasoning_tokens: 1 } }) }, 2.6);
  assert.deepEqual([answer.content, answer.reasoning, answer.finish], ["Hey", "Hm", "stop"]);
  assert.deepEqual(answer.seconds, { first: 0.5, last: 2.5, thought: 1.5 });
  assert.equal(speed(answer), 2);
  answer.status = "done";
  assert.deepEqual(facts(answer).map(([text]) => text), ["5 tokens", "2.0 tokens/s", "first after 500 ms", "16 of 20 prompt tokens cached", "1 of reasoning"]);
});

test("calls come in pieces", () => {
  const answer = newAnswer();
  apply(answer, chunk({ tool_calls: [{ index: 0, id: "c1", function: { name: "f", arguments: "" } }] }), 1);
  apply(answer, chunk({ tool_calls: [{ index: 0, function: { arguments: '{"a":' } }] }), 2);
  apply(answer, chunk({ tool_calls: [{ index: 0, function: { arguments: "1}" } }, { index: 1, id: "c2", function: { name: "g", arguments: "{}" } }] }), 3);
  assert.deepEqual(answer.calls, [
    { id: "c1", name: "f", arguments: '{"a":1}', result: null },
    { id: "c2", name: "g", arguments: "{}", result: null },
  ]);
});

test("an answer that ended early says so", () => {
  const answer = { ...newAnswer(), status: "stopped" };
  assert.deepEqual(facts(answer).map(([text]) => text), ["stopped"]);
  assert.equal(facts({ ...newAnswer(), finish: "length", status: "done" })[0][0], "length limit");
  assert.equal(speed(newAnswer()), null);
  assert.deepEqual([0.0123, 2.345, 12.34, 75].map(shortTime), ["12 ms", "2.35 s", "12.3 s", "1 min 15 s"]);
});

test("the messages of a request", () => {
  const conversation = newConversation({ system: " Be kind. " });
  conversation.messages.push(userMessage("Hi"), assistantMessage());
  const answer = answerOf(conversation.messages[1]);
  Object.assign(answer, { content: "", reasoning: "R", calls: [{ id: "c", name: "f", arguments: "{}", result: null }] });
  assert.equal(openCalls(conversation).length, 1);
  assert.deepEqual(apiMessages(conversation), [{ role: "system", content: "Be kind." }, { role: "user", content: "Hi" }]);
  answer.calls[0].result = "42";
  assert.deepEqual(apiMessages(conversation).slice(2), [
    { role: "assistant", content: null, reasoning_content: "R", tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "c", content: "42" },
  ]);
  const image = userMessage("What?", ["data:image/png;base64,AA"]);
  assert.equal(apiMessages({ ...conversation, messages: [image] })[1].content[1].type, "image_url");
});

test("titles and files", () => {
  const conversation = newConversation();
  assert.equal(titleOf(conversation), "New chat");
  conversation.messages.push(userMessage(`${"long ".repeat(20)}\nsecond`), assistantMessage());
  answerOf(conversation.messages[1]).content = "Hello";
  assert.equal(titleOf(conversation).length, 60);
  assert.match(asMarkdown(conversation), /## You\n\nlong .*## Assistant\n\nHello\n$/s);
});

class Memory {
  items = new Map();
  most = Infinity;
  getItem(key) {
    return this.items.get(key) ?? null;
  }
  setItem(key, value) {
    if (value.length > this.most) throw new Error("full");
    this.items.set(key, value);
  }
  removeItem(key) {
    this.items.delete(key);
  }
}

test("the store", () => {
  const memory = new Memory();
  const store = new Store(memory);
  assert.deepEqual(store.list(), []);
  const old = { ...newConversation(), updated: 1 };
  const recent = { ...newConversation(), updated: 2 };
  recent.messages.push(userMessage("Hi"), assistantMessage());
  answerOf(recent.messages[1]).logprobs = [1, 2, 3];
  assert.ok(store.save(recent) && store.save(old));
  assert.deepEqual(store.list().map((one) => one.title), ["Hi", "New chat"]);
  const loaded = store.load(recent.id);
  assert.equal(answerOf(loaded.messages[1]).status, "stopped");
  assert.equal(answerOf(loaded.messages[1]).logprobs, undefined);
  store.remove(old.id);
  assert.equal(store.load(old.id), null);
  assert.equal(store.list().length, 1);
  memory.most = 10;
  assert.equal(store.save(recent), false);
  memory.items.set("headrace.conversations", "{broken");
  assert.deepEqual(store.list(), []);
  store.set("x", [1]);
  assert.deepEqual(store.get("x"), [1]);
  assert.notEqual(newConversation().id, newConversation().id);
});

test("settings become fields of the request", () => {
  const settings = { temperature: 0, top_k: 5, seed: "", stop: "END\n\nSTOP", logprobs: "5", output: "json_schema", schema: '{"type":"object"}', thinking: "off" };
  const body = requestBody(settings, [], "m");
  assert.deepEqual([body.temperature, body.top_k, body.stop, body.logprobs, body.top_logprobs], [0, 5, ["END", "STOP"], true, 5]);
  assert.ok(!("seed" in body) && !("top_p" in body) && !("tools" in body));
  assert.deepEqual(body.response_format.json_schema.schema, { type: "object" });
  assert.deepEqual(body.chat_template_kwargs, { enable_thinking: false });
  assert.deepEqual(Object.keys(requestBody({}, [], "m")), ["model", "messages", "stream", "stream_options"]);
});

test("wrong settings are named", () => {
  assert.deepEqual(Object.keys(problems({ temperature: 9, top_p: NaN, output: "json_schema", schema: "[", tools: "{" })), ["schema", "tools", "temperature", "top_p"]);
  assert.deepEqual(problems({ schema: "[", output: "" }), {});
  assert.throws(() => requestBody({ temperature: -1 }, [], "m"), /Temperature: from 0 to 2/);
  assert.throws(() => requestBody({ output: "json_schema", schema: "[1]" }, [], "m"), /must be an object/);
});

test("tools in both forms", () => {
  const wrapped = { type: "function", function: { name: "f" } };
  assert.deepEqual(parseTools('[{"name": "f"}]'), [wrapped]);
  assert.deepEqual(parseTools(JSON.stringify(wrapped)), [wrapped]);
  assert.throws(() => parseTools('[{"nme": "f"}]'), /entry 1 has no name/);
});

const reading = (tokens, restarts = 0) => ({
  totals: { generation_tokens: tokens, prompt_tokens: 0, steps: tokens, restarts },
  wastes: { kv_utilization: 0.5, slot_occupancy: 0.25, device_busy: 1 },
});

test("rates of the engine, and gaps where nobody looked", () => {
  const history = new History();
  history.add(reading(0), 100);
  history.add(reading(50), 101);
  history.add(reading(100), 102);
  assert.equal(history.mean("generated", 1.5), 50);
  history.add(reading(10, 1), 103);
  assert.equal(history.points.at(-1).generated, 0);
  history.add(reading(10, 1), 120);
  assert.deepEqual(history.lines("busy", 120).map((part) => part.length), [4, 1]);
  assert.equal(history.span(120), 60);
  history.add(reading(10, 1), 410);
  assert.deepEqual(history.points.map((point) => point.time), [120, 410]);
  assert.equal(history.span(410), 300);
});

test("a request keeps its colour", () => {
  const colours = new Colours(3);
  colours.update(["a", "b"]);
  const b = colours.of("b");
  colours.update(["b", "c"]);
  assert.equal(colours.of("b"), b);
  assert.equal(colours.of("c"), 0);
  colours.update(["b", "c", "d", "e"]);
  assert.equal(new Set(["b", "c", "d"].map((id) => colours.of(id))).size, 3);
});
