// Markdown as a tree of plain objects. The dialect is what models write: headings, paragraphs, lists, tables, quotes, code
// and links. HTML is text like any other. Nesting and look-ahead are limited, so that no text takes long to read.

const DEEPEST = 8;
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?[ \t]*#*[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/** The blocks of a text. Each has its source as `raw`, so that a view can tell which have changed. */
export function parse(text) {
  return blocks(text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"), 0);
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = read(lines, at, depth);
    block.raw = lines.slice(at, next).join("\n");
    found.push(block);
    at = next;
  }
  return found;
}

function read(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return readFence(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ type: "heading", level: heading[1].length, inline: inline(heading[2] ?? "") }, at + 1];
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < DEEPEST) {
    if (QUOTE.test(line)) return readQuote(lines, at, depth);
    if (ITEM.test(line)) return readList(lines, at, depth);
  }
  if (line.includes("|") && at + 1 < lines.length && DIVIDER.test(lines[at + 1])) {
    const table = readTable(lines, at);
    if (table) return table;
  }
  return readParagraph(lines, at, depth);
}

function readFence(lines, at, [, indent, marker, lang]) {
  const body = [];
  const end = new RegExp(`^ {0,3}${marker[0]}{${marker.length},}\\s*$`);
  let next = at + 1;
  while (next < lines.length && !end.test(lines[next])) {
    body.push(lines[next].startsWith(indent) ? lines[next].slice(indent.length) : lines[next].trimStart());
    next += 1;
  }
  const closed = next < lines.length;
  return [{ type: "code", lang, text: body.join("\n"), closed }, closed ? next + 1 : next];
}

function readQuote(lines, at, depth) {
  const body = [];
  let next = at;
  while (next < lines.length && QUOTE.test(lines[next])) body.push(QUOTE.exec(lines[next++])[1]);
  return [{ type: "quote", blocks: blocks(body, depth + 1) }, next];
}

function readList(lines, at, depth) {
  const ordered = /\d/.test(ITEM.exec(lines[at])[2][0]);
  const start = ordered ? parseInt(ITEM.exec(lines[at])[2], 10) : null;
  const items = [];
  let next = at;
  let loose = false;
  while (next < lines.length) {
    const item = ITEM.exec(lines[next]);
    if (!item || /\d/.test(item[2][0]) !== ordered || RULE.test(lines[next])) break;
    const [body, after, gap] = itemLines(lines, next, item);
    items.push(listItem(body, depth));
    next = after;
    if (gap && next < lines.length && ITEM.test(lines[next])) loose = true;
  }
  return [{ type: "list", ordered, start, loose, items }, next];
}

/** The lines of an item without their indent, the line after it, and whether blank lines end it. */
function itemLines(lines, at, [, indent, marker, space = " ", text = ""]) {
  const width = indent.length + marker.length + (space.length > 4 ? 1 : space.length);
  const body = [text];
  let next = at + 1;
  let blank = 0;
  let fence = FENCE.exec(text)?.[2] ?? null;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    if (!line.trim()) {
      blank += 1;
      continue;
    }
    const depth = line.length - line.trimStart().length;
    // Models often indent what belongs to an item by two spaces only.
    const inside = depth >= Math.min(width, indent.length + 2);
    const lazy = !blank && !fence && !ITEM.test(line) && !FENCE.test(line) && !HEADING.test(line) && !QUOTE.test(line) && !RULE.test(line);
    if (!inside && !lazy) break;
    for (; blank; blank -= 1) body.push("");
    const own = line.slice(Math.min(depth, width));
    const mark = FENCE.exec(own)?.[2] ?? null;
    if (mark) fence = fence ? null : mark;
    body.push(own);
  }
  return [body, next, blank > 0];
}

function listItem(body, depth) {
  const task = /^\[([ xX])\] (.*)$/.exec(body[0]);
  if (task) body[0] = task[2];
  return { done: task ? task[1] !== " " : null, blocks: blocks(body, depth + 1) };
}

function readTable(lines, at) {
  const head = cells(lines[at]);
  const marks = cells(lines[at + 1]);
  if (head.length !== marks.length) return null;
  const align = marks.map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : null));
  const rows = [];
  let next = at + 2;
  while (next < lines.length && lines[next].trim() && lines[next].includes("|")) {
    const row = cells(lines[next++]).slice(0, head.length);
    rows.push(head.map((_, column) => inline(row[column] ?? "")));
  }
  return [{ type: "table", align, head: head.map((cell) => inline(cell)), rows }, next];
}

function cells(line) {
  const found = [""];
  let code = false;
  const text = line.trim().replace(/^\|/, "");
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\" && text[at + 1] === "|") found[found.length - 1] += text[(at += 1)];
    else if (text[at] === "|" && !code) found.push("");
    else {
      if (text[at] === "`") code = !code;
      found[found.length - 1] += text[at];
    }
  }
  if (found.length > 1 && !found.at(-1).trim()) found.pop();
  return found.map((cell) => cell.trim());
}

function readParagraph(lines, at, depth) {
  let next = at + 1;
  while (next < lines.length && lines[next].trim() && !startsBlock(lines, next, depth)) next += 1;
  return [{ type: "paragraph", inline: inline(lines.slice(at, next).map((line) => line.trimStart()).join("\n")) }, next];
}

function startsBlock(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (depth < DEEPEST && QUOTE.test(line)) return true;
  const item = depth < DEEPEST && ITEM.exec(line);
  if (item && item[4]?.trim() && (!/\d/.test(item[2]) || /^1[.)]$/.test(item[2]))) return true;
  return line.includes("|") && at + 1 < lines.length && DIVIDER.test(lines[at + 1]) && lines[at + 1].includes("-");
}

// Text within a block

const SAFE = /^(?:https?:\/\/|mailto:)/i;
const BARE = /^https?:\/\/[^\s<>"'`\]]+/i;
const ESCAPED = /[!-/:-@[-`{-~]/;

/** A link's address if it may be followed; null otherwise. */
export function safeUrl(url) {
  return SAFE.test(url) ? url : null;
}

/** The nodes of a text within a block. */
export function inline(text, depth = 0) {
  return new Inline(text, depth).nodes();
}

class Inline {
  #found = [];
  #plain = "";
  #missing = new Set();

  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
  }

  nodes() {
    let at = 0;
    while (at < this.text.length) {
      const next = this.#special(at);
      if (next === null) this.#plain += this.text[at++];
      else at = next;
    }
    this.#flush();
    return this.#found;
  }

  #flush() {
    if (this.#plain) this.#found.push({ type: "text", text: this.#plain });
    this.#plain = "";
  }

  #add(node, next) {
    this.#flush();
    this.#found.push(node);
    return next;
  }

  /** Read what starts here; the place after it, or null if it is plain text. */
  #special(at) {
    const { text } = this;
    const char = text[at];
    if (char === "\\" && at + 1 < text.length) {
      if (text[at + 1] === "\n") return this.#add({ type: "break" }, at + 2);
      if (!ESCAPED.test(text[at + 1])) return null;
      this.#plain += text[at + 1];
      return at + 2;
    }
    if (char === "\n") return this.#newline(at);
    if (char === "`") return this.#code(at);
    if (this.depth >= DEEPEST) return null;
    if (char === "*" || char === "_" || char === "~") return this.#emphasis(at, char);
    if (char === "[" || (char === "!" && text[at + 1] === "[")) return this.#link(at + (char === "!" ? 1 : 0));
    if (char === "<") return this.#angle(at);
    if ((char === "h" || char === "H") && !/\w/.test(text[at - 1] ?? "")) return this.#bare(at);
    return null;
  }

  #newline(at) {
    const spaces = / +$/.exec(this.#plain)?.[0].length ?? 0;
    this.#plain = this.#plain.slice(0, this.#plain.length - spaces);
    if (spaces >= 2) return this.#add({ type: "break" }, at + 1);
    this.#plain += "\n";
    return at + 1;
  }

  /** The next place of a marker. One that is missing once is not searched again. */
  #find(marker, from) {
    if (this.#missing.has(marker)) return -1;
    const at = this.text.indexOf(marker, from);
    if (at < 0) this.#missing.add(marker);
    return at;
  }

  #code(at) {
    let ticks = 1;
    while (this.text[at + ticks] === "`") ticks += 1;
    const marker = "`".repeat(ticks);
    let end = this.#find(marker, at + ticks);
    while (end >= 0 && (this.text[end + ticks] === "`" || this.text[end - 1] === "`")) {
      let after = end + ticks;
      while (this.text[after] === "`") after += 1;
      end = this.#find(marker, after);
    }
    if (end < 0) {
      this.#plain += marker;
      return at + ticks;
    }
    let code = this.text.slice(at + ticks, end).replace(/\n/g, " ");
    if (/^ .*[^ ].* $/.test(code)) code = code.slice(1, -1);
    return this.#add({ type: "code", text: code }, end + ticks);
  }

  #emphasis(at, char) {
    const { text } = this;
    let count = 1;
    while (text[at + count] === char && count < 3) count += 1;
    if (char === "~" && count !== 2) return null;
    const before = text[at - 1] ?? " ";
    const after = text[at + count] ?? " ";
    if (/\s/.test(after) || (char === "_" && /\w/.test(before))) return this.#text(char.repeat(count), at + count);
    const marker = char.repeat(count);
    const end = this.#closing(marker, at + count, char);
    if (end < 0) return this.#text(marker, at + count);
    const inner = inline(text.slice(at + count, end), this.depth + 1);
    const kinds = char === "~" ? ["del"] : [null, ["em"], ["strong"], ["strong", "em"]][count];
    const node = kinds.reduceRight((nodes, type) => [{ type, inline: nodes }], inner)[0];
    return this.#add(node, end + count);
  }

  #text(plain, next) {
    this.#plain += plain;
    return next;
  }

  #closing(marker, from, char) {
    let end = this.#find(marker, from);
    while (end >= 0) {
      const before = this.text[end - 1];
      const after = this.text[end + marker.length] ?? " ";
      const longer = after === char || (before === char && marker.length < 3);
      if (!/\s/.test(before) && !longer && !(char === "_" && /\w/.test(after)) && end > from) return end;
      let next = end + marker.length;
      while (this.text[next] === char) next += 1;
      end = this.#find(marker, next);
    }
    return -1;
  }

  #link(open) {
    const { text } = this;
    let level = 0;
    let close = open;
    const most = Math.min(text.length, open + 1000);
    for (; close < most; close += 1) {
      if (text[close] === "\\") close += 1;
      else if (text[close] === "[") level += 1;
      else if (text[close] === "]" && (level -= 1) === 0) break;
    }
    if (close >= most || text[close + 1] !== "(") return null;
    const target = /^\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\))*)>?(?:\s+["'][^"'\n]{0,500}["'])?\s*\)/.exec(text.slice(close + 1, close + 2500));
    if (!target) return null;
    const label = inline(text.slice(open + 1, close), this.depth + 1);
    const url = safeUrl(target[1]);
    const next = close + 1 + target[0].length;
    if (url === null) return this.#add({ type: "span", inline: label }, next);
    return this.#add({ type: "link", url, inline: label.length ? label : [{ type: "text", text: url }] }, next);
  }

  #angle(at) {
    const found = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(this.text.slice(at, at + 2000));
    if (found) return this.#add({ type: "link", url: found[1], inline: [{ type: "text", text: found[1] }] }, at + found[0].length);
    const line = /^<br *\/?>/i.exec(this.text.slice(at, at + 8));
    return line ? this.#add({ type: "break" }, at + line[0].length) : null;
  }

  #bare(at) {
    const found = BARE.exec(this.text.slice(at, at + 2000));
    if (!found) return null;
    let url = found[0].replace(/[.,;:!?*_~]+$/, "");
    if (url.endsWith(")") && !url.includes("(")) url = url.slice(0, -1);
    if (url.length < 10) return null;
    return this.#add({ type: "link", url, inline: [{ type: "text", text: url }] }, at + url.length);
  }
}
