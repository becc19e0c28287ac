// The panel with the settings of a conversation.

import { el, iconButton } from "./dom.js";
import { NUMBERS, problems } from "./settings.js";

const SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}';
const TOOL = '[{"name": "weather", "description": "…", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]';

export class SettingsView extends EventTarget {
  #fields = new Map();

  constructor(node, close) {
    super();
    this.node = node;
    this.settings = {};
    node.append(
      el("div", { class: "panel-head" }, el("h2", {}, "Settings"), iconButton("close", "Close the settings", close)),
      this.#area("system", "System prompt", 4, "How the model should answer"),
      this.#group("Sampling", NUMBERS.map(([name, label, least, most, step, about]) => this.#number(name, label, { min: least, max: most, step }, about))),
      this.#area("stop", "Stop strings, one a line", 2, ""),
      this.#group("Output", [
        this.#select("output", "Form", [["", "Text"], ["json_object", "Any JSON object"], ["json_schema", "JSON of a schema"]]),
        this.#area("schema", "JSON schema", 6, SCHEMA, true),
        this.#select("thinking", "Reasoning, where the model can choose", [["", "Model's default"], ["on", "On"], ["off", "Off"]]),
        this.#select("logprobs", "Logprobs", [["", "Off"], ["1", "1 alternative"], ["5", "5 alternatives"], ["20", "20 alternatives"]]),
      ]),
      this.#group("Tools", [
        this.#area("tools", "Tools (JSON)", 6, TOOL, true),
        this.#select("toolChoice", "The model", [["", "may call a tool"], ["required", "must call a tool"], ["none", "must not call a tool"]]),
      ]),
      el("button", { type: "button", class: "wide", on: { click: () => this.#reset() } }, "Reset to the server's defaults"),
      el("p", { class: "side-note" }, "Empty fields leave the choice to the server. Enter sends, Shift+Enter starts a new line, Esc stops an answer, / goes to the message field."),
    );
    node.addEventListener("input", () => this.#read());
  }

  /** Show the settings of a conversation, and write changes to them. */
  edit(settings) {
    this.settings = settings;
    for (const [name, field] of this.#fields) field.value = settings[name] ?? "";
    this.#check();
  }

  /** Lead to the field that the server has refused; its name may be a path. */
  point(param) {
    const known = { response_format: "schema", max_completion_tokens: "max_tokens", top_logprobs: "logprobs", tool_choice: "toolChoice" };
    const name = param.split(/[.[]/)[0];
    const field = this.#fields.get(known[name] ?? name);
    if (!field || this.node.hidden) return;
    field.scrollIntoView({ block: "center" });
    field.setAttribute("aria-invalid", "true");
  }

  #read() {
    for (const [name, field] of this.#fields) {
      if (field.value === "") delete this.settings[name];
      else this.settings[name] = field.type === "number" ? field.valueAsNumber : field.value;
    }
    this.#check();
    this.dispatchEvent(new Event("change"));
  }

  #reset() {
    for (const field of this.#fields.values()) field.value = "";
    this.#read();
  }

  #check() {
    const found = problems(this.settings);
    for (const [name, field] of this.#fields) {
      field.setAttribute("aria-invalid", String(name in found));
      const fault = field.parentElement.querySelector(".field-fault");
      if (fault) fault.textContent = found[name] ?? "";
    }
    this.#fields.get("schema").parentElement.hidden = this.settings.output !== "json_schema";
  }

  #group(title, children) {
    return el("fieldset", {}, el("legend", {}, title), children);
  }

  #row(name, label, field, about) {
    this.#fields.set(name, field);
    field.id = `set-${name}`;
    return el("div", { class: "row", title: about }, el("label", { for: field.id }, label), field, el("div", { class: "field-fault", role: "alert" }));
  }

  #number(name, label, limits, about) {
    const field = el("input", { type: "number", inputmode: "decimal", placeholder: "default", ...limits, step: limits.step === 1 ? 1 : "any" });
    const row = this.#row(name, label, field, about);
    row.classList.add("short");
    return row;
  }

  #select(name, label, options) {
    return this.#row(name, label, el("select", {}, options.map(([value, text]) => el("option", { value }, text))));
  }

  #area(name, label, rows, placeholder, code = false) {
    return this.#row(name, label, el("textarea", { rows, placeholder, class: code && "code-field", spellcheck: String(!code) }));
  }
}
