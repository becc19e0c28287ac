// The live view of the engine: what runs, what the KV cache holds, and what of the hardware is used.

import { BlockMap, STATES } from "./block_map.js";
import { Chart } from "./chart.js";
import { el } from "./dom.js";
import { Colours, History } from "./history.js";
import { shortTime } from "./answer.js";

const EVERY = 1000; // milliseconds
const COLOURS = 10;
const ROWS = 40;

const number = (value) => value.toLocaleString("en");
const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
const rate = (value) => (value < 10 ? value.toFixed(1) : number(Math.round(value)));

export class EngineView {
  #timer = 0;
  #shown = false;
  #state = null;
  #abort = null;

  constructor(node, api, connection) {
    Object.assign(this, { node, api, connection });
    this.history = new History();
    this.colours = new Colours(COLOURS);
    this.map = new BlockMap(this.colours);
    this.chart = new Chart([
      ["busy", "Device busy", "Share of time in which the device had work", "c-busy"],
      ["slots", "Slots used", "Running sequences over the most that can run", "c-slots"],
      ["kv", "KV memory used", "Tokens stored over the places in held blocks", "c-kv"],
    ]);
    this.note = el("p", { class: "engine-note", role: "status" }, "Waiting for the engine.");
    this.tiles = el("dl", { class: "tiles" });
    this.about = el("p", { class: "side-note about" });
    this.blocksLegend = el("ul", { class: "legend" });
    this.requests = el("div", { class: "requests" });
    this.prefixes = el("ol", { class: "prefixes" });
    this.prefixNote = el("p", { class: "side-note" });
    this.body = el(
      "div",
      { class: "engine", hidden: true },
      this.tiles,
      this.about,
      card("What is used", "The distance to 100% is waste: idle device, empty slots, empty places in held blocks.", this.chart.node),
      card("KV cache", null, this.blocksLegend, this.map.node),
      wide(card("Requests", null, this.requests)),
      wide(card("Largest cached prefixes", "Runs of tokens in the radix tree. A run continues the one that it is indented under.", this.prefixes, this.prefixNote)),
    );
    node.append(this.note, this.body);
    document.addEventListener("visibilitychange", () => this.refresh());
  }

  setShown(shown) {
    this.#shown = shown;
    this.refresh();
  }

  /** Read the state now if the view is seen. */
  refresh() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    if (this.#shown && !document.hidden) this.#read();
  }

  /** Begin anew, with another model's engine. */
  forget() {
    this.#state = null;
    this.history = new History();
    this.body.hidden = true;
    this.refresh();
  }

  /** Draw anew, with other colours. */
  draw() {
    if (this.#state && this.#shown) this.map.draw();
  }

  async #read() {
    const abort = (this.#abort = new AbortController());
    try {
      const { models, model } = this.connection;
      const query = models.length > 1 ? `?model=${encodeURIComponent(model.id)}` : "";
      const state = await this.api.get(`v1/engine/state${query}`, abort.signal);
      this.#show(state);
    } catch (error) {
      if (abort.signal.aborted) return;
      this.connection.failed(error);
      this.note.textContent = error.message;
      this.note.hidden = false;
      this.body.classList.add("stale");
    }
    if (this.#abort === abort) this.#timer = setTimeout(() => this.#read(), EVERY);
  }

  #show(state) {
    const now = performance.now() / 1000;
    this.#state = state;
    this.history.add(state, now);
    this.colours.update(state.running.map((one) => one.id));
    this.note.hidden = true;
    this.body.hidden = false;
    this.body.classList.remove("stale");
    this.#showTiles(state);
    this.chart.draw(this.history, now);
    this.#showLegend(state.blocks);
    this.map.show(state);
    this.#showRequests(state);
    this.#showPrefixes(state);
  }

  #showTiles({ model, slots, running_count: running, waiting_count: waiting, totals }) {
    const share = totals.prompt_tokens ? `${Math.round((100 * totals.cached_tokens) / totals.prompt_tokens)}%` : "–";
    const tiles = [
      ["Running", `${running} of ${slots}`],
      ["Waiting", number(waiting)],
      ["Generated tokens/s", rate(this.history.mean("generated"))],
      ["Prompt tokens/s", rate(this.history.mean("prompted"))],
      ["Prompt tokens cached", share],
      ["Preemptions", number(totals.preemptions)],
    ];
    update(this.tiles, tiles.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    const facts = [model.id, `${model.platform}, ${model.dtype}`, `context of ${number(model.max_model_len)} tokens`];
    facts.push(`${number(totals.steps)} steps`, count(totals.restarts, "engine restart"));
    this.about.textContent = facts.join(" · ");
  }

  #showLegend({ free, cached, held, total, cells }) {
    const shared = cells.filter((cell) => cell === 2).length;
    const entries = [["free", free], ["cached", cached], ["held", held]];
    const items = entries.map(([name, count]) => {
      const swatch = el("span", { class: `swatch block-${name}` });
      return el("li", {}, swatch, `${name} `, el("strong", {}, number(count)), ` ${total ? Math.round((100 * count) / total) : 0}%`);
    });
    if (shared) items.push(el("li", {}, el("span", { class: `swatch block-${STATES[2]}` }), "shared by several"));
    update(this.blocksLegend, items);
  }

  #showRequests({ running, waiting, running_count: runs, waiting_count: waits }) {
    if (!runs && !waits) {
      update(this.requests, [el("p", { class: "side-note" }, "No request runs now.")]);
      return;
    }
    const shown = [...running, ...waiting].slice(0, ROWS);
    const head = ["", "Request", "State", "Prompt", "Output", "Blocks", "Time"];
    const rows = shown.map((one) => this.#row(one));
    const more = runs + waits - shown.length;
    update(this.requests, [
      el("table", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows)),
      more > 0 && el("p", { class: "side-note" }, `and ${number(more)} more`),
    ]);
  }

  #row(one) {
    const colour = one.state === "waiting" ? "" : `hue-${this.colours.of(one.id)}`;
    const done = one.state === "prefill" ? one.computed_tokens / one.prompt_tokens : one.output_tokens / one.max_output_tokens;
    const prompt = one.cached_tokens ? `${number(one.prompt_tokens)} (${number(one.cached_tokens)} cached)` : number(one.prompt_tokens);
    const progress = el("span", { class: "bar", "aria-hidden": "true" }, el("span"));
    progress.firstChild.style.width = `${100 * Math.min(1, done || 0)}%`;
    return el(
      "tr",
      {},
      el("td", {}, el("span", { class: `swatch ${colour}` })),
      el("td", { class: "id", title: one.id }, shortId(one.id)),
      el("td", { data: { state: one.state } }, one.state),
      el("td", { class: "number", data: { label: "prompt" } }, prompt),
      el("td", { class: "number", data: { label: "output" } }, `${number(one.output_tokens)} of ${number(one.max_output_tokens)}`, progress),
      el("td", { class: "number", data: { label: "blocks" }, title: `${one.tree_blocks} of them in the radix tree` }, number(one.blocks)),
      el("td", { class: "number" }, shortTime(one.seconds)),
    );
  }

  #showPrefixes({ prefixes, prefixes_left: left, prefixes_visited: visited, blocks }) {
    const most = Math.max(1, ...prefixes.map((one) => one.tokens));
    const order = inOrder(prefixes);
    update(
      this.prefixes,
      order.map(([one, depth]) => {
        const start = (100 * (one.tokens - one.own_tokens)) / most;
        const bar = el("span", { class: "bar", "aria-hidden": "true" }, el("span"));
        bar.firstChild.style.marginLeft = `${start}%`;
        bar.firstChild.style.width = `${Math.max(0.5, (100 * one.own_tokens) / most)}%`;
        const words = [count(one.own_tokens, "token")];
        if (one.tokens !== one.own_tokens) words.push(`ends at ${number(one.tokens)}`);
        if (one.users) words.push(count(one.users, "user"));
        if (one.branches > 1) words.push(`${number(one.branches)} branches`);
        if (one.adapter) words.push(`adapter ${one.adapter}`);
        if (one.salted) words.push("private");
        const item = el("li", { class: one.users ? "used" : "" }, bar, el("span", {}, words.join(" · ")));
        item.style.paddingLeft = `${Math.min(depth, 6) * 0.9}rem`;
        return item;
      }),
    );
    this.prefixNote.textContent = prefixes.length
      ? `${number(prefixes.length)} of ${left ? "more than " : ""}${number(visited)} nodes. Blocks of ${blocks.block_size} tokens. Texts are not shown.`
      : "The cache is empty.";
  }
}

function card(title, about, ...content) {
  return el("section", { class: "card" }, el("h2", {}, title), about && el("p", { class: "side-note" }, about), content);
}

function wide(node) {
  node.classList.add("wide-card");
  return node;
}

/** Replace the content, unless it looks the same: a reader's selection and scroll stay. */
function update(node, children) {
  const nodes = children.filter(Boolean);
  const same = nodes.length === node.childNodes.length && nodes.every((child, at) => child.isEqualNode(node.childNodes[at]));
  if (!same) node.replaceChildren(...nodes);
}

const shortId = (id) => id.replace(/^(chatcmpl|cmpl)-/, "").replace(/#\d+#0$/, "").replace(/#\d+#/, " choice ").slice(0, 18);

/** Runs with their depth, each after the one that it continues, larger ones first. */
function inOrder(prefixes) {
  const below = new Map();
  prefixes.forEach((one, at) => {
    if (!below.has(one.parent)) below.set(one.parent, []);
    below.get(one.parent).push(at);
  });
  const found = [];
  const visit = (parent, depth) => {
    const here = (below.get(parent) ?? []).sort((a, b) => prefixes[b].own_tokens - prefixes[a].own_tokens);
    for (const at of here) {
      found.push([prefixes[at], depth]);
      visit(at, depth + 1);
    }
  };
  visit(-1, 0);
  return found;
}
