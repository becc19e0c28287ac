// Elements are made by calls, never from markup: a text can only become a text.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `on` holds listeners, `data` the dataset; null and false leave an attribute out. */
export function el(tag, { on = {}, data = {}, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  set(node, attributes);
  Object.assign(node.dataset, data);
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  set(node, attributes);
  node.append(...children);
  return node;
}

export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : value);
  }
}

export const byId = (id) => document.getElementById(id);

const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "M5 12.500l4.500 4.500L19 7.500",
  edit: "M4 20h4L19 9l-4-4L4 16zM13.500 6.500l4 4",
  again: "M19 12a7 7 0 1 1-2.100-5M19 4v4.500h-4.500",
  more: "M6 5l7 7-7 7M13 5l7 7-7 7",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  sliders: "M4 7h9M19 7h1M16 4.500v5M4 17h1M11 17h9M8 14.500v5M4 12h3M13 12h7M10 9.500v5",
  tokens: "M4 6h6v5H4zM13 6h7v5h-7zM4 14h9v5H4zM16 14h4v5h-4z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v2M12 19v2M3 12h2M19 12h2M5.600 5.600L7 7M17 17l1.400 1.400M18.400 5.600L17 7M7 17l-1.400 1.400",
  moon: "M19 14.500A7.500 7.500 0 0 1 9.500 5a7.500 7.500 0 1 0 9.500 9.500z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15 9.500h.01",
  close: "M6 6l12 12M18 6L6 18",
};

export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: "glyph" }, svg("path", { d: ICONS[name] }));
}

/** A button that shows an icon; its label is read out and shown as a hint. */
export function iconButton(name, label, click, extra = {}) {
  return el("button", { type: "button", class: "icon", "aria-label": label, title: label, on: { click }, ...extra }, icon(name));
}

/** Copy a text; shows at the button that it worked, or that the browser doesn't allow it. */
export async function copyText(text, button) {
  const before = [...button.childNodes];
  try {
    await navigator.clipboard.writeText(text);
    button.replaceChildren(icon("check"));
  } catch {
    if (copySelected(text)) button.replaceChildren(icon("check"));
    else button.replaceChildren("not allowed");
  }
  setTimeout(() => button.replaceChildren(...before), 1200);
}

// For a page that doesn't come over HTTPS or from this machine: there is no clipboard interface there.
function copySelected(text) {
  const area = el("textarea", { class: "hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
