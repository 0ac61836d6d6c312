// The page: connects the stream of events to its parts.

import { Blocks } from "./blocks.js";
import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { unpackScene } from "./columns.js";
import { Detail } from "./detail.js";
import { byId, forgetColours, setText } from "./dom.js";
import { Lanes } from "./lanes.js";
import { Lives } from "./lives.js";
import { Processes } from "./processes.js";
import { Queue } from "./queue.js";
import { Stream } from "./stream.js";

const KEY = "pagewire-key";
const THEME = "pagewire-theme";
const THEMES = ["system", "light", "dark"];

const headers = () => {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
};

const lives = new Lives();
const detail = new Detail(headers);
let chosen = "";
let model = "";
let about = [];
let held = false;

// What is served: another model after a reload.
function served(name) {
  if (name === model) return;
  model = name;
  document.title = `${name} – Pagewire`;
  setText(byId("model"), [name, ...about].join(" · "));
}

function choose(key) {
  chosen = key;
  detail.show(key);
  lanes.mark(key);
}

applyTheme(localStorage.getItem(THEME) ?? "system");
const lanes = new Lanes(lives, choose);
const queue = new Queue(choose);
const blocks = new Blocks();
const charts = new Charts();
const processes = new Processes(headers);
const chat = new Chat({ model: () => model, headers, own: lanes.own });

const parts = {
  hello(told) {
    about = [`version ${told.version}`, ...(told.keys ? [told.admin ? "administrator" : "your requests only"] : [])];
    model = "";
    served(told.model);
    byId("key").hidden = !told.keys;
    byId("drain").hidden = !(told.keys && told.admin);
    processes.admin = told.admin;
  },
  history: (told) => charts.history(told),
  sample: (told) => { if (!held) charts.add(told); },
  processes(told) {
    served(told.model);
    if (!held) processes.update(told);
  },
  blocks: (told) => { if (!held) blocks.update(told); },
  scene(told) {
    if (held) return;
    const scene = unpackScene(told);
    lives.update(scene);
    lanes.update(scene);
    queue.update(scene, chosen, lanes.own);
    chat.update(scene);
    blocks.tell(scene, charts.last);
    detail.update(performance.now() / 1000);
  },
};

const stream = new Stream({
  headers,
  on: (name, data) => parts[name]?.(data),
  told(state, text) {
    const element = byId("state");
    element.className = `state ${state}`;
    setText(element, text);
    if (state === "locked") askKey();
  },
});

function askKey() {
  const dialog = byId("ask");
  if (!dialog.open) dialog.showModal();
}

byId("key").addEventListener("click", askKey);
byId("ask").addEventListener("close", () => {
  const field = byId("ask-key");
  if (byId("ask").returnValue === "use") {
    if (field.value.trim()) sessionStorage.setItem(KEY, field.value.trim());
    else sessionStorage.removeItem(KEY);
    lives.reset();
    chat.clear();
    stream.restart();
  }
  field.value = "";
});
// Enter in the field uses the key: the first button of a form would be Cancel.
byId("ask-key").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  byId("ask").close("use");
});

byId("hold").addEventListener("click", (event) => {
  held = !held;
  event.currentTarget.setAttribute("aria-pressed", String(held));
  setText(event.currentTarget, held ? "Resume" : "Pause");
});

function applyTheme(name) {
  document.documentElement.dataset.theme = name;
  setText(byId("theme"), `Theme: ${name}`);
  forgetColours();
}

function redraw() {
  forgetColours();
  charts.build();
  lanes.draw();
  blocks.draw();
  detail.redraw();
}

byId("theme").addEventListener("click", () => {
  const name = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem(THEME, name);
  applyTheme(name);
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

// A page in the background is not looked at: the server need not make anything for it.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stream.abort.abort();
  else stream.restart();
});
stream.restart();
