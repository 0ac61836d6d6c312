// The KV pool: one cell for each block, always in the same place.

import { byId, colour, fillRows, make, setText } from "./dom.js";
import { column } from "./columns.js";
import { count, percent } from "./format.js";

const STATES = [["free", "block-free"], ["running", "block-running"], ["cached", "block-cached"], ["shared", "block-shared"]];
const ROOM = 170; // CSS pixels of height that the cells should take
const CELLS = [14, 12, 10, 8, 6, 5, 4, 3, 2];

function rgb(text) {
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = text;
  probe.fillRect(0, 0, 1, 1);
  return probe.getImageData(0, 0, 1, 1).data;
}

export class Blocks {
  constructor() {
    this.canvas = byId("blocks");
    this.data = null;
    this.legend = STATES.map(([name, swatch]) => {
      const text = make("span", "", name);
      byId("blocks-legend").append(make("span", `swatch ${swatch}`), text, " ");
      return text;
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  update(told) {
    this.data = { blocks: told.blocks, map: column(told.map, "u8") };
    this.draw();
  }

  draw() {
    if (!this.data) return;
    const { blocks, map } = this.data;
    const style = getComputedStyle(this.canvas.parentElement);
    const width = this.canvas.parentElement.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const cell = CELLS.find((size) => Math.ceil(blocks / Math.floor(width / size)) * size <= ROOM) ?? 1;
    const across = Math.max(1, Math.floor(width / cell));
    const down = Math.max(1, Math.ceil(blocks / across));
    // One pixel a block, scaled up by the browser without smoothing; lines between the cells are drawn over it where they are large.
    const image = new ImageData(across, down);
    const pixels = new Uint32Array(image.data.buffer);
    const colours = STATES.map(([, name]) => new Uint32Array(rgb(colour(name)).slice().buffer)[0]);
    const counts = [0, 0, 0, 0];
    for (let block = 0; block < blocks; block += 1) {
      const state = (map[block >> 2] >> ((block & 3) * 2)) & 3;
      counts[state] += 1;
      pixels[block] = colours[state];
    }
    this.canvas.width = across * cell;
    this.canvas.height = down * cell;
    const context = this.canvas.getContext("2d");
    createImageBitmap(image).then((bitmap) => {
      context.imageSmoothingEnabled = false;
      context.drawImage(bitmap, 0, 0, across * cell, down * cell);
      if (cell < 4) return;
      context.fillStyle = colour("panel");
      for (let x = 1; x <= across; x += 1) context.fillRect(x * cell - 1, 0, 1, down * cell);
      for (let y = 1; y <= down; y += 1) context.fillRect(0, y * cell - 1, across * cell, 1);
    });
    STATES.forEach(([name], state) => setText(this.legend[state], `${name} ${count(counts[state])}`));
  }

  tell(scene, sample) {
    const size = scene.block_size;
    const parts = [`${count(scene.blocks)} blocks of ${size} tokens`];
    if (sample?.hit_rate != null) parts.push(`prefix cache hits ${percent(sample.hit_rate)} of prompt tokens`);
    if (sample?.evicted != null) parts.push(`${count(Math.round(sample.evicted))} blocks/s evicted`);
    setText(byId("blocks-told"), scene.blocks ? parts.join(" · ") : "");
    const body = byId("branches").tBodies[0];
    const cells = ({ blocks, users }) => [count(blocks), count(blocks * size), users ? `${count(users)} ${users === 1 ? "row" : "rows"}` : "no row", percent(blocks / scene.blocks, 1)];
    byId("branches-empty").hidden = scene.branches.length > 0;
    fillRows(body, scene.branches.length, (index) => cells(scene.branches[index]), ["n", "n", "n", "n"]);
  }
}
