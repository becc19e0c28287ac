// Asks for the API key when the server needs one, until it is right.

import { byId } from "./dom.js";

const NAME = "headrace.key";

export class KeyDialog {
  #asked = false;

  constructor(api, connection) {
    Object.assign(this, { api, connection });
    this.dialog = byId("key-dialog");
    byId("key-cancel").addEventListener("click", () => this.dialog.close());
    this.dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#use(byId("key").value.trim(), byId("key-keep").checked);
    });
    byId("status").addEventListener("click", () => this.connection.state === "locked" && this.ask(this.connection.reason));
  }

  /** The key of an earlier visit. */
  restore() {
    this.api.key = sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? "";
  }

  ask(reason) {
    byId("key-reason").textContent = this.api.key ? "The server refuses this key. Enter another one." : "This server needs a key.";
    byId("key-reason").title = reason;
    byId("key").setAttribute("aria-invalid", String(this.#asked && Boolean(this.api.key)));
    if (!this.dialog.open) this.dialog.showModal();
    byId("key").select();
  }

  async #use(key, keep) {
    this.api.key = key;
    this.#asked = true;
    await this.connection.check();
    if (this.connection.state === "locked") {
      this.ask(this.connection.reason);
      return;
    }
    const [place, other] = keep ? [localStorage, sessionStorage] : [sessionStorage, localStorage];
    place.setItem(NAME, key);
    other.removeItem(NAME);
    this.dialog.close();
    byId("key").value = "";
  }
}
