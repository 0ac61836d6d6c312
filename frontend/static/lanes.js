// The lanes: one line of time for each slot, the newest at the right.

import { byId, colour, setText, sized } from "./dom.js";
import { compact, count, seconds } from "./format.js";
import { KEPT_SECONDS } from "./lives.js";

const GUTTER = 30;
const AXIS = 18;
const GAP = 14;
const MOST_IN_COLUMN = 256;
const LEAST = 512; // CSS pixels of height that the lanes may take, or more where the page has it
const MOST_PITCH = 30;
const PHASES = ["lane", "prefill", "decode", "paused"];
const DECODE = 2;
const FILLS = [[1, false], [1, true], [2, false], [2, true], [3, false], [3, true]];
const NAMES = ["free", "prefill", "decode", "waits in its slot"];
const EVERY = [5, 10, 15, 20];

function shapeOf(slots, width, room) {
  const columns = Math.max(1, Math.ceil(slots / MOST_IN_COLUMN));
  const rows = Math.ceil(slots / columns);
  const pitch = Math.max(2, Math.min(MOST_PITCH, room / rows)); // may be a fraction: lanes begin at whole pixels
  const gap = pitch >= 15 ? 3 : pitch > 3 ? 1 : 0;
  return { columns, rows, pitch, gap, span: (width - GAP * (columns - 1)) / columns };
}

export class Lanes {
  constructor(lives, choose) {
    this.lives = lives;
    this.choose = choose;
    this.canvas = byId("lanes");
    this.box = byId("lanes-box");
    this.told = byId("lanes-told");
    this.slot = -1;
    this.chosen = "";
    this.own = new Set();
    this.scene = null;
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => this.tell(""));
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  update(scene) {
    this.scene = scene;
    const running = scene.rows.slot.length;
    setText(byId("lanes-note"), scene.slots ? `${count(running)} of ${count(scene.slots)} in use` : "no worker is attached");
    this.draw();
  }

  mark(chosen) {
    this.chosen = chosen;
    this.draw();
  }

  draw() {
    const { lives, scene } = this;
    const width = this.box.clientWidth;
    if (!scene || width < 50) return;
    const least = shapeOf(Math.max(scene.slots, 1), width, LEAST);
    this.box.style.minHeight = `${Math.round(least.rows * least.pitch) + AXIS}px`;
    const shape = shapeOf(Math.max(scene.slots, 1), width, Math.max(LEAST, this.box.clientHeight - AXIS));
    this.shape = shape;
    const height = Math.round(shape.rows * shape.pitch) + AXIS;
    const context = sized(this.canvas, width, height);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (let column = 0; column < shape.columns; column += 1) this.drawColumn(context, column, lives.time);
  }

  drawColumn(context, column, now) {
    const { rows, pitch, gap, span } = this.shape;
    const left = column * (span + GAP) + GUTTER;
    const wide = span - GUTTER;
    const scale = wide / KEPT_SECONDS;
    const first = column * rows;
    const last = Math.min(first + rows, this.scene.slots);
    const x = (time) => left + wide - (now - time) * scale;
    const y = (slot) => Math.round((slot - first) * pitch);
    context.fillStyle = colour("lane");
    if (gap) for (let slot = first; slot < last; slot += 1) context.fillRect(left, y(slot), wide, y(slot + 1) - y(slot) - gap);
    else context.fillRect(left, 0, wide, y(last));
    for (const [phase, odd] of FILLS) {
      context.fillStyle = colour(phase === DECODE && odd ? "decode-odd" : PHASES[phase]);
      for (let slot = first; slot < last; slot += 1) {
        const top = y(slot);
        const tall = y(slot + 1) - top - gap;
        for (const run of this.lives.lanes[slot]) {
          if (run.phase !== phase || run.odd !== odd) continue;
          const begin = Math.max(left, x(run.from));
          // A thin gap between one request and the next, where there is room for it.
          context.fillRect(begin, top, Math.max(1, x(run.to) - begin - (gap && run.to < now ? 0.75 : 0)), tall);
        }
      }
    }
    this.drawMarks(context, first, last, x, y, left);
    this.drawAxis(context, first, last, y, left, wide);
  }

  drawMarks(context, first, last, x, y, left) {
    const { gap } = this.shape;
    const tall = (slot) => y(slot + 1) - y(slot) - gap;
    context.fillStyle = colour("preempted");
    for (const { slot, time } of this.lives.marks) {
      if (slot < first || slot >= last || x(time) < left) continue;
      context.fillRect(x(time) - 1.5, y(slot), 3, Math.max(3, tall(slot)));
    }
    for (const [key, known] of this.lives.requests) {
      const chosen = key === this.chosen;
      if ((!chosen && !this.own.has(key)) || known.slot < first || known.slot >= last) continue;
      const top = y(known.slot);
      context.fillStyle = colour(chosen ? "text" : "own");
      const middle = top + tall(known.slot) / 2;
      context.beginPath();
      context.moveTo(left - 7, middle - 4);
      context.lineTo(left - 1, middle);
      context.lineTo(left - 7, middle + 4);
      context.fill();
      context.lineWidth = 1.5;
      context.strokeStyle = context.fillStyle;
      for (const run of this.lives.lanes[known.slot]) {
        if (run.key !== key) continue;
        const begin = Math.max(left, x(run.from));
        context.strokeRect(begin + 0.75, top + 0.75, Math.max(1, x(run.to) - begin - 1.5), Math.max(1.5, tall(known.slot) - 1.5));
      }
    }
    if (this.slot >= first && this.slot < last && document.activeElement === this.canvas) {
      context.lineWidth = 1;
      context.strokeStyle = colour("text");
      context.strokeRect(left - 0.5, y(this.slot) - 0.5, x(this.lives.time) - left + 1, Math.max(3, tall(this.slot) + 1));
    }
  }

  drawAxis(context, first, last, y, left, wide) {
    const { pitch, gap, rows, columns } = this.shape;
    context.fillStyle = colour("faint");
    context.textAlign = "right";
    const step = pitch >= 12 ? 1 : pitch >= 6 ? 8 : pitch >= 4 ? 16 : 32;
    for (let slot = first; slot < last; slot += 1) {
      if (slot % step === 0) context.fillText(String(slot), left - 9, y(slot) + Math.max(pitch - gap, 10) / 2);
    }
    const bottom = Math.round(rows * pitch) + AXIS / 2 + 2;
    const every = columns > 1 ? 30 : EVERY.find((seconds_) => (wide / KEPT_SECONDS) * seconds_ > 60) ?? 20;
    for (let ago = 0; ago <= KEPT_SECONDS; ago += every) {
      context.textAlign = ago === 0 ? "right" : ago === KEPT_SECONDS ? "left" : "center";
      context.fillText(ago === 0 ? "now" : `−${ago} s`, left + wide - (wide / KEPT_SECONDS) * ago, bottom);
    }
  }

  // Slot and time under the pointer.
  where(event) {
    const { shape, scene } = this;
    if (!shape || !scene) return null;
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const column = Math.min(shape.columns - 1, Math.floor(x / (shape.span + GAP)));
    const slot = column * shape.rows + Math.floor(y / shape.pitch);
    if (y >= shape.rows * shape.pitch || slot >= scene.slots || slot >= (column + 1) * shape.rows) return null;
    const right = column * (shape.span + GAP) + shape.span;
    return { slot, time: this.lives.time - ((right - x) / (shape.span - GUTTER)) * KEPT_SECONDS };
  }

  hover(event) {
    const at = this.where(event);
    this.tell(at ? this.describe(at.slot, at.time) : "");
    this.canvas.classList.toggle("hit", Boolean(at && this.lives.at(at.slot, at.time)?.key));
  }

  click(event) {
    const at = this.where(event);
    if (!at) return;
    this.slot = at.slot;
    const key = this.lives.near(at.slot, at.time);
    if (key) this.choose(key);
    else this.draw();
  }

  key(event) {
    const slots = this.scene?.slots ?? 0;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 16, PageUp: -16, Home: -Infinity, End: Infinity };
    if (event.key in steps && slots) {
      event.preventDefault();
      this.slot = Math.max(0, Math.min(slots - 1, this.slot + steps[event.key]));
      this.tell(this.describe(this.slot, this.lives.time));
      this.draw();
    } else if (event.key === "Enter") {
      const key = this.lives.near(this.slot, this.lives.time);
      if (key) this.choose(key);
    }
  }

  describe(slot, time) {
    const run = this.lives.at(slot, time);
    if (!run || !run.phase) return `Slot ${slot}: free`;
    const row = this.scene.rows.slot.indexOf(slot);
    const text = `Slot ${slot}: ${NAMES[run.phase]} for ${seconds(run.to - run.from)}`;
    if (row < 0 || !run.key || this.scene.rows.key[row] !== run.key) return text;
    const { prompt, length, cached } = this.scene.rows;
    return `${text} · prompt ${compact(prompt[row])} tokens (${compact(cached[row])} cached) · ${compact(length[row] - prompt[row])} generated`;
  }

  tell(text) {
    setText(this.told, text);
  }
}
