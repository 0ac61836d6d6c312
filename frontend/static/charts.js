// The charts of the last minutes, and the tiles of the last second. The server keeps the history; this only shows it.

import uPlot from "./uplot.js";
import { byId, colour, make, setText } from "./dom.js";
import { compact, count, percent, seconds, shortSeconds } from "./format.js";

const KEPT = 900;
const CHARTS = [
  { title: "Tokens per second", show: compact, least: 10, lines: [["generated", "decode", "generated"], ["prefilled", "prefill", "prompt"]] },
  { title: "Time to first token", show: seconds, tick: shortSeconds, least: 0.01, lines: [["first_p50", "decode", "p50"], ["first_p95", "prefill", "p95"], ["first_p99", "preempted", "p99"]] },
  { title: "Between tokens", show: seconds, tick: shortSeconds, least: 0.01, lines: [["inter_p50", "decode", "p50"], ["inter_p95", "prefill", "p95"], ["inter_p99", "preempted", "p99"]] },
  { title: "Requests", show: count, least: 4, lines: [["running", "decode", "running"], ["batch", "own", "rows/step"], ["waiting", "prefill", "waiting"]] },
  { title: "Share of the time", show: percent, top: 1, lines: [["worker_busy", "decode", "worker"], ["planning", "prefill", "planning"], ["idle", "faint", "idle"]] },
  { title: "KV memory", show: percent, top: 1, lines: [["kv_running", "block-running", "running"], ["kv_cached", "block-cached", "cached"], ["hit_rate", "block-shared", "hits"]] },
];
const TILES = [
  ["Generated", (s) => [compact(s.generated), "tokens/s"]],
  ["Running", (s) => [count(s.running), s.waiting ? `${count(s.waiting)} waiting` : "nobody waits"]],
  ["First token", (s) => [seconds(s.first_p50), `p95 ${seconds(s.first_p95)}`]],
  ["Between tokens", (s) => [seconds(s.inter_p50), `p95 ${seconds(s.inter_p95)}`]],
  ["Worker busy", (s) => [percent(s.worker_busy), `planning ${percent(s.planning, 1)}`]],
  ["KV in use", (s) => [percent(s.kv_running), `${percent(s.kv_cached)} cached`]],
];

const SPANS = new Map([[60, 20], [300, 120], [900, 300]]); // seconds between the marks
const ago = (time) => (time < 1 ? "now" : time < 120 ? `−${Math.round(time)} s` : `−${(time / 60).toFixed(time % 60 ? 1 : 0)} min`);
const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export class Charts {
  constructor() {
    this.time = [];
    this.series = {};
    this.span = 300;
    this.plots = [];
    this.grid = byId("charts");
    this.tiles = TILES.map(([title]) => {
      const tile = make("div", "tile");
      const [value, more] = [make("p", "value", "–"), make("p", "more", "")];
      tile.append(make("p", "name", title), value, more);
      byId("tiles").append(tile);
      return [value, more];
    });
    for (const button of document.querySelectorAll("[data-span]")) {
      button.addEventListener("click", () => this.choose(button));
    }
    this.note = byId("charts-note");
    this.cursor = null;
    this.grid.addEventListener("keydown", (event) => this.step(event));
    this.grid.addEventListener("blur", () => this.point(null));
    this.build();
    new ResizeObserver(() => this.resize()).observe(this.grid);
  }

  step(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -Infinity, End: Infinity };
    const shown = this.plots[0].plot.data[0];
    if (!(event.key in steps) || !shown.length) return;
    event.preventDefault();
    this.point(Math.max(0, Math.min(shown.length - 1, (this.cursor ?? shown.length - 1) + steps[event.key])));
  }

  // The cursor of all charts at a sample, or nowhere.
  point(index) {
    this.cursor = index;
    for (const { plot } of this.plots) plot.setCursor(index == null ? { left: -10, top: -10 } : { left: plot.valToPos(plot.data[0][index], "x"), top: 0 }, true, false);
  }

  choose(button) {
    this.span = Number(button.dataset.span);
    for (const other of document.querySelectorAll("[data-span]")) other.setAttribute("aria-pressed", String(other === button));
    this.draw();
  }

  history(told) {
    this.time = told.time;
    this.series = told.series;
    this.draw();
  }

  add(told) {
    if (!told.time.length || told.time[0] <= (this.time[this.time.length - 1] ?? 0)) return;
    this.time.push(told.time[0]);
    for (const [name, values] of Object.entries(told.series)) (this.series[name] ??= []).push(values[0]);
    if (this.time.length > KEPT) {
      this.time.shift();
      for (const values of Object.values(this.series)) values.shift();
    }
    this.draw();
  }

  // The newest value of each series.
  get last() {
    return Object.fromEntries(Object.entries(this.series).map(([name, values]) => [name, values[values.length - 1]]));
  }

  build() {
    for (const { plot } of this.plots) plot.destroy();
    this.grid.replaceChildren();
    this.plots = CHARTS.map((chart) => {
      const figure = make("figure", "chart");
      const caption = make("figcaption", "");
      caption.append(make("span", "title", chart.title));
      const values = chart.lines.map(([, tint, label]) => {
        const item = make("span", "item");
        const swatch = make("span", `swatch ${tint}`);
        const text = make("span", "", label);
        item.append(swatch, text);
        caption.append(item);
        return text;
      });
      const box = make("div", "plot");
      figure.append(caption, box);
      this.grid.append(figure);
      return { chart, values, box, plot: this.plot(chart, values, box) };
    });
    this.draw();
  }

  // Where the axis of time has its marks.
  ticks(now) {
    const every = SPANS.get(this.span);
    return Array.from({ length: Math.floor(this.span / every) + 1 }, (_, index) => now - index * every).reverse();
  }

  plot(chart, values, box) {
    const axis = { stroke: colour("faint"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const tell = (self) => {
      const at = self.cursor.idx ?? self.data[0].length - 1;
      chart.lines.forEach(([, , label], index) => setText(values[index], `${label} ${chart.show(self.data[index + 1][at])}`));
      setText(this.note, self.cursor.idx == null ? "" : `at ${clock(self.data[0][at])}`);
    };
    return new uPlot({
      width: Math.max(200, box.clientWidth), height: 130, pxAlign: false, legend: { show: false }, padding: [8, 14, 0, 0],
      cursor: { sync: { key: "charts" }, drag: { x: false, y: false }, points: { size: 5 }, y: false },
      scales: { x: { time: true }, y: { range: (self, low, high) => [0, chart.top ?? Math.max(high ?? 0, chart.least) * 1.1] } },
      axes: [
        { ...axis, size: 22, splits: (self, index, from, now) => this.ticks(now), values: (self, ticks) => ticks.map((tick) => ago(ticks[ticks.length - 1] - tick)) },
        { ...axis, size: 52, space: 28, values: (self, ticks) => ticks.map((tick) => (tick ? (chart.tick ?? chart.show)(tick) : "0")) },
      ],
      series: [{}, ...chart.lines.map(([, tint]) => ({ stroke: colour(tint), width: 1.5, points: { show: false }, spanGaps: false }))],
      hooks: { setCursor: [tell], setData: [tell] },
    }, [[], ...chart.lines.map(() => [])], box);
  }

  draw() {
    const now = this.time[this.time.length - 1] ?? 0;
    const from = this.time.findIndex((time) => time >= now - this.span);
    const time = this.time.slice(Math.max(0, from));
    for (const { chart, plot } of this.plots) {
      plot.setData([time, ...chart.lines.map(([name]) => (this.series[name] ?? []).slice(Math.max(0, from)))], false);
      plot.batch(() => {
        plot.setScale("x", { min: now - this.span, max: now });
        plot.setScale("y", { min: null, max: null });
      });
    }
    const { last } = this;
    TILES.forEach(([, show], index) => {
      const [value, more] = show(last);
      setText(this.tiles[index][0], value);
      setText(this.tiles[index][1], more);
    });
  }

  resize() {
    for (const { plot, box } of this.plots) if (box.clientWidth) plot.setSize({ width: box.clientWidth, height: 130 });
  }
}
