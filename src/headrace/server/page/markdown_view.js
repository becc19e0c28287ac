// The tree of `markdown.js` as elements.

import { copyText, el, iconButton } from "./dom.js";
import { highlight } from "./highlight.js";
import { parse } from "./markdown.js";

/** Shows a text that grows: blocks that have not changed keep their elements, and with them the reader's selection. */
export class MarkdownView {
  #raw = [];

  constructor(node) {
    this.node = node;
  }

  show(text) {
    const blocks = parse(text);
    const raw = blocks.map((block) => `${block.type}:${block.closed ?? ""}:${block.raw}`);
    let same = 0;
    while (same < raw.length && raw[same] === this.#raw[same]) same += 1;
    while (this.node.childNodes.length > same) this.node.lastChild.remove();
    this.node.append(...blocks.slice(same).map(blockNode));
    this.#raw = raw;
  }
}

function blockNode(block) {
  switch (block.type) {
    case "heading":
      // The page's own headings are the first and the second level.
      return el(`h${Math.min(6, block.level + 2)}`, { class: `level-${block.level}` }, inlineNodes(block.inline));
    case "rule":
      return el("hr");
    case "code":
      return codeNode(block);
    case "quote":
      return el("blockquote", {}, block.blocks.map(blockNode));
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    default:
      return el("p", {}, inlineNodes(block.inline));
  }
}

function codeNode({ lang, text }) {
  const copy = iconButton("copy", "Copy code", () => copyText(text, copy));
  const colours = highlight(text, lang).map(([kind, part]) => (kind ? el("span", { class: `code-${kind}` }, part) : part));
  const pre = el("pre", { tabindex: "0", "aria-label": lang ? `Code, ${lang}` : "Code" }, el("code", {}, colours));
  return el("div", { class: "code" }, el("div", { class: "code-head" }, el("span", {}, lang), copy), pre);
}

function listNode({ ordered, start, loose, items }) {
  const attributes = ordered && start !== 1 ? { start } : {};
  return el(ordered ? "ol" : "ul", attributes, items.map((item) => itemNode(item, loose)));
}

function itemNode({ done, blocks }, loose) {
  const nodes = blocks.flatMap((block) => (block.type === "paragraph" && !loose ? inlineNodes(block.inline) : [blockNode(block)]));
  if (done === null) return el("li", {}, nodes);
  const box = el("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "done" : "open" });
  return el("li", { class: "task" }, box, nodes);
}

function tableNode({ align, head, rows }) {
  const cell = (tag, inline, column) => el(tag, { class: align[column] && `align-${align[column]}` }, inlineNodes(inline));
  const line = (tag, row) => el("tr", {}, row.map((inline, column) => cell(tag, inline, column)));
  const table = el("table", {}, el("thead", {}, line("th", head)), el("tbody", {}, rows.map((row) => line("td", row))));
  return el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, table);
}

function inlineNodes(nodes) {
  return nodes.map((node) => {
    switch (node.type) {
      case "text":
        return document.createTextNode(node.text);
      case "code":
        return el("code", {}, node.text);
      case "break":
        return el("br");
      case "link":
        return el("a", { href: node.url, target: "_blank", rel: "noopener noreferrer nofollow" }, inlineNodes(node.inline));
      default:
        return el(node.type, {}, inlineNodes(node.inline));
    }
  });
}
