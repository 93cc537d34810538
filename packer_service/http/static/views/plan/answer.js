// A plan beside the one that the present configuration gives.

import { h } from "../../dom.js";
import { heading, meanOf, shown, shownIn } from "../../figures.js";
import { flops, integer, percent, plural } from "../../format.js";
import { sideBySide, total } from "../side.js";
import { table } from "../../table.js";
import { PADDING } from "../../words.js";

const largest = (answer) => Math.max(0, ...Object.keys(answer.straggler_ratio).map(Number));

/** The rows of figures; `good` says in which direction a figure gets better. */
function rows(before, after) {
  const sizes = [largest(before), largest(after)].filter(Boolean);
  const common = sizes.length === 2 ? Math.min(...sizes) : 0;
  const causes = [...new Set([...Object.keys(before.padding), ...Object.keys(after.padding)])];
  return [
    { name: "Documents packed", of: (answer) => answer.documents, good: 1 },
    { name: "Documents rejected", of: (answer) => answer.rejected, good: -1 },
    { name: "Tokens cut off", of: (answer) => total(answer.truncated_tokens), good: -1 },
    { name: "Packs", of: (answer) => answer.packs },
    { name: "Tokens of a pack", of: (answer) => answer.seq_len },
    { name: "Real tokens", of: (answer) => answer.tokens, good: 1 },
    {
      name: "Fill",
      title: "real tokens of all positions in packs",
      of: (answer) => answer.fill,
      show: (value) => percent(value, 2),
      good: 1,
      points: true,
    },
    ...causes.map((cause) => ({
      name: `Padding: ${cause.replace("_", " ")}`,
      title: PADDING[cause],
      of: (answer) => answer.padding[cause] ?? 0,
    })),
    { name: "Packs that tokens need", title: "the least for the tokens alone", of: (answer) => answer.packs_for_tokens },
    { name: "Packs that crops need", of: (answer) => answer.packs_for_images },
    { name: "Packs that patches need", of: (answer) => answer.packs_for_patches },
    common && {
      name: `Straggler ratio at ${integer(common)}`,
      title: "the most expensive pack of a step over the mean one, at so many data-parallel ranks; 1 means no waiting",
      of: (answer) => answer.straggler_ratio[common],
      show: (value) => value.toFixed(4),
      good: -1,
    },
    {
      name: "Cost of the median pack",
      title: "by the cost model: attention, linear layers and vision",
      of: (answer) => answer.cost_percentiles["50"],
      show: flops,
    },
  ].filter(Boolean);
}

/** Means of the layouts that both have, or one of them; of the first alone where `after` is null. */
function balanced(before, after, measures) {
  const answers = [before, after].filter(Boolean);
  const entries = (answer) => Object.values(answer.balance).flatMap(Object.values);
  const name = (entry) => `${entry.layout} ${entry.ring_degree}`;
  const places = new Map(answers.flatMap(entries).map((entry) => [name(entry), entry]));
  const find = (answer, place) => entries(answer).find((entry) => name(entry) === name(place));
  const cell = (answer, figure) => ({
    number: true,
    value: (place) => {
      const entry = find(answer, place);
      return shown(figure, entry ? meanOf(figure, entry) : null);
    },
  });
  const pair = (figure) => [
    { label: after ? `${heading(figure)}, before` : heading(figure), ...cell(before, figure) },
    ...(after ? [{ label: "after", ...cell(after, figure) }] : []),
  ];
  const looked = after
    ? `${plural(before.balanced_packs, "pack")} before and ${integer(after.balanced_packs)} after`
    : plural(before.balanced_packs, "pack");
  return table({
    caption: `Balance: means over ${looked}, spread evenly over the plan; paths as multiples of the tile floor, where 1 is perfect`,
    rows: [...places.values()].filter((place) => place.ring_degree > 1),
    empty: "No pack to balance on a ring.",
    columns: [
      { label: "Layout", head: true, value: (place) => place.layout },
      { label: "Ring degree", number: true, value: (place) => place.ring_degree },
      ...measures.flatMap(pair),
    ],
  });
}

/** What is lost, by reason or source: counts before and after. */
function losses(caption, of, before, after) {
  const names = [...new Set([...Object.keys(of(before)), ...Object.keys(of(after))])].sort();
  if (!names.length) return null;
  return sideBySide(
    caption,
    names.map((name) => ({ name, of: (answer) => of(answer)[name] ?? 0, good: -1 })),
    before,
    after,
  );
}

const said = (answer) =>
  `${plural(answer.documents, "document")} in ${plural(answer.packs, "pack")} of ${integer(answer.seq_len)} tokens, ` +
  `${percent(answer.fill)} of them real; ${integer(answer.rejected)} rejected, ${integer(total(answer.truncated_tokens))} tokens cut off`;

/** The cards of an answer. Without a change, `after` is null. */
export function answered(before, after, stays, all) {
  const now = after ?? before;
  return h(
    "div",
    { class: "view" },
    h("p", { class: "verdict" }, after ? `With this configuration: ${said(after)}. Before: ${said(before)}.` : `As it is: ${said(before)}.`),
    stays && h("p", { class: "note" }, stays),
    sideBySide("Figures", rows(before, now), before, after),
    losses("Rejected documents by reason", (answer) => answer.rejects, before, after ?? before),
    losses("Tokens cut off by source", (answer) => answer.truncated_tokens, before, after ?? before),
    balanced(before, after, shownIn(all, "comparison", "layout")),
  );
}
