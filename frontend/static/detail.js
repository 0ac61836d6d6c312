// The life of one request: what the server says of it, and what this page has seen of it.

import { byId, colour, make, sized } from "./dom.js";
import { count, percent, seconds } from "./format.js";
import { refusalOf } from "./stream.js";

const PHASES = ["waiting", "prefill", "decode", "paused"];
const NAMES = ["in the queue", "prefill", "decode", "waits in its slot"];
const EVERY_SECONDS = 1;
const OVER = new Set(["finished", "cancelled", "error"]);
const WAITS = {
  turn: "others before it", slot: "a free slot", blocks: "KV blocks", tokens: "room in a step", prefix: "its prefix, which is being computed", worker: "the worker",
};

export class Detail {
  constructor(lives, headers) {
    this.lives = lives;
    this.headers = headers;
    this.body = byId("detail-body");
    this.button = byId("cancel");
    this.name = "";
    this.key = "";
    this.asked = 0;
    this.card = null;
    this.button.addEventListener("click", () => this.cancel());
  }

  // `key` names a sequence that runs; the request's own id takes its place once it is known, for a sequence is forgotten at its end.
  show(key) {
    this.key = key;
    this.name = key;
    this.card = null;
    this.problem = "";
    this.asked = 0;
    this.button.hidden = true;
    this.body.replaceChildren(make("p", "empty", "Asking…"));
    this.ask();
  }

  update(now) {
    if (this.name && now - this.asked >= EVERY_SECONDS && !(this.card && OVER.has(this.card.state))) this.ask();
    else this.drawLife();
  }

  async ask(method = "GET") {
    const { name } = this;
    this.asked = performance.now() / 1000;
    try {
      const response = await fetch(`/v1/requests/${encodeURIComponent(name)}`, { method, headers: this.headers() });
      if (!response.ok) throw await refusalOf(response);
      const card = await response.json();
      if (name !== this.name) return;
      this.card = card;
      this.name = card.id;
    } catch (error) {
      if (name !== this.name) return;
      this.problem = this.card ? "" : error.message;
      if (!this.card) this.name = "";
    }
    this.draw();
  }

  async cancel() {
    this.button.disabled = true;
    await this.ask("DELETE");
    this.button.disabled = false;
  }

  draw() {
    const { card } = this;
    if (!card) {
      this.button.hidden = true;
      this.body.replaceChildren(make("p", "empty", this.problem || "Choose a lane or a line of the queue."));
      return;
    }
    this.button.hidden = OVER.has(card.state);
    const choice = card.choices.find((one) => one.sequence === this.key) ?? card.choices[0];
    const list = make("dl", "facts");
    for (const [name, value] of this.facts(card, choice)) list.append(make("dt", "", name), make("dd", "", value));
    this.life = make("canvas", "life");
    this.life.setAttribute("role", "img");
    const title = make("p", `what ${choice.state}`, this.sentence(choice));
    this.body.replaceChildren(title, this.life, list);
    this.drawLife();
  }

  sentence(choice) {
    if (choice.state === "waiting") return `Waiting for ${WAITS[choice.waits_for] ?? "its turn"}`;
    if (choice.reason) return `${choice.state[0].toUpperCase()}${choice.state.slice(1)}: ${choice.reason}`;
    return choice.state[0].toUpperCase() + choice.state.slice(1);
  }

  *facts(card, choice) {
    yield ["Request", card.id];
    if (card.key) yield ["API key", card.key];
    yield ["Endpoint", card.endpoint + (card.stream ? ", streamed" : "")];
    if (card.choices.length > 1) yield ["Choices", `${choice.index + 1} of ${count(card.choices.length)}`];
    yield ["Arrived", `${new Date(card.created * 1000).toLocaleTimeString("en-GB")}, ${seconds(choice.age_seconds)} ${OVER.has(choice.state) ? "in all" : "ago"}`];
    if (choice.place != null) yield ["Place", count(choice.place)];
    if (choice.first_token_seconds != null) yield ["First token", `expected in ${seconds(choice.first_token_seconds)}`];
    if (choice.queued_seconds != null) yield ["Queued", seconds(choice.queued_seconds)];
    if (choice.prefill_seconds != null) yield ["Prefill", seconds(choice.prefill_seconds)];
    const cached = choice.cached_tokens;
    yield ["Prompt", `${count(choice.prompt_tokens)} tokens${cached == null ? "" : `, ${count(cached)} cached (${percent(cached / Math.max(1, choice.prompt_tokens))})`}`];
    if (choice.computed_tokens != null) yield ["Computed", `${count(choice.computed_tokens)} tokens`];
    yield ["Generated", `${count(choice.generated_tokens)} tokens`];
    if (choice.preemptions != null) yield ["Preempted", `${count(choice.preemptions)} times`];
    if (card.note) yield ["Note", card.note];
  }

  // Its phases as this page has seen them, one bar.
  drawLife() {
    const known = this.lives.requests.get(this.key);
    if (!this.life?.isConnected || !known) return;
    const width = this.body.clientWidth;
    const context = sized(this.life, width, 14);
    const [from, to] = [known.phases[0].from, known.phases[known.phases.length - 1].to];
    const scale = width / Math.max(to - from, 0.001);
    context.clearRect(0, 0, width, 14);
    const spent = new Map();
    for (const run of known.phases) {
      context.fillStyle = colour(PHASES[run.phase]);
      context.fillRect((run.from - from) * scale, 0, Math.max(1, (run.to - run.from) * scale), 14);
      spent.set(run.phase, (spent.get(run.phase) ?? 0) + run.to - run.from);
    }
    this.life.setAttribute("aria-label", [...spent].map(([phase, time]) => `${NAMES[phase]} ${seconds(time)}`).join(", "));
    this.life.title = this.life.getAttribute("aria-label");
  }
}
