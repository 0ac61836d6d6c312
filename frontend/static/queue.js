// The line in front of the slots: who waits for what, and when it is expected to start and to have its first token.

import { byId, fillRows, setText } from "./dom.js";
import { compact, count, seconds } from "./format.js";
import { WAITS } from "./waits.js";

const SHOWN = 100;
const CLASSES = ["n", "", "n", "n wide", "n", "n"];

export class Queue {
  constructor(choose) {
    this.body = byId("queue").tBodies[0];
    this.note = byId("queue-note");
    this.choose = choose;
    this.line = [];
    this.body.addEventListener("click", (event) => this.pick(event.target));
    this.body.addEventListener("keydown", (event) => { if (event.key === "Enter") this.pick(event.target); });
  }

  pick(element) {
    const row = element.closest("tr");
    const one = row && this.line[row.sectionRowIndex];
    if (one?.key) this.choose(one.key);
  }

  update(scene, chosen, own) {
    this.line = scene.line.slice(0, SHOWN);
    setText(this.note, scene.waiting ? `${count(scene.waiting)} waiting, ${compact(scene.waiting_tokens)} tokens` : "nobody waits");
    fillRows(this.body, this.line.length, (index) => this.cells(this.line[index]), CLASSES);
    this.line.forEach((one, index) => {
      const row = this.body.rows[index];
      row.tabIndex = one.key ? 0 : -1;
      row.classList.toggle("chosen", Boolean(one.key) && one.key === chosen);
      row.classList.toggle("own", own.has(one.key));
    });
  }

  cells(one) {
    const again = one.preemptions ? ", preempted" : "";
    const known = Boolean(one.key);
    return [
      count(one.place),
      (WAITS[one.waits_for] ?? one.waits_for ?? "") + again,
      known ? seconds(one.waited) : "–",
      known ? compact(one.prompt_tokens) : "–",
      seconds(one.start_seconds),
      seconds(one.first_token_seconds),
    ];
  }
}
