// Lines of shares from 0 to 1 over the last minutes.

import { el, svg } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 120;

export class Chart {
  /** `lines`: [name in the history, label, what it means, class] */
  constructor(lines) {
    this.lines = lines;
    this.plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "plot" });
    this.values = new Map(lines.map(([name]) => [name, el("strong", {}, "–")]));
    const legend = lines.map(([name, label, about, style]) =>
      el("li", { class: style, title: about }, el("span", { class: "swatch" }), label, " ", this.values.get(name)),
    );
    this.from = el("span");
    const axis = el("div", { class: "axis", "aria-hidden": "true" }, this.from, el("span", {}, "now"));
    const scale = el("div", { class: "scale", "aria-hidden": "true" }, el("span", {}, "100%"), el("span", {}, "50%"), el("span", {}, "0"));
    this.node = el("div", { class: "chart" }, el("ul", { class: "legend" }, legend), el("div", { class: "plot-area" }, scale, this.plot), axis);
  }

  draw(history, now) {
    const span = history.span(now);
    this.from.textContent = span > 60 ? `${span / 60} minutes ago` : "1 minute ago";
    const grid = [0.5, HEIGHT / 2, HEIGHT - 0.5].map((y) => svg("line", { x1: 0, x2: WIDTH, y1: y, y2: y, class: "grid" }));
    const paths = this.lines.flatMap(([name, , , style]) =>
      history.lines(name, now).map((part) => svg("path", { d: path(part, span), class: `line ${style}`, "vector-effect": "non-scaling-stroke" })),
    );
    this.plot.replaceChildren(...grid, ...paths);
    const last = history.points.at(-1);
    if (!last) return;
    for (const [name] of this.lines) this.values.get(name).textContent = `${Math.round(100 * last[name])}%`;
    this.plot.setAttribute("aria-label", this.lines.map(([name, label]) => `${label} ${Math.round(100 * last[name])}%`).join(", "));
  }
}

function path(points, span) {
  const at = ([age, value]) => `${(WIDTH * (1 - age / span)).toFixed(1)} ${(2 + (HEIGHT - 4) * (1 - Math.min(1, value))).toFixed(1)}`;
  const [first, ...others] = points;
  // A single reading is shown as a dot.
  return `M${at(first)}${others.length ? others.map((point) => `L${at(point)}`).join("") : "h.1"}`;
}
