// Small helpers around the document. Text is only ever set as text, never parsed.

export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Each writes only what differs: a page that is redrawn four times a second must not flicker, and a
// button must still be the same one when the finger is lifted.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// Keeps one child of `parent` for each item, in order. `create(key)` makes an element, `fill(element,
// item)` brings it up to date.
export function keep(parent, items, keyOf, create, fill) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = old.get(key);
    if (element) old.delete(key);
    else {
      element = create(item);
      element.dataset.key = key;
    }
    fill(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const element of old.values()) element.remove();
}

const grouped = new Intl.NumberFormat("en");
export const count = (value) => grouped.format(Math.round(value));

export function rate(value) {
  return value >= 100 ? count(value) : value.toFixed(1);
}

export function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(part && part < whole ? 1 : 0)} %` : "–";
}

export function seconds(value) {
  if (value < 0.9995) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 100) return `${value.toFixed(1)} s`;
  return value < 6000 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
