// Small helpers for elements. Nothing here makes HTML of texts: texts are texts.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element: attributes, then children (elements and texts; null is left out). "on..." attributes are listeners. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Likewise of SVG. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets a text, only where it differs: a screen reader hears of changes alone. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/** Makes the children of an element those of `items`, by key: one that stays keeps its element, and so focus and selection. */
export function keyed(parent, items, key, make, update) {
  const known = new Map(Array.from(parent.children, (child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const name = String(key(item));
    let child = known.get(name);
    known.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
    update?.(child, item);
  });
  for (const child of known.values()) child.remove();
}

/** A table by its columns: {name, of(item) -> text or element, kind(item) -> class, row: whether it names the row, once: whether its
 * element stays, so that it keeps the focus}. */
export function table(element, columns, items, key, caption) {
  const names = columns.map((column) => column.name).join("\u0000");
  if (element.dataset.columns !== names) {
    element.dataset.columns = names;
    element.replaceChildren(
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.left ? "text" : null }, column.name)))),
      h("tbody"),
    );
  }
  if (caption) text(element.caption ?? element.createCaption(), caption);
  else element.deleteCaption();
  const cell = (column) => h(column.row ? "th" : "td", { scope: column.row ? "row" : null, class: column.class ?? null });
  keyed(element.tBodies[0], items, key, () => h("tr", {}, columns.map(cell)), (row, item) => {
    columns.forEach((column, index) => {
      const here = row.children[index];
      if (column.once && here.hasChildNodes()) return;
      const value = column.of(item);
      if (typeof value === "string") text(here, value);
      else here.replaceChildren(value);
      if (column.kind) here.className = [column.class, column.kind(item)].filter(Boolean).join(" ");
    });
  });
}

/** Facts as a list of terms. `pairs`: [term, text]. */
export function facts(element, pairs) {
  element.classList.add("facts");
  keyed(element, pairs.flatMap(([term, value]) => [{ tag: "dt", term, value: term }, { tag: "dd", term, value }]),
    (one) => `${one.tag} ${one.term}`, (one) => h(one.tag), (child, one) => text(child, one.value));
}
