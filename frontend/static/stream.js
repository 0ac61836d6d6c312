// The stream of events, over fetch: an EventSource cannot send a key.

const PAUSES = [0.5, 1, 2, 4, 8];
const SILENT_SECONDS = 5; // something comes every second

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function refusalOf(response) {
  const body = await response.json().catch(() => null);
  return new Refused(response.status, body?.error?.message ?? `The server answered ${response.status}.`);
}

// Gives the [name, data] of each event of a response.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        let name = "message";
        let data = "";
        for (const line of part.split("\n")) {
          if (line.startsWith("event: ")) name = line.slice(7);
          else if (line.startsWith("data: ")) data += line.slice(6);
        }
        if (data) yield [name, data];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Follows /live/events for ever. `headers()` has the key; `on(name, data)` gets each event, `told(state, text)` what becomes of the connection.
export class Stream {
  constructor({ headers, on, told }) {
    this.headers = headers;
    this.on = on;
    this.told = told;
    this.tries = 0;
    this.abort = new AbortController();
  }

  restart() {
    this.abort.abort();
    clearTimeout(this.silence);
    this.abort = new AbortController();
    this.tries = 0;
    this.run(this.abort.signal);
  }

  // A frozen server, or a network that is gone, ends no stream: a picture that stands still must not look live.
  heard() {
    clearTimeout(this.silence);
    this.told("live", "live");
    this.silence = setTimeout(() => this.told("lost", "the server is silent"), SILENT_SECONDS * 1000);
  }

  async run(signal) {
    while (!signal.aborted) {
      try {
        const response = await fetch("/live/events", { headers: this.headers(), signal, cache: "no-store" });
        if (!response.ok) throw await refusalOf(response);
        this.heard();
        for await (const [name, data] of eventsOf(response)) {
          this.tries = 0;
          this.heard();
          this.on(name, JSON.parse(data));
        }
      } catch (error) {
        if (signal.aborted) return;
        clearTimeout(this.silence);
        if (error instanceof Refused && error.status === 401) {
          this.told("locked", "needs an API key");
          return;
        }
        this.told("lost", error instanceof Refused ? error.message : "the server cannot be reached");
      }
      const pause = PAUSES[Math.min(this.tries, PAUSES.length - 1)];
      this.tries += 1;
      await new Promise((done) => { setTimeout(done, pause * 1000); });
    }
  }
}
