// Short messages at the edge of the page, and messages that only a screen reader reads.

import { byId, el } from "./dom.js";

const SHOWN = 8000; // milliseconds

/** Show a message for some seconds, with a button if there is something to do about it. */
export function notify(text, label, action) {
  const notice = el("div", { class: "toast" }, el("span", {}, text));
  const close = () => notice.remove();
  if (action) {
    const click = () => {
      close();
      action();
    };
    notice.append(el("button", { type: "button", on: { click } }, label));
  }
  const { children } = byId("toasts");
  if ([...children].some((other) => other.firstChild.textContent === text && !action)) return;
  byId("toasts").append(notice);
  setTimeout(close, SHOWN);
}

export function announce(text) {
  byId("announcer").textContent = text;
}
