// One message of a conversation, with its actions. It is shown anew when the message has changed.

import { facts, shortTime } from "./answer.js";
import { answerOf } from "./conversations.js";
import { copyText, el, iconButton } from "./dom.js";
import { MarkdownView } from "./markdown_view.js";
import { tokensNode } from "./tokens_view.js";

export class MessageView {
  #tokens = false;
  #wasOpen = null;

  /** `actions`: what the conversation does for a message: regenerate, edit, continue_, version, result. */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    const user = message.role === "user";
    this.node = el("article", { class: `message ${message.role}`, "aria-label": user ? "You" : "Assistant", data: { id: message.id } });
    this.foot = el("div", { class: "foot" });
    if (user) this.#showUser();
    else this.#buildAnswer();
  }

  #showUser() {
    const { content, images = [] } = this.message;
    const pictures = images.map((url) => el("img", { src: url, alt: "Image of this message" }));
    const copy = iconButton("copy", "Copy message", () => copyText(content, copy));
    this.foot.replaceChildren(copy, iconButton("edit", "Edit message", () => this.edit()));
    this.node.replaceChildren(el("div", { class: "bubble" }, pictures, el("div", { class: "plain" }, content)), this.foot);
  }

  #buildAnswer() {
    this.thoughts = el("div", { class: "markdown thoughts" });
    this.thoughtsView = new MarkdownView(this.thoughts);
    this.summary = el("summary");
    this.folded = el("details", { class: "reasoning", hidden: true }, this.summary, this.thoughts);
    this.folded.addEventListener("toggle", () => this.folded.open && this.thoughtsView.show(answerOf(this.message).reasoning));
    this.text = el("div", { class: "markdown" });
    this.textView = new MarkdownView(this.text);
    this.tokenArea = el("div", { hidden: true });
    this.calls = el("div", { class: "calls" });
    this.error = el("div", { class: "fault", hidden: true });
    this.node.append(this.folded, this.text, this.tokenArea, this.calls, this.error, this.foot);
    this.update();
  }

  /** Show an answer as it is now. */
  update() {
    const answer = answerOf(this.message);
    const streaming = answer.status === "streaming";
    this.node.dataset.status = answer.status;
    this.node.setAttribute("aria-busy", String(streaming));
    this.#showReasoning(answer, streaming);
    this.textView.show(answer.content);
    this.text.classList.toggle("waiting", streaming && !answer.content && !answer.reasoning && !answer.calls.length);
    this.#showCalls(answer, streaming);
    this.#showError(answer);
    this.#showFoot(answer, streaming);
    if (!streaming) this.#showTokens(answer);
  }

  #showReasoning(answer, streaming) {
    this.folded.hidden = !answer.reasoning;
    if (!answer.reasoning) return;
    const { thought, first } = answer.seconds;
    const thinking = streaming && !answer.content && !answer.calls.length;
    this.summary.textContent = thinking ? "Reasoning …" : thought === null ? "Reasoning" : `Reasoned for ${shortTime(thought - (first ?? 0))}`;
    this.folded.classList.toggle("active", thinking);
    if (this.folded.open) this.thoughtsView.show(answer.reasoning);
  }

  #showCalls(answer, streaming) {
    const state = JSON.stringify([answer.calls, streaming]);
    if (state === this.#wasOpen) return;
    this.#wasOpen = state;
    this.calls.replaceChildren(...answer.calls.map((call, at) => this.#callNode(call, at, streaming)));
    const open = answer.calls.filter((call) => call.result === null);
    if (!streaming && open.length) this.calls.append(this.#sendResults(answer));
  }

  #callNode(call, at, streaming) {
    const head = el("div", { class: "call-head" }, "Calls ", el("code", {}, call.name));
    const parts = [head, el("pre", { tabindex: "0", "aria-label": "Arguments" }, el("code", {}, pretty(call.arguments)))];
    if (call.result !== null) {
      parts.push(el("div", { class: "call-head" }, "Result"), el("pre", { tabindex: "0", "aria-label": "Result" }, el("code", {}, pretty(call.result))));
    } else if (!streaming) {
      const id = `result-${this.message.id}-${at}`;
      parts.push(el("label", { for: id }, `Result of ${call.name}`), el("textarea", { id, rows: 2, class: "result", spellcheck: "false", placeholder: "Text or JSON that the tool would give" }));
    }
    return el("div", { class: "call" }, parts);
  }

  #sendResults(answer) {
    const click = () => {
      const fields = [...this.calls.querySelectorAll("textarea.result")];
      const open = answer.calls.filter((call) => call.result === null);
      open.forEach((call, at) => (call.result = fields[at].value));
      this.update();
      this.actions.result(this.message);
    };
    return el("button", { type: "button", class: "primary send-results", on: { click } }, "Send the results");
  }

  #showError({ status, error }) {
    this.error.hidden = status !== "failed";
    if (status !== "failed") return;
    const again = el("button", { type: "button", on: { click: () => this.actions.regenerate(this.message) } }, "Try again");
    this.error.replaceChildren(el("p", {}, error), again);
  }

  #showFoot(answer, streaming) {
    const about = el("div", { class: "facts" }, facts(answer).map(([text, title]) => el("span", { title }, text)));
    if (streaming) {
      this.foot.replaceChildren(about);
      return;
    }
    const buttons = [this.#versions()];
    if (answer.content) {
      const copy = iconButton("copy", "Copy answer", () => copyText(answer.content, copy));
      buttons.push(copy);
    }
    buttons.push(iconButton("again", "Generate again", () => this.actions.regenerate(this.message)));
    if (answer.content && !answer.calls.length) {
      buttons.push(iconButton("edit", "Edit answer", () => this.edit()));
      const unfinished = answer.status !== "done" || answer.finish === "length";
      if (unfinished) buttons.push(iconButton("more", "Continue this answer", () => this.actions.continue_(this.message)));
    }
    if (answer.logprobs?.length) {
      buttons.push(iconButton("tokens", "Show tokens and their alternatives", () => this.#toggleTokens(), { "aria-pressed": String(this.#tokens) }));
    }
    this.foot.replaceChildren(el("div", { class: "actions" }, buttons), about);
  }

  #versions() {
    const { versions, at } = this.message;
    if (versions.length < 2) return null;
    const go = (step) => () => this.actions.version(this.message, at + step);
    return el(
      "span",
      { class: "versions" },
      iconButton("left", "Earlier version", go(-1), { disabled: at === 0 }),
      el("span", { "aria-label": `Version ${at + 1} of ${versions.length}` }, `${at + 1}/${versions.length}`),
      iconButton("right", "Later version", go(1), { disabled: at === versions.length - 1 }),
    );
  }

  #toggleTokens() {
    this.#tokens = !this.#tokens;
    this.update();
    this.foot.querySelector("[aria-pressed]")?.focus();
  }

  #showTokens(answer) {
    const shown = this.#tokens && Boolean(answer.logprobs?.length);
    this.tokenArea.hidden = !shown;
    this.text.hidden = shown;
    this.tokenArea.replaceChildren(...(shown ? [tokensNode(answer.logprobs)] : []));
  }

  /** Replace the text by a field. Changing a question asks it anew; changing an answer only changes the text. */
  edit() {
    const user = this.message.role === "user";
    const before = user ? this.message.content : answerOf(this.message).content;
    const field = el("textarea", { class: "edit", rows: Math.min(16, before.split("\n").length + 1), "aria-label": "Edit the text" });
    field.value = before;
    const close = () => {
      form.remove();
      this.node.classList.remove("editing");
      this.foot.querySelector('[aria-label^="Edit"]')?.focus();
    };
    const save = (event) => {
      event.preventDefault();
      const text = field.value;
      close();
      if (text.trim() && (text !== before || user)) this.actions.edit(this.message, text);
    };
    const keys = (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey || (user && !event.shiftKey)) && !event.isComposing) save(event);
    };
    const buttons = el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", on: { click: close } }, "Cancel"),
      el("button", { type: "submit", class: "primary" }, user ? "Send" : "Save"),
    );
    const form = el("form", { class: "edit-form", on: { submit: save, keydown: keys } }, field, buttons);
    this.node.classList.add("editing");
    this.node.prepend(form);
    field.focus();
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
