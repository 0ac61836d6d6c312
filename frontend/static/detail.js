// One request: where it is, its numbers and its life, asked of the server once a second while it goes on.

import { byId, make, setText } from "./dom.js";
import { count, percent, seconds } from "./format.js";
import { Life } from "./life.js";
import { Refused, refusalOf } from "./stream.js";
import { WAITS } from "./waits.js";

const EVERY_SECONDS = 1;
const OVER = new Set(["finished", "cancelled", "error"]);
const NOTHING = "Choose a lane or a line of the queue.";

export class Detail {
  constructor(headers) {
    this.headers = headers;
    this.body = byId("detail-body");
    this.button = byId("cancel");
    this.empty = byId("detail-empty");
    this.title = byId("detail-what");
    this.list = byId("detail-facts");
    this.life = new Life(byId("detail-life"));
    this.name = "";
    this.key = "";
    this.asked = 0;
    this.card = null;
    this.button.addEventListener("click", () => this.cancel());
    new ResizeObserver(() => this.redraw()).observe(byId("detail"));
  }

  // Another theme, or width.
  redraw() {
    if (this.card) this.draw();
  }

  // `key` names a sequence that runs; the request's own id takes its place once it is known, for a sequence is forgotten at its end.
  show(key) {
    this.key = key;
    this.name = key;
    this.card = null;
    this.index = 0;
    this.tell("Asking…");
    this.ask();
  }

  update(now) {
    if (this.name && now - this.asked >= EVERY_SECONDS && !(this.card && OVER.has(this.card.state))) this.ask();
  }

  async ask() {
    const { name } = this;
    this.asked = performance.now() / 1000;
    try {
      const response = await fetch(`/v1/requests/${encodeURIComponent(name)}?life=true`, { headers: this.headers() });
      if (!response.ok) throw await refusalOf(response);
      const card = await response.json();
      if (name !== this.name) return;
      this.card = card;
      this.name = card.id;
      this.draw();
    } catch (error) {
      const gone = error instanceof Refused && error.status === 404;
      if (name !== this.name || (this.card && !gone)) return;
      this.name = "";
      this.card = null;
      this.tell(error.message);
    }
  }

  async cancel() {
    const path = `/v1/requests/${encodeURIComponent(this.name)}`;
    this.button.disabled = true;
    await fetch(path, { method: "DELETE", headers: this.headers() }).catch(() => null);
    this.button.disabled = false;
    if (this.name) await this.ask();
  }

  // A sentence, and no request.
  tell(text) {
    this.body.hidden = true;
    this.button.hidden = true;
    this.empty.hidden = false;
    setText(this.empty, text || NOTHING);
  }

  draw() {
    const { card } = this;
    // A choice gets another number when it is sent again, after the scheduler's death: it is the one of the same place then.
    const choice = card.choices.find((one) => one.sequence === this.key) ?? card.choices.find((one) => one.index === this.index) ?? card.choices[0];
    this.index = choice.index;
    this.body.hidden = false;
    this.empty.hidden = true;
    this.button.hidden = OVER.has(card.state);
    this.title.className = `what ${choice.state}`;
    setText(this.title, this.sentence(choice));
    this.list.replaceChildren(...this.facts(card, choice).flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
    this.life.show(choice);
  }

  sentence(choice) {
    if (choice.state === "waiting") return `Waiting for ${WAITS[choice.waits_for] ?? "its turn"}`;
    const state = choice.state[0].toUpperCase() + choice.state.slice(1);
    return choice.reason ? `${state}: ${choice.reason}` : state;
  }

  facts(card, choice) {
    const over = OVER.has(choice.state);
    const cached = choice.cached_tokens;
    const share = cached == null ? "" : `, ${count(cached)} cached (${percent(cached / Math.max(1, choice.prompt_tokens))})`;
    const times = choice.preemptions === 1 ? "once" : `${count(choice.preemptions)} times`;
    return [
      ["Request", card.id],
      card.key && ["API key", card.key],
      ["Endpoint", card.endpoint + (card.stream ? ", streamed" : "")],
      card.choices.length > 1 && ["Choice", `${choice.index + 1} of ${count(card.choices.length)}`],
      ["Arrived", `${new Date(card.created * 1000).toLocaleTimeString("en-GB")}, ${seconds(choice.age_seconds)} ${over ? "in all" : "ago"}`],
      choice.place != null && ["Place", count(choice.place)],
      choice.start_seconds != null && ["Start", `expected in ${seconds(choice.start_seconds)}`],
      choice.first_token_seconds != null && ["First token", `expected in ${seconds(choice.first_token_seconds)}`],
      choice.queued_seconds != null && ["First token", `after ${seconds(choice.queued_seconds)} in the queue and ${seconds(choice.prefill_seconds)} of prefill`],
      ["Prompt", `${count(choice.prompt_tokens)} tokens${share}`],
      ["Generated", `${count(choice.generated_tokens)} tokens`],
      choice.preemptions ? ["Preempted", times] : null,
      card.note && ["Note", card.note],
    ].filter(Boolean);
  }
}
