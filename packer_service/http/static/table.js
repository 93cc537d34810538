// Tables with captions, that scroll inside themselves on a narrow screen.

import { h } from "./dom.js";

/** A scrolling box is reached by keyboard, but only while there is something to scroll. */
function scrolling(content, label) {
  const box = h("div", { class: "scroll" }, content);
  new ResizeObserver(() => {
    const overflows = box.scrollWidth > box.clientWidth;
    for (const [name, value] of Object.entries({ tabindex: "0", role: "region", "aria-label": label })) {
      if (overflows) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  }).observe(box);
  return box;
}

/**
 * A table of rows. A column has `label`, `value(row)` (text or element) and may have `number` (right-aligned), `head`
 * (the row's name), `className`, `href` with `id` (an address for its header, to sort by it) and `sorted`
 * (`ascending` or `descending`). With `stacked`, each row is a card of its own on a phone, where many columns or long
 * texts would have to be scrolled.
 */
export function table({ caption, columns, rows, empty = "Nothing here.", rowClass = () => null, className = null, stacked = false }) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const head = columns.map((column) =>
    h(
      "th",
      { scope: "col", class: column.number && "number", "aria-sort": column.sorted },
      column.href
        ? h(
            "a",
            { href: column.href, id: column.id },
            column.label,
            column.sorted ? (column.sorted === "ascending" ? " ↑" : " ↓") : "",
          )
        : column.label,
    ),
  );
  const cell = (column, row) => {
    const value = column.value(row);
    const classes = [column.number && "number", column.className, value === "–" && "absent"].filter(Boolean);
    return h(
      column.head ? "th" : "td",
      { class: classes.join(" ") || null, scope: column.head && "row", "data-label": stacked && column.label },
      value,
    );
  };
  const body = rows.map((row) => h("tr", { class: rowClass(row) }, ...columns.map((column) => cell(column, row))));
  const whole = h(
    "table",
    { class: [className ?? (columns.length < 3 && "narrow"), stacked && "stacked"].filter(Boolean).join(" ") || null },
    h("caption", {}, h("span", {}, caption)),
    h("thead", {}, h("tr", {}, head)),
    h("tbody", {}, body),
  );
  return scrolling(whole, caption);
}
