// Columns as the server sends them: base64 of packed little-endian values.

const TYPES = { i32: Int32Array, i64: BigInt64Array, f32: Float32Array, u8: Uint8Array };

export function column(text, type) {
  const raw = atob(text);
  const data = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) data[at] = raw.charCodeAt(at);
  return type === "u8" ? data : new TYPES[type](data.buffer);
}

const ROWS = {
  slot: "i32", phase: "u8", prompt: "i32", length: "i32", computed: "i32", limit: "i32", cached: "i32", preemptions: "i32", age: "f32",
};

// A scene with its columns unpacked. Keys are decimal strings, "" for those of others.
export function unpackScene(scene) {
  const rows = {};
  for (const [name, type] of Object.entries(ROWS)) rows[name] = column(scene.rows[name], type);
  const text = (key) => (key === 0n ? "" : String(key));
  rows.key = Array.from(column(scene.rows.key, "i64"), text);
  rows.mine = column(scene.mine, "u8");
  const keys = Array.from(column(scene.line_key, "i64"), text);
  const waited = column(scene.waited, "f32");
  const line = scene.line.map((one, index) => ({ ...one, key: keys[index], waited: waited[index] }));
  return { ...scene, rows, line };
}
