// The little of the DOM that the parts share. Texts go in as text: nothing that comes from the server is ever parsed as HTML.

export const byId = (id) => document.getElementById(id);

export function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Rows of a table's body, made once and filled again. `cells` gives the texts of row `index`.
export function fillRows(body, number, cells, classes) {
  while (body.rows.length > number) body.deleteRow(-1);
  for (let index = 0; index < number; index += 1) {
    const texts = cells(index);
    let row = body.rows[index];
    if (!row) {
      row = body.insertRow();
      texts.forEach((_, column) => { row.insertCell().className = classes[column] ?? ""; });
    }
    texts.forEach((text, column) => setText(row.cells[column], text));
  }
}

// A canvas of `width` x `height` CSS pixels with the screen's own resolution; gives its context, in CSS pixels.
export function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

const cache = new Map();

// A colour of the present theme by the name of its CSS variable.
export function colour(name) {
  if (!cache.has(name)) cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return cache.get(name);
}

export const forgetColours = () => cache.clear();
