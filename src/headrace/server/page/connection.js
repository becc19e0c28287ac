// Whether the server can be reached and its engine works. While it is lost, it is asked again and again.

/** Milliseconds between two questions: while the server is lost, and while it is there. */
const LOST = 1500;
const THERE = 10_000;

export class Connection extends EventTarget {
  state = "connecting"; // ready, unavailable, down, locked
  reason = "";
  models = [];
  chosen = ""; // The name of a model.
  #timer = 0;
  #asking = null;

  constructor(api) {
    super();
    this.api = api;
    document.addEventListener("visibilitychange", () => document.hidden || this.check());
    addEventListener("online", () => this.check());
    addEventListener("offline", () => this.check());
  }

  /** The model that answers: the chosen one, or the first. */
  get model() {
    return this.models.find(({ id }) => id === this.chosen) ?? this.models[0];
  }

  /** Ask the server now. */
  check() {
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = null;
      clearTimeout(this.#timer);
      const lost = this.state === "down" || this.state === "unavailable" || this.state === "connecting";
      if (this.state !== "locked") this.#timer = setTimeout(() => this.check(), lost ? LOST : THERE);
    });
    return this.#asking;
  }

  /** A request has failed: the state may have changed. */
  failed(error) {
    if (error.status === 401) this.#become("locked", error.message);
    else if (error.status === 0 || error.status >= 500) this.check();
  }

  async #ask() {
    const signal = AbortSignal.timeout(8000);
    try {
      await this.api.get("health", signal);
      // Each time: a server that was restarted between two questions may serve another model.
      const before = JSON.stringify(this.models);
      this.models = (await this.api.get("v1/models", signal)).data;
      if (JSON.stringify(this.models) !== before) this.dispatchEvent(new Event("models"));
      this.#become("ready", "");
    } catch (error) {
      if (error.status === 401) this.#become("locked", error.message);
      else if (error.status) this.#become("unavailable", error.message);
      else this.#become("down", "The server does not answer.");
    }
  }

  #become(state, reason) {
    const before = this.state;
    if (state === before && reason === this.reason) return;
    Object.assign(this, { state, reason });
    this.dispatchEvent(new CustomEvent("change", { detail: { before } }));
  }
}
