// Readings of the engine's state over the last minutes, and rates between them.

/** Seconds that are kept. */
export const SPAN = 300;
const SHORT = 60;

export class History {
  points = [];

  /** Add a reading of `GET /v1/engine/state` that came at `time` (seconds). */
  add(state, time) {
    const last = this.points.at(-1);
    const { totals, wastes } = state;
    const restarted = last && (totals.steps < last.totals.steps || totals.restarts !== last.totals.restarts);
    const rate = (name) => {
      if (!last || restarted || time <= last.time) return 0;
      return Math.max(0, totals[name] - last.totals[name]) / (time - last.time);
    };
    this.points.push({
      time,
      totals,
      kv: wastes.kv_utilization,
      slots: wastes.slot_occupancy,
      busy: wastes.device_busy,
      generated: rate("generation_tokens"),
      prompted: rate("prompt_tokens"),
    });
    while (this.points[0].time < time - SPAN) this.points.shift();
  }

  /** The span that is worth showing: a minute, or all that is kept. */
  span(now) {
    return now - (this.points[0]?.time ?? now) > SHORT ? SPAN : SHORT;
  }

  /** The mean of a rate over the last seconds. */
  mean(name, seconds = 3) {
    const { points } = this;
    const from = (points.at(-1)?.time ?? 0) - seconds;
    const recent = points.filter((point) => point.time > from);
    return recent.length ? recent.reduce((sum, point) => sum + point[name], 0) / recent.length : 0;
  }

  /** The points of a line as [age in seconds, value]. Where nobody looked, the line is cut: each part is a list. */
  lines(name, now) {
    const parts = [];
    let before = null;
    for (const point of this.points) {
      if (before === null || point.time - before > 5) parts.push([]);
      parts.at(-1).push([now - point.time, point[name]]);
      before = point.time;
    }
    return parts;
  }
}

/** Of each sequence, the number of its colour: it keeps it while it is there. */
export class Colours {
  #of = new Map();

  constructor(count) {
    this.count = count;
  }

  update(ids) {
    const here = new Set(ids);
    for (const id of this.#of.keys()) if (!here.has(id)) this.#of.delete(id);
    for (const id of ids) if (!this.#of.has(id)) this.#of.set(id, this.#free());
  }

  of(id) {
    return this.#of.get(id) ?? 0;
  }

  /** The colour that the fewest have. */
  #free() {
    const uses = new Array(this.count).fill(0);
    for (const colour of this.#of.values()) uses[colour] += 1;
    return uses.indexOf(Math.min(...uses));
  }
}
