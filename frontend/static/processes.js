// The processes of the cluster.

import { byId, fillRows } from "./dom.js";
import { bytes, count, percent, seconds } from "./format.js";

const CLASSES = ["", "", "n", "n", "n", "n", "n"];

export class Processes {
  constructor() {
    this.body = byId("processes").tBodies[0];
  }

  update(lines) {
    fillRows(this.body, lines.length, (index) => this.cells(lines[index]), CLASSES);
    lines.forEach((line, index) => { this.body.rows[index].cells[1].className = `phase ${line.phase}`; });
  }

  cells(line) {
    const phase = line.detail && line.phase !== "ready" ? `${line.phase}: ${line.detail}` : line.phase;
    return [line.name, phase, line.pid == null ? "–" : String(line.pid), seconds(line.uptime), count(line.restarts), percent(line.cpu), bytes(line.memory)];
  }
}
