// Figures of two things side by side, with the difference.

import { h } from "../dom.js";
import { capital, integer } from "../format.js";
import { table } from "../table.js";

export const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);

/** A difference with its sign: a count, or for shares the points of a hundred. */
function difference(row, before, after) {
  if (before === undefined || before === null || after === undefined || after === null || before === after) return "";
  const change = after - before;
  const zero = (row.show ?? integer)(0);
  if (!row.points && (row.show ?? integer)(Math.abs(change)) === zero) return "±0";
  if (row.points && Math.abs(100 * change) < 0.005) return "±0";
  const sign = change > 0 ? "+" : "−";
  const size = Math.abs(change);
  const shown = row.points ? `${(100 * size).toFixed(2)} points` : row.show ? row.show(size) : integer(size);
  const better = row.good && (Math.sign(change) === row.good ? "better" : "worse");
  return h("span", { class: better }, `${sign}${shown}`, better && h("span", { class: "visually-hidden" }, ` (${better})`));
}

/**
 * Rows of `name`, `of(thing)` and perhaps `show(value)`, `title` (what it means), `good` (1 where more is better, -1 where less is) and
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
      { label: "Figure", head: true, className: "wraps", value: (row) => [row.name, row.title && h("small", { class: "note meaning" }, row.title)] },
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

/** A value of the second dataset, in the colour of what it is beside that of the first. */
function judged(row, first, second) {
  const [before, after] = [row.of(first), row.of(second)];
  if (after === null) return "–";
  const differ = before !== null && row.show(before) !== row.show(after);
  const better = row.good && differ && (after > before === row.good > 0 ? "better" : "worse");
  return h("span", { class: better || null }, row.show(after), better && h("span", { class: "visually-hidden" }, ` (${better})`));
}

/**
 * Measures of the same things as one table: a row for each thing, and two columns for each measure. Rows are those of
 * `sideBySide`, named `thing: measure`.
 */
export function grid(caption, rows, first, second) {
  const things = new Map();
  for (const row of rows) {
    const [thing, measure] = row.name.split(": ");
    things.set(thing, (things.get(thing) ?? new Map()).set(measure, row));
  }
  const measures = [...new Set(rows.map(({ name }) => name.split(": ")[1]))];
  const column = (measure, side, value) => ({
    label: `${capital(measure)}, ${side.name}`,
    number: true,
    value: ([, measured]) => (measured.has(measure) ? value(measured.get(measure)) : "–"),
  });
  const plain = (row) => (row.of(first) === null ? "–" : row.show(row.of(first)));
  return table({
    caption,
    rows: [...things],
    className: "grid",
    columns: [
      { label: "At", head: true, value: ([thing]) => thing },
      ...measures.flatMap((measure) => [column(measure, first, plain), column(measure, second, (row) => judged(row, first, second))]),
    ],
  });
}
