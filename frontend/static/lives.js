// What the page has seen of each request: where it ran and when, so that a preemption can be shown after it has happened.

export const KEPT_SECONDS = 60;
const FREE = 0;

export class Lives {
  constructor() {
    this.reset();
  }

  reset() {
    this.lanes = []; // by slot: runs of {from, to, phase, key}, oldest first
    this.marks = []; // preemptions: {slot, time, key}
    this.requests = new Map(); // by key: {slot, preemptions, seen}
    this.time = 0;
  }

  update(scene) {
    if (scene.slots !== this.lanes.length || scene.time < this.time) {
      this.reset();
      this.lanes = Array.from({ length: scene.slots }, () => []);
    }
    // Over a gap (a paused tab, a restart) nothing is known: lanes begin anew there.
    const from = scene.time - this.time > 2 ? scene.time - 0.2 : this.time;
    this.time = scene.time;
    const { slot, phase, key, preemptions } = scene.rows;
    const now = new Array(scene.slots).fill(-1);
    for (let row = 0; row < slot.length; row += 1) now[slot[row]] = row;
    for (let lane = 0; lane < scene.slots; lane += 1) {
      const row = now[lane];
      this.extend(this.lanes[lane], from, row < 0 ? FREE : phase[row], row < 0 ? "" : key[row]);
    }
    for (let row = 0; row < slot.length; row += 1) this.note(key[row], slot[row], preemptions[row]);
    for (const one of scene.line) if (one.key) this.note(one.key, -1, one.preemptions ?? 0);
    this.forget();
  }

  extend(runs, from, phase, key) {
    const last = runs[runs.length - 1];
    if (last && last.phase === phase && last.key === key && from - last.to < 0.001) last.to = this.time;
    else {
      // Requests that follow each other in a lane have two shades in turn.
      const odd = last ? (last.key === key ? last.odd : !last.odd) : false;
      runs.push({ from, to: this.time, phase, key, odd });
    }
    while (runs.length && runs[0].to < this.time - KEPT_SECONDS) runs.shift();
  }

  note(key, slot, preemptions) {
    if (!key) return;
    const known = this.requests.get(key);
    if (!known) {
      this.requests.set(key, { slot, preemptions, seen: this.time });
      return;
    }
    if (preemptions > known.preemptions && known.slot >= 0) this.marks.push({ slot: known.slot, time: this.time, key });
    known.preemptions = preemptions;
    if (slot >= 0) known.slot = slot;
    known.seen = this.time;
  }

  forget() {
    this.marks = this.marks.filter((mark) => mark.time > this.time - KEPT_SECONDS);
    for (const [key, known] of this.requests) if (known.seen < this.time - KEPT_SECONDS) this.requests.delete(key);
  }

  // The key of the request that ran at a time, or of the last one before.
  near(slot, time) {
    return this.at(slot, time)?.key || this.lanes[slot]?.findLast((run) => run.key && run.from <= time)?.key || "";
  }

  // The run of a lane at a time, if there is one.
  at(slot, time) {
    return this.lanes[slot]?.find((run) => run.from <= time && time <= run.to);
  }
}
