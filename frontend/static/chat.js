// A conversation with the model, token by token. Each token is shaded by its probability when one looks.

import { byId, make, setText } from "./dom.js";
import { percent, seconds } from "./format.js";
import { eventsOf, refusalOf } from "./stream.js";

const ALTERNATIVES = 4;
const FIELDS = { temperature: Number, top_p: Number, max_tokens: Number, seed: Number };

const visible = (text) => `“${text.replaceAll("\n", "⏎").replaceAll("\t", "⇥")}”`;

export class Chat {
  constructor({ model, headers, own }) {
    this.model = model;
    this.headers = headers;
    this.own = own;
    this.messages = [];
    this.talk = byId("talk");
    this.told = byId("chat-told");
    this.input = byId("message");
    this.send = byId("send");
    this.abort = null;
    byId("chat").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.abort) this.abort.abort();
      else this.ask();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.abort) this.ask();
      }
    });
    byId("clear").addEventListener("click", () => this.clear());
    byId("shade").addEventListener("click", (event) => {
      const on = this.talk.classList.toggle("shaded");
      event.currentTarget.setAttribute("aria-pressed", String(on));
    });
    this.talk.addEventListener("pointerover", (event) => this.look(event.target));
    this.talk.addEventListener("keydown", (event) => this.step(event));
    this.talk.addEventListener("blur", () => this.at?.classList.remove("looked"));
    this.at = null;
  }

  // The token before or after the one that is looked at, of all answers.
  step(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    const tokens = [...this.talk.querySelectorAll(".token")];
    if (!(event.key in steps) || !tokens.length) return;
    event.preventDefault();
    const now = tokens.indexOf(this.at);
    this.at?.classList.remove("looked");
    this.at = tokens[now < 0 ? (steps[event.key] > 0 ? 0 : tokens.length - 1) : Math.max(0, Math.min(tokens.length - 1, now + steps[event.key]))];
    this.at.classList.add("looked");
    this.at.scrollIntoView({ block: "nearest" });
    this.look(this.at);
  }

  clear() {
    this.abort?.abort();
    this.messages = [];
    this.talk.replaceChildren(make("p", "empty", "Ask something; the lane of your request is marked above."));
    setText(this.told, "");
  }

  look(element) {
    if (element.told) setText(this.told, element.told);
  }

  body() {
    const fields = {};
    for (const [name, kind] of Object.entries(FIELDS)) {
      const { value } = byId(name);
      if (value !== "") fields[name] = kind(value);
    }
    return { model: this.model(), messages: this.messages, stream: true, logprobs: true, top_logprobs: ALTERNATIVES, ...fields };
  }

  async ask() {
    const text = this.input.value.trim();
    if (!text) return;
    if (!this.messages.length) this.talk.replaceChildren();
    this.input.value = "";
    const { messages } = this; // another list once the talk is cleared
    messages.push({ role: "user", content: text });
    this.talk.append(make("p", "said user", text));
    const answer = make("p", "said answer");
    this.talk.append(answer);
    this.abort = new AbortController();
    setText(this.send, "Stop");
    try {
      await this.stream(answer);
    } catch (error) {
      if (error.name === "AbortError") answer.append(make("span", "aside", " stopped"));
      else answer.append(make("span", "aside problem", error.message));
    }
    if (answer.said) messages.push({ role: "assistant", content: answer.said });
    else messages.pop();
    this.abort = null;
    this.own.clear();
    setText(this.send, "Send");
  }

  async stream(answer) {
    const began = performance.now();
    const request = { method: "POST", body: JSON.stringify(this.body()), signal: this.abort.signal };
    const response = await fetch("/v1/chat/completions", { ...request, headers: { "Content-Type": "application/json", ...this.headers() } });
    if (!response.ok) throw await refusalOf(response);
    answer.said = "";
    let first = 0;
    this.tokens = 0;
    this.begun = false;
    let named = false;
    let reason = "";
    for await (const [, data] of eventsOf(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (!named && chunk.id) {
        named = true;
        this.find(chunk.id);
      }
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      reason = choice.finish_reason ?? reason;
      const entries = choice.logprobs?.content ?? [];
      this.tokens += entries.length;
      if (entries.length && !first) first = performance.now();
      const { content, reasoning_content: thought } = choice.delta ?? {};
      this.begun ||= Boolean(content || thought || entries.length);
      this.write(answer, content ?? "", thought ?? "", entries);
      const { tokens } = this;
      if (!tokens) continue;
      const took = (performance.now() - began) / 1000;
      const rate = tokens > 1 ? `, ${((tokens - 1) / Math.max(0.001, (performance.now() - first) / 1000)).toFixed(1)} tokens/s` : "";
      setText(this.told, `${tokens} tokens in ${seconds(took)}${first ? `, the first after ${seconds((first - began) / 1000)}` : ""}${rate}${reason ? `, ended by ${reason}` : ""}`);
    }
  }

  // Text arrives whole characters at a time, tokens may be parts of them: an event's text goes to its last token. What it thought before is not said again.
  write(answer, text, thought, entries) {
    if (!text && !thought && !entries.length) return;
    answer.said += text;
    const near = this.talk.scrollHeight - this.talk.scrollTop - this.talk.clientHeight < 40;
    const all = thought + text;
    const pieces = entries.map((entry) => entry.token);
    const split = pieces.join("") === all ? pieces : [...pieces.slice(0, -1).map(() => ""), all];
    const spans = entries.length ? entries.map((entry, index) => this.token(split[index], entry)) : [make("span", "", all)];
    if (thought) spans.forEach((span) => span.classList.add("thought"));
    answer.append(...spans);
    if (near) this.talk.scrollTop = this.talk.scrollHeight;
  }

  token(text, entry) {
    const share = Math.exp(entry.logprob);
    const element = make("span", `token p${Math.min(9, Math.floor(share * 10))}`, text);
    const others = (entry.top_logprobs ?? []).filter((one) => one.token !== entry.token).map((one) => `${visible(one.token)} ${percent(Math.exp(one.logprob), 1)}`);
    element.told = `${visible(entry.token)} ${percent(share, 1)}${others.length ? `; else ${others.join(", ")}` : ""}`;
    return element;
  }

  // Before its first token: where it stands.
  update(scene) {
    if (!this.abort || this.begun) return;
    const one = scene.line.find(({ key }) => this.own.has(key));
    if (one) setText(this.told, `Waiting at place ${one.place}${one.first_token_seconds == null ? "" : `; the first token is expected in ${seconds(one.first_token_seconds)}`}`);
  }

  // Which sequence it is, so that its lane can be marked.
  async find(id) {
    const response = await fetch(`/v1/requests/${encodeURIComponent(id)}`, { headers: this.headers() }).catch(() => null);
    const card = response?.ok ? await response.json() : null;
    for (const choice of card?.choices ?? []) if (choice.sequence) this.own.add(choice.sequence);
  }
}
