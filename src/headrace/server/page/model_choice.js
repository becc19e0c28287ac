// Which of the server's models answers, where there are several.

import { el } from "./dom.js";

const STATES = { loaded: "", loading: "loading", unloaded: "not loaded", asleep: "asleep", failed: "failed" };

export class ModelChoice {
  /** `node` is a select element; `changed` is called when the user has chosen. */
  constructor(node, connection, store, changed) {
    Object.assign(this, { node, connection, store });
    connection.chosen = store.get("model") ?? "";
    node.addEventListener("change", () => {
      connection.chosen = node.value;
      store.set("model", node.value);
      changed();
    });
    connection.addEventListener("models", () => this.show());
  }

  show() {
    const { models, model } = this.connection;
    this.node.hidden = models.length < 2;
    const label = ({ id, state }) => (STATES[state] ? `${id} (${STATES[state]})` : id);
    this.node.replaceChildren(...models.map((one) => el("option", { value: one.id }, label(one))));
    if (model) this.node.value = model.id;
  }
}
