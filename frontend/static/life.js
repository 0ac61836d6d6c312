// The life of one choice of a request, as the server tells it: a bar of its phases, and a line for each thing that happened.

import { colour, fillRows, make, setText, sized } from "./dom.js";
import { count, seconds } from "./format.js";

const TALL = 16;
const BACK = new Set(["preempted", "interrupted"]); // into the line
const NAMES = { waiting: "in the queue", prefill: "prefill", decode: "decode" };
const CLASSES = ["n", "", "n"];

// When its first token was there, in seconds of its life; null before.
const firstToken = (choice) => (choice.queued_seconds == null ? null : choice.queued_seconds + choice.prefill_seconds);

// Its phases one after the other, each {from, to, phase}. A phase of prefill is one chunk, or several that are told as one.
export function phasesOf(choice) {
  const end = choice.age_seconds;
  const first = firstToken(choice);
  const phases = [];
  let [from, phase, stay] = [0, "waiting", 0];
  const next = (time, name) => {
    const to = Math.min(Math.max(time, from), end);
    if (to > from) phases.push({ from, to, phase });
    [from, phase] = [to, name];
  };
  const decodes = (upto) => {
    // After its chunks it decodes: the first time from its first token on, later since the last chunk was sent.
    if (phase === "prefill" && stay === 1 && first != null && first <= upto) next(first, "decode");
    else if (phase === "prefill" && stay > 1) next(from, "decode");
  };
  for (const moment of choice.life) {
    if (moment.what === "slot") {
      stay += 1;
      next(moment.at, "prefill");
    } else if (moment.what === "prefill") next(moment.at, "prefill");
    else if (BACK.has(moment.what)) {
      decodes(moment.at);
      next(moment.at, "waiting");
    }
  }
  decodes(end);
  next(end, "");
  return phases;
}

// [when, what, tokens] of everything that happened, as text.
function linesOf(choice) {
  const lines = [[0, "came into the queue", `${count(choice.prompt_tokens)} in its prompt`]];
  for (const moment of choice.life) {
    const steps = moment.until == null ? "" : `, ${count(moment.steps)} chunks until ${seconds(moment.until)}`;
    if (moment.what === "slot") lines.push([moment.at, `got slot ${moment.slot}`, `${count(moment.tokens)} cached`]);
    else if (moment.what === "prefill") lines.push([moment.at, `prefill${steps}`, `${count(moment.tokens)} computed`]);
    else if (moment.what === "omitted") lines.push([moment.at, `${count(moment.steps ?? 1)} things until ${seconds(moment.until)}, not kept`, ""]);
    else lines.push([moment.at, moment.what === "preempted" ? "preempted, waits again" : "worker began anew, waits again", `${count(moment.tokens)} generated`]);
  }
  const first = firstToken(choice);
  if (first != null) lines.push([first, "first token", ""]);
  lines.sort((one, other) => one[0] - other[0]);
  if (choice.reason) lines.push([choice.age_seconds, `${choice.state}: ${choice.reason}`, `${count(choice.generated_tokens)} generated`]);
  return lines;
}

export class Life {
  // Adds itself to `parent`.
  constructor(parent) {
    this.canvas = make("canvas", "life");
    this.canvas.setAttribute("role", "img");
    this.scale = make("p", "scale");
    this.ends = [make("span", "", "0 s"), make("span", "")];
    this.scale.append(...this.ends);
    const box = make("div", "scroll moments");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "What happened to the request");
    this.table = make("table");
    const head = this.table.createTHead().insertRow();
    for (const [title, kind] of [["After", "n"], ["What happened", ""], ["Tokens", "n"]]) head.append(make("th", kind, title));
    this.body = this.table.createTBody();
    box.append(this.table);
    this.box = box;
    this.parent = parent;
    parent.append(this.canvas, this.scale, box);
  }

  show(choice) {
    const known = Array.isArray(choice.life);
    for (const element of [this.canvas, this.scale, this.box]) element.hidden = !known;
    if (!known) return;
    const lines = linesOf(choice);
    fillRows(this.body, lines.length, (index) => [seconds(lines[index][0]), lines[index][1], lines[index][2]], CLASSES);
    this.draw(choice);
  }

  draw(choice) {
    const phases = phasesOf(choice);
    const width = this.parent.clientWidth;
    const context = sized(this.canvas, width, TALL);
    const scale = width / Math.max(choice.age_seconds, 0.001);
    context.clearRect(0, 0, width, TALL);
    const spent = new Map();
    for (const { from, to, phase } of phases) {
      context.fillStyle = colour(phase);
      const wide = (to - from) * scale;
      context.fillRect(from * scale, 0, Math.max(1, wide - (wide > 4 ? 1 : 0)), TALL);
      spent.set(phase, (spent.get(phase) ?? 0) + to - from);
    }
    context.fillStyle = colour("preempted");
    for (const { what, at } of choice.life) if (what === "preempted") context.fillRect(Math.min(at * scale, width - 3), 0, 3, TALL);
    setText(this.ends[1], seconds(choice.age_seconds));
    const told = [...spent].map(([phase, time]) => `${NAMES[phase]} ${seconds(time)}`).join(", ");
    this.canvas.setAttribute("aria-label", told);
    this.canvas.title = told;
  }
}
