// Figures of balance as the service names them: what each is called, what it means, and where answers have it.

import { get } from "./api.js";
import { capital, mean, percent } from "./format.js";

export const figures = () => get(["figures"]);

/** Those of layouts or of images that a place shows. */
export const shownIn = (all, place, of) => all.filter((figure) => figure.of === of && figure.where.includes(place));
/** Those of both that packs and shards are sorted by. */
export const sortable = (all) => all.filter(({ worst, where }) => worst && where.includes("page"));
/** Its name in lists of shards. */
export const ofShard = ({ key, of_shard: other }) => other || key;

export const heading = ({ label }) => capital(label);
/** What the columns of a table mean. */
export const legend = (list) => list.map((figure) => `${heading(figure)}: ${figure.explain}.`).join(" ");

/** Mean, 95% and worst pack in an entry of an answer; undefined where a figure has a single value. */
export function spread({ key, kind }, entry) {
  if (kind === "loads") return entry[key].imbalance;
  return kind === "spread" ? entry[key] : undefined;
}

/** What an entry says of all packs together. */
export const meanOf = (figure, entry) => (spread(figure, entry) ? spread(figure, entry).mean : entry[figure.key]);

export function shown({ unit }, value) {
  if (value === null) return "–";
  return { share: percent, ratio: (number) => number.toFixed(3) }[unit]?.(value) ?? mean(value);
}
