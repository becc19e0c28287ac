// An answer token by token. Unlikely tokens have a colour; hovering or focusing one shows what else was likely.

import { el } from "./dom.js";

const KEYS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** Text of a token; bytes that are no text alone are shown as such. */
export function tokenText({ token, bytes }) {
  if (bytes?.length && token.includes("\ufffd")) return `‹${bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}›`;
  return token;
}

const visible = (text) => text.replace(/\n/g, "↵\n").replace(/\t/g, "⇥");
/** In the list of alternatives, blanks are shown too. */
const marked = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "·");
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(Math.exp(logprob) < 0.1 ? 2 : 1)}%`;

export function tokensNode(entries) {
  const hint = el("div", { class: "alternatives", role: "tooltip", hidden: true });
  const spans = entries.map((entry, at) => {
    const share = Math.exp(entry.logprob);
    const level = share > 0.9 ? 0 : share > 0.6 ? 1 : share > 0.3 ? 2 : share > 0.1 ? 3 : 4;
    const show = () => place(hint, entry, spans[at]);
    const hide = () => (hint.hidden = true);
    return el(
      "span",
      {
        class: `token level-${level}`,
        tabindex: at ? "-1" : "0",
        "aria-label": `${tokenText(entry)} ${percent(entry.logprob)}`,
        on: { mouseenter: show, mouseleave: hide, focus: show, blur: hide, click: show },
      },
      visible(tokenText(entry)),
    );
  });
  const move = (event) => {
    const step = KEYS[event.key];
    const next = step && spans[spans.indexOf(document.activeElement) + step];
    if (event.key === "Escape") hint.hidden = true;
    if (!next) return;
    event.preventDefault();
    for (const span of spans) span.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };
  const legend = el("p", { class: "side-note" }, "Colour marks unlikely tokens. Hover, tap, or use the arrow keys to see the alternatives.");
  return el("div", {}, legend, el("div", { class: "tokens", role: "group", "aria-label": "Tokens", on: { keydown: move } }, spans, hint));
}

function place(hint, entry, span) {
  const others = entry.top.length ? entry.top : [entry];
  const own = others.some((one) => one.token === entry.token && one.logprob === entry.logprob);
  const rows = own ? others : [...others, entry];
  hint.replaceChildren(
    el(
      "table",
      {},
      rows.map((one) =>
        el(
          "tr",
          { class: one.logprob === entry.logprob && one.token === entry.token && "chosen" },
          el("td", {}, el("code", {}, marked(tokenText(one)) || "∅")),
          el("td", { class: "share", "aria-hidden": "true" }, shareBar(one)),
          el("td", { class: "number" }, percent(one.logprob)),
        ),
      ),
    ),
  );
  hint.hidden = false;
  const box = hint.parentElement.getBoundingClientRect();
  const at = span.getBoundingClientRect();
  hint.style.top = `${at.bottom - box.top + 6}px`;
  hint.style.left = `${Math.max(0, Math.min(at.left - box.left, box.width - hint.offsetWidth))}px`;
}

function shareBar({ logprob }) {
  const bar = el("span");
  bar.style.width = `${100 * Math.exp(logprob)}%`;
  return bar;
}
