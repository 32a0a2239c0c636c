// Elements from texts. Nothing here parses HTML, so no text can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Control characters, invisible characters and those that change the direction of text. */
const ODD = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/u;

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.setAttribute("class", value);
    else if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "open") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** An HTML element. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Replaces the children of an element. */
export function put(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** A text from outside, isolated from its surroundings. Characters that hide or reorder text are shown by their number. */
export function text(value, properties) {
  const parts = [];
  let plain = "";
  for (const character of String(value ?? "")) {
    if (!ODD.test(character)) {
      plain += character;
      continue;
    }
    parts.push(plain, h("span", { class: "odd" }, `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`));
    plain = "";
  }
  return h("bdi", properties, ...parts, plain);
}

/** A text over several lines, such as a document. */
export function lines(value) {
  const all = String(value ?? "").split("\n");
  return all.map((line, place) => [text(line.replaceAll("\t", "  ")), place + 1 < all.length ? "\n" : ""]);
}

/** Sets the text of an element, if it is another one. */
export function set(element, value) {
  if (element.textContent !== value) element.textContent = value;
}
