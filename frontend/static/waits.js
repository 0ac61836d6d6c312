// What a request in the line waits for, in words.

export const WAITS = {
  turn: "others before it", slot: "a free slot", blocks: "KV blocks", tokens: "room in a step", prefix: "its prefix, being computed", worker: "the worker",
};
