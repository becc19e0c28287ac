// The conversation that is shown, and the answers that are being generated, in this conversation and in others.

import { apply, newAnswer } from "./answer.js";
import { answerOf, apiMessages, assistantMessage, newConversation, openCalls, userMessage } from "./conversations.js";
import { byId, el } from "./dom.js";
import { MessageView } from "./message_view.js";
import { requestBody } from "./settings.js";

const NEAR = 80; // pixels from the end at which the view follows the text
/** Answers at once: a browser has six connections to a server, and the page needs some for itself. */
const MOST = 4;
const SAVE = 1000; // milliseconds between two saves of a growing answer

export class Chat extends EventTarget {
  /** Conversation id → {controller, message} of the answer that is being generated. */
  #runs = new Map();
  #views = new Map();
  #follows = true;
  #frame = 0;
  #leaving = false;

  constructor({ api, store, connection, notify, announce }) {
    super();
    Object.assign(this, { api, store, connection, notify, announce });
    this.log = byId("log");
    this.latest = byId("latest");
    this.log.addEventListener("scroll", () => this.#onScroll());
    this.latest.addEventListener("click", () => this.#toEnd());
    this.conversation = newConversation();
    // A page that is left or reloaded loses its connections: that is no fault of the server.
    addEventListener("pagehide", () => (this.#leaving = true));
    addEventListener("pageshow", () => (this.#leaving = false));
  }

  get busy() {
    return this.#runs.has(this.conversation.id);
  }

  isBusy(id) {
    return this.#runs.has(id);
  }

  open(conversation) {
    // An answer that is being generated belongs to an object that is there already.
    this.conversation = this.#runs.get(conversation.id)?.conversation ?? conversation;
    this.store.set("last", this.conversation.id);
    this.show();
    this.#toEnd();
    this.#changed();
  }

  /** Show the conversation anew. */
  show() {
    this.#views.clear();
    const nodes = this.conversation.messages.map((message) => {
      const view = new MessageView(message, this.#actions());
      this.#views.set(message.id, view);
      return view.node;
    });
    this.log.replaceChildren(...(nodes.length ? nodes : [this.#welcome()]));
  }

  #welcome() {
    const model = this.connection.model?.id;
    const say = model ? ["Ask ", el("strong", {}, model), " something."] : "Waiting for the server.";
    return el("div", { class: "welcome" }, el("img", { src: "page/icon.svg", alt: "", width: 56, height: 56 }), el("p", {}, say), el("p", { class: "side-note" }, "Conversations stay in this browser."));
  }

  #actions() {
    return {
      regenerate: (message) => this.#regenerate(message),
      edit: (message, text) => this.#edit(message, text),
      continue_: (message) => this.#continue(message),
      version: (message, at) => this.#version(message, at),
      result: () => this.#mayStart() && this.#next(),
    };
  }

  /** Send a message. False if it can't be sent now. */
  send(text, images) {
    if (!this.#mayStart()) return false;
    if (openCalls(this.conversation).length) {
      this.notify("The answer waits for the results of its calls.");
      this.log.querySelector("textarea.result")?.focus();
      return false;
    }
    const { messages } = this.conversation;
    const last = messages.at(-1);
    if (last?.role === "assistant" && answerOf(last).status === "failed" && !answerOf(last).content) messages.pop();
    messages.push(userMessage(text, images));
    this.#next();
    return true;
  }

  #mayStart() {
    if (this.#runs.size >= MOST) this.notify(`${MOST} answers are being generated: wait for one of them.`);
    return !this.busy && this.#runs.size < MOST;
  }

  stop() {
    this.#runs.get(this.conversation.id)?.controller.abort();
  }

  #next() {
    this.conversation.messages.push(assistantMessage());
    this.show();
    this.#toEnd();
    this.#generate(this.conversation.messages.at(-1));
  }

  #regenerate(message) {
    if (!this.#mayStart()) return;
    this.#cut(this.conversation.messages.indexOf(message) + 1);
    if (answerOf(message).status === "failed" && !answerOf(message).content) message.versions.splice(message.at, 1);
    message.versions.push(newAnswer());
    message.at = message.versions.length - 1;
    this.show();
    this.#toEnd();
    this.#generate(message);
  }

  #edit(message, text) {
    if (!this.#mayStart()) return;
    if (message.role === "assistant") {
      const answer = answerOf(message);
      answer.content = text;
      delete answer.logprobs;
      this.#views.get(message.id)?.update();
      this.#save(this.conversation);
      return;
    }
    const at = this.conversation.messages.indexOf(message);
    this.#cut(at);
    this.conversation.messages.push(userMessage(text, message.images));
    this.#next();
  }

  #continue(message) {
    if (!this.#mayStart()) return;
    this.#cut(this.conversation.messages.indexOf(message) + 1);
    Object.assign(answerOf(message), { status: "streaming", finish: null, error: null, counted: null });
    this.#generate(message, { add_generation_prompt: false, continue_final_message: true });
  }

  #version(message, at) {
    if (this.busy) return;
    message.at = at;
    this.#views.get(message.id)?.update();
    this.#save(this.conversation);
  }

  /** Remove the messages from a place on; they can be brought back. */
  #cut(at) {
    const { conversation } = this;
    const before = structuredClone(conversation.messages);
    const removed = conversation.messages.splice(at);
    if (removed.length < 2) return;
    this.notify(`${removed.length} messages were removed.`, "Undo", () => {
      this.#runs.get(conversation.id)?.controller.abort();
      conversation.messages = before;
      this.#save(conversation);
      if (this.conversation === conversation) this.show();
    });
  }

  async #generate(message, extra = {}) {
    const { conversation } = this;
    const answer = answerOf(message);
    const controller = new AbortController();
    this.#runs.set(conversation.id, { controller, conversation });
    this.#changed();
    this.#save(conversation);
    const started = performance.now();
    let saved = started;
    try {
      const before = conversation.messages.slice(0, conversation.messages.indexOf(message) + (extra.continue_final_message ? 1 : 0));
      const body = requestBody(conversation.settings, apiMessages({ ...conversation, messages: before }), this.connection.model?.id);
      await this.api.stream("v1/chat/completions", { ...body, ...extra }, controller.signal, (chunk) => {
        const now = performance.now();
        apply(answer, chunk, (now - started) / 1000);
        this.#draw(message);
        if (now - saved > SAVE) {
          this.#save(conversation);
          saved = now;
        }
      });
      answer.status = "done";
      this.announce("The answer is complete.");
    } catch (error) {
      this.#failed(answer, error, controller);
    }
    this.#runs.delete(conversation.id);
    conversation.updated = Date.now();
    this.#save(conversation);
    this.#views.get(message.id)?.update();
    if (this.conversation === conversation) this.#followEnd();
    this.#changed();
  }

  #failed(answer, error, controller) {
    if (controller.signal.aborted || this.#leaving) {
      answer.status = "stopped";
      this.announce("The answer was stopped.");
      return;
    }
    Object.assign(answer, { status: "failed", error: error.message });
    this.connection.failed(error);
    this.announce(`The answer failed: ${error.message}`);
    if (error.param) this.dispatchEvent(new CustomEvent("fault", { detail: error.param }));
  }

  /** At most one drawing a frame, however many tokens come. */
  #draw(message) {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      const view = this.#views.get(message.id);
      if (view?.message !== message || answerOf(message).status !== "streaming") return;
      view.update();
      this.#followEnd();
    });
  }

  #save(conversation) {
    if (!this.store.save(conversation)) this.notify("This browser has no room for the conversation: delete some.");
    this.dispatchEvent(new Event("saved"));
  }

  /** Keep a change of the settings. */
  saveSettings() {
    if (this.conversation.messages.length) this.#save(this.conversation);
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }

  // Scrolling

  #onScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    this.#follows = scrollHeight - scrollTop - clientHeight < NEAR;
    this.latest.hidden = this.#follows;
  }

  #followEnd() {
    if (this.#follows) this.#toEnd();
  }

  #toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
    this.#follows = true;
    this.latest.hidden = true;
  }
}
