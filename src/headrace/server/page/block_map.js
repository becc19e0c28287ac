// The KV blocks as a map: a square for each, with the colour of what holds it.

import { el } from "./dom.js";

const LARGEST = 14;
const SMALLEST = 4;
const HEIGHT = 200; // pixels that the map is high, about

export const STATES = ["free", "cached", "shared", "other"];
const FIRST = STATES.length;

export class BlockMap {
  #state = null;

  constructor(colours) {
    this.colours = colours;
    this.canvas = el("canvas", { role: "img", class: "blocks" });
    this.hint = el("p", { class: "side-note", "aria-hidden": "true" });
    this.node = el("div", { class: "map" }, this.canvas, this.hint);
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#tell(null));
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  show(state) {
    this.#state = state;
    const { total, free, cached, held } = state.blocks;
    this.canvas.setAttribute("aria-label", `Map of ${total} KV blocks: ${free} free, ${cached} cached, ${held} held`);
    this.draw();
    this.#tell(null);
  }

  draw() {
    const width = this.node.clientWidth;
    if (!this.#state || !width) return;
    const { cells } = this.#state.blocks;
    this.size = Math.max(SMALLEST, Math.min(LARGEST, Math.floor(Math.sqrt((width * HEIGHT) / cells.length))));
    this.columns = Math.max(1, Math.floor(width / this.size));
    const rows = Math.ceil(cells.length / this.columns);
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(rows * this.size * scale);
    this.canvas.style.height = `${rows * this.size}px`;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const palette = this.#palette();
    const gap = this.size > 6 ? 2 : 1;
    cells.forEach((cell, at) => {
      context.fillStyle = palette(cell);
      context.fillRect((at % this.columns) * this.size, Math.floor(at / this.columns) * this.size, this.size - gap, this.size - gap);
    });
  }

  #palette() {
    const style = getComputedStyle(this.node);
    const fixed = STATES.map((name) => style.getPropertyValue(`--block-${name}`));
    const hues = Array.from({ length: this.colours.count }, (_, at) => style.getPropertyValue(`--hue-${at}`));
    const { running } = this.#state;
    return (cell) => (cell < FIRST ? fixed[cell] : hues[this.colours.of(running[cell - FIRST]?.id)]);
  }

  #point({ offsetX, offsetY }) {
    const column = Math.floor(offsetX / this.size);
    const at = Math.floor(offsetY / this.size) * this.columns + column;
    this.#tell(column < this.columns ? at : null);
  }

  #tell(at) {
    const { blocks, running } = this.#state;
    const cell = at === null ? undefined : blocks.cells[at];
    const step = blocks.blocks_per_cell;
    if (cell === undefined) {
      const each = step === 1 ? "A square is one block" : `A square stands for ${step} blocks and shows the first of them`;
      this.hint.textContent = `${each}; a block holds ${blocks.block_size} tokens.`;
      return;
    }
    const holder = running[cell - FIRST];
    const words = ["free", "cached, held by none", "shared by several requests", "held by a program or a request that is not listed"];
    this.hint.textContent = `Block ${1 + at * step}: ${cell < FIRST ? words[cell] : `held by ${holder?.id ?? "a request"}`}`;
  }
}
