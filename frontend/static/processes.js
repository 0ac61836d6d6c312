// The processes of the cluster.

import { byId, fillRows, setText } from "./dom.js";
import { bytes, count, percent, seconds } from "./format.js";
import { refusalOf } from "./stream.js";

const CLASSES = ["", "", "n", "n", "n", "n", "n"];

export class Processes {
  constructor(headers) {
    this.headers = headers;
    this.body = byId("processes").tBodies[0];
    this.button = byId("drain");
    this.phase = byId("phase");
    this.button.addEventListener("click", () => this.order());
  }

  // Refuse new requests, or take them again: for administrators.
  async order() {
    const path = this.draining ? "/live/resume" : "/live/drain";
    this.button.disabled = true;
    try {
      const response = await fetch(path, { method: "POST", headers: this.headers() });
      if (!response.ok) throw await refusalOf(response);
    } catch (error) {
      setText(this.phase, error.message);
    }
    this.button.disabled = false;
  }

  update({ phase, reason, draining, processes: lines }) {
    this.draining = draining;
    setText(this.button, draining ? "Resume" : "Drain");
    this.button.title = draining ? "Take requests again" : "Refuse new requests and let the others finish";
    setText(this.phase, draining ? "new requests are refused" : reason || phase);
    fillRows(this.body, lines.length, (index) => this.cells(lines[index]), CLASSES);
    lines.forEach((line, index) => { this.body.rows[index].cells[1].className = `phase ${line.phase}`; });
  }

  cells(line) {
    const phase = line.detail && line.phase !== "ready" ? `${line.phase}: ${line.detail}` : line.phase;
    return [line.name, phase, line.pid == null ? "–" : String(line.pid), seconds(line.uptime), count(line.restarts), percent(line.cpu), bytes(line.memory)];
  }
}
