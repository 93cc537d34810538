// Figures of two things side by side, with the difference.

import { h } from "../dom.js";
import { integer } from "../format.js";
import { table } from "../table.js";

export const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);

/** A difference with its sign: a count, or for shares the points of a hundred. */
function difference(row, before, after) {
  if (before === undefined || before === null || after === undefined || after === null || before === after) return "";
  const change = after - before;
  const sign = change > 0 ? "+" : "−";
  const size = Math.abs(change);
  const shown = row.points ? `${(100 * size).toFixed(2)} points` : row.show ? row.show(size) : integer(size);
  const better = row.good && (Math.sign(change) === row.good ? "better" : "worse");
  return h("span", { class: better }, `${sign}${shown}`, better && h("span", { class: "visually-hidden" }, ` (${better})`));
}

/**
 * Rows of `name`, `of(thing)` and perhaps `show(value)`, `title`, `good` (1 where more is better, -1 where less is) and
 * `points` (a share), for two things; for one alone where `after` is null.
 */
export function sideBySide(caption, rows, before, after, names = ["Before", "After"]) {
  const value = (row, thing) => {
    const given = row.of(thing);
    return given === undefined || given === null ? "–" : (row.show ?? integer)(given);
  };
  return table({
    caption,
    rows,
    columns: [
      { label: "Figure", head: true, className: "wraps", value: (row) => h("span", { title: row.title }, row.name) },
      { label: after ? names[0] : "Value", number: true, value: (row) => value(row, before) },
      ...(after
        ? [
            { label: names[1], number: true, value: (row) => value(row, after) },
            { label: "Change", number: true, value: (row) => difference(row, row.of(before), row.of(after)) },
          ]
        : []),
    ],
  });
}
