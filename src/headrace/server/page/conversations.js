// Conversations: their messages, what of them goes to the server, and their place in the browser's storage.

import { newAnswer } from "./answer.js";

const INDEX = "headrace.conversations";
const ONE = "headrace.conversation.";

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36).padStart(2, "0")).join("");

export function newConversation(settings = {}) {
  return { id: newId(), title: "", updated: Date.now(), settings: structuredClone(settings), messages: [] };
}

export const userMessage = (content, images = []) => ({ id: newId(), role: "user", content, images });

/** An assistant's message has one version for each time it was generated. */
export const assistantMessage = () => ({ id: newId(), role: "assistant", versions: [newAnswer()], at: 0 });

export const answerOf = (message) => message.versions[message.at];

/** The calls of the last answer that have no result yet. */
export function openCalls(conversation) {
  const last = conversation.messages.at(-1);
  if (last?.role !== "assistant") return [];
  return answerOf(last).calls.filter((call) => call.result === null);
}

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = conversation.messages.find((message) => message.role === "user")?.content.trim() ?? "";
  const line = first.split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line || "New chat";
}

/** The messages of a request. */
export function apiMessages(conversation) {
  const messages = [];
  const system = conversation.settings.system?.trim();
  if (system) messages.push({ role: "system", content: system });
  for (const message of conversation.messages) {
    if (message.role === "user") messages.push({ role: "user", content: userContent(message) });
    else messages.push(...answerMessages(answerOf(message)));
  }
  return messages;
}

function userContent({ content, images = [] }) {
  if (!images.length) return content;
  return [{ type: "text", text: content }, ...images.map((url) => ({ type: "image_url", image_url: { url } }))];
}

function answerMessages({ content, reasoning, calls }) {
  const done = calls.filter((call) => call.result !== null);
  if (!content && !done.length) return [];
  const message = { role: "assistant", content: content || null };
  if (reasoning) message.reasoning_content = reasoning;
  if (done.length) {
    message.tool_calls = done.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  }
  return [message, ...done.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result }))];
}

/** A conversation as Markdown, for a file. */
export function asMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  if (conversation.settings.system) parts.push(`**System:** ${conversation.settings.system}`);
  for (const message of conversation.messages) {
    if (message.role === "user") parts.push(`## You\n\n${message.content}`);
    else parts.push(`## Assistant\n\n${answerOf(message).content}`);
  }
  return `${parts.join("\n\n")}\n`;
}

export class Store {
  #storage;

  /** `storage` is the browser's, or anything with its methods. */
  constructor(storage) {
    this.#storage = storage;
  }

  /** [{id, title, updated}], the newest first. */
  list() {
    const found = this.#read(INDEX);
    return Array.isArray(found) ? found : [];
  }

  load(id) {
    const conversation = this.#read(ONE + id);
    if (!conversation?.messages) return null;
    for (const message of conversation.messages) {
      for (const answer of message.versions ?? []) if (answer.status === "streaming") answer.status = "stopped";
    }
    return conversation;
  }

  /** False if the browser has no room for it. Logprobs are not kept: they are many times as long as the text. */
  save(conversation) {
    const { id, updated } = conversation;
    try {
      const text = JSON.stringify(conversation, (key, value) => (key === "logprobs" ? undefined : value));
      this.#storage.setItem(ONE + id, text);
      const others = this.list().filter((one) => one.id !== id);
      const index = [{ id, title: titleOf(conversation), updated }, ...others];
      this.#storage.setItem(INDEX, JSON.stringify(index.sort((a, b) => b.updated - a.updated)));
      return true;
    } catch {
      return false;
    }
  }

  remove(id) {
    this.#storage.removeItem(ONE + id);
    this.#storage.setItem(INDEX, JSON.stringify(this.list().filter((one) => one.id !== id)));
  }

  /** A small value under a name; null if there is none. */
  get(name) {
    return this.#read(`headrace.${name}`);
  }

  set(name, value) {
    try {
      this.#storage.setItem(`headrace.${name}`, JSON.stringify(value));
    } catch {
      // Without room it is forgotten at the next visit.
    }
  }

  #read(key) {
    try {
      return JSON.parse(this.#storage.getItem(key));
    } catch {
      return null;
    }
  }
}
