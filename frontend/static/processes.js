// The processes of the cluster.

import { confirmed } from "./confirm.js";
import { byId, fillRows, setText } from "./dom.js";
import { bytes, count, percent, seconds } from "./format.js";
import { refusalOf } from "./stream.js";

const CLASSES = ["", "", "n", "n", "n", "n wide", "n wide"];

export class Processes {
  constructor(headers) {
    this.headers = headers;
    this.body = byId("processes").tBodies[0];
    this.button = byId("drain");
    this.phase = byId("phase");
    this.told = byId("processes-told");
    this.button.addEventListener("click", () => this.order());
    this.all = byId("cancel-all");
    this.all.addEventListener("click", () => this.cancelAll());
    this.admin = false;
  }

  // End all requests, or those of this key, once the person has said so again.
  async cancelAll() {
    const [whose, whom] = this.admin ? ["every request that waits or runs, of all clients", "Their clients get"] : ["every request of your API key that waits or runs", "They end with"];
    if (!(await confirmed("Cancel all requests?", `This ends ${whose}. ${whom} an error; what was generated so far is not taken back.`, "Cancel all"))) return;
    this.all.disabled = true;
    try {
      const response = await fetch("/v1/requests", { method: "DELETE", headers: this.headers() });
      if (!response.ok) throw await refusalOf(response);
      const { cancelled, unanswered } = await response.json();
      const silent = unanswered.length ? `; no answer from ${unanswered.join(", ")}` : "";
      setText(this.told, `${count(cancelled)} ${cancelled === 1 ? "request was" : "requests were"} cancelled${silent}`);
    } catch (error) {
      setText(this.told, error.message);
    }
    this.all.disabled = false;
  }

  // Refuse new requests, or take them again: for administrators.
  async order() {
    const path = this.draining ? "/live/resume" : "/live/drain";
    this.button.disabled = true;
    try {
      const response = await fetch(path, { method: "POST", headers: this.headers() });
      if (!response.ok) throw await refusalOf(response);
    } catch (error) {
      setText(this.told, error.message);
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
