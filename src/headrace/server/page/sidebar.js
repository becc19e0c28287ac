// The list of conversations. On a narrow screen it slides over the page.

import { asMarkdown, titleOf } from "./conversations.js";
import { byId, el, icon, iconButton } from "./dom.js";

export class Sidebar {
  /** `open(id)` shows a conversation, `create()` a new one. */
  constructor({ store, chat, open, create, notify }) {
    Object.assign(this, { store, chat, open, create, notify });
    this.list = byId("conversations");
    byId("new-chat").append(icon("plus"), "New chat");
    byId("new-chat").addEventListener("click", () => {
      this.toggle(false);
      create();
    });
    byId("menu").append(icon("menu"));
    byId("menu").addEventListener("click", () => this.toggle(byId("menu").getAttribute("aria-expanded") === "false"));
    byId("scrim").addEventListener("click", () => this.toggle(false));
    byId("sidebar").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.toggle(false);
    });
  }

  toggle(open) {
    byId("sidebar").classList.toggle("open", open);
    byId("scrim").hidden = !open;
    const before = byId("menu").getAttribute("aria-expanded") === "true";
    byId("menu").setAttribute("aria-expanded", String(open));
    if (open) byId("new-chat").focus();
    else if (before) byId("menu").focus();
  }

  show() {
    const current = this.chat.conversation.id;
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const place = focused && [focused.parentElement.dataset.id, [...focused.parentElement.children].indexOf(focused)];
    this.list.replaceChildren(
      ...this.store.list().map(({ id, title }) => {
        const name = id === current ? titleOf(this.chat.conversation) : title;
        const go = () => {
          this.toggle(false);
          this.open(id);
        };
        return el(
          "li",
          { class: this.chat.isBusy(id) && "busy", data: { id } },
          el("button", { type: "button", class: "title", title: name, "aria-current": id === current && "true", on: { click: go } }, name),
          iconButton("save", `Save “${name}” as a file`, () => this.#download(id)),
          iconButton("trash", `Delete “${name}”`, () => this.#remove(id)),
        );
      }),
    );
    // The list is made anew while answers come: whoever is in it with the keyboard stays where they are.
    if (place) [...this.list.children].find((item) => item.dataset.id === place[0])?.children[place[1]]?.focus();
  }

  #download(id) {
    const conversation = this.store.load(id);
    if (!conversation) return;
    const url = URL.createObjectURL(new Blob([asMarkdown(conversation)], { type: "text/markdown" }));
    const link = el("a", { href: url, download: `${titleOf(conversation).replace(/[^\p{L}\p{N} _-]+/gu, "").slice(0, 50) || "chat"}.md` });
    link.click();
    URL.revokeObjectURL(url);
  }

  #remove(id) {
    const conversation = this.store.load(id);
    if (id === this.chat.conversation.id) {
      this.chat.stop();
      this.create();
    }
    this.store.remove(id);
    this.show();
    this.notify("The conversation was deleted.", "Undo", () => {
      if (conversation) this.store.save(conversation);
      this.open(id);
    });
  }
}
