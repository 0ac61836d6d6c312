// Numbers with units, for people. Every text of one kind has one form, so that columns align.

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

export const count = (value) => (value == null ? "–" : whole.format(value));

export function compact(value) {
  if (value == null) return "–";
  if (value < 1000) return value < 10 && value % 1 ? value.toFixed(1) : whole.format(value);
  return value < 1e6 ? `${(value / 1e3).toFixed(value < 1e4 ? 1 : 0)} k` : `${(value / 1e6).toFixed(1)} M`;
}

export function seconds(value) {
  if (value == null) return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  const all = Math.floor(value);
  return all < 3600 ? `${Math.floor(all / 60)} min ${all % 60} s` : `${Math.floor(all / 3600)} h ${Math.floor((all % 3600) / 60)} min`;
}

// Seconds on an axis: short.
export function shortSeconds(value) {
  return value < 60 ? seconds(value).replace(".0 ", " ") : `${Number((value / 60).toFixed(1))} min`;
}

export const percent = (share, digits = 0) => (share == null ? "–" : `${(share * 100).toFixed(digits)} %`);

export function bytes(value) {
  if (value == null) return "–";
  return value < 2 ** 30 ? `${(value / 2 ** 20).toFixed(0)} MiB` : `${(value / 2 ** 30).toFixed(1)} GiB`;
}
