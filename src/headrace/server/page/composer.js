// The message field with its buttons, and images if the model takes them.

import { byId, el, icon, iconButton } from "./dom.js";

export class Composer {
  #images = [];

  /** `send(text, images)` returns false if nothing was sent. */
  constructor({ send, stop }) {
    Object.assign(this, { send, stop });
    this.field = byId("prompt");
    this.button = byId("send");
    this.attach = byId("attach");
    this.attach.append(icon("image"));
    this.attach.addEventListener("click", () => byId("image-file").click());
    byId("image-file").addEventListener("change", (event) => this.#addImages(event.target));
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.busy) this.stop();
      else this.#submit();
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.busy) this.#submit();
    });
    this.field.addEventListener("input", () => this.#grow());
    this.setBusy(false);
  }

  setBusy(busy) {
    this.busy = busy;
    const label = busy ? "Stop" : "Send";
    this.button.replaceChildren(icon(busy ? "stop" : "send"));
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
    this.button.classList.toggle("stopping", busy);
  }

  /** Whether the model takes images. */
  allowImages(allowed) {
    this.attach.hidden = !allowed;
    if (!allowed) this.#images = [];
    this.#showImages();
  }

  #submit() {
    const text = this.field.value.trim();
    if (!text || !this.send(text, this.#images)) return;
    this.field.value = "";
    this.#images = [];
    this.#showImages();
    this.#grow();
  }

  #grow() {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, innerHeight * 0.4)}px`;
  }

  async #addImages(input) {
    const files = [...input.files];
    input.value = "";
    this.#images.push(...(await Promise.all(files.map(asDataUrl))));
    this.#showImages();
  }

  #showImages() {
    const area = byId("images");
    area.hidden = !this.#images.length;
    area.replaceChildren(
      ...this.#images.map((url, at) => {
        const remove = () => {
          this.#images.splice(at, 1);
          this.#showImages();
        };
        return el("span", { class: "thumb" }, el("img", { src: url, alt: `Image ${at + 1}` }), iconButton("close", "Remove this image", remove));
      }),
    );
  }
}

function asDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
