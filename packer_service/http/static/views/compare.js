// Two datasets side by side: what differs in their configurations and in every figure.

import { get } from "../api.js";
import { chart } from "../charts.js";
import { h } from "../dom.js";
import { figures, legend, shownIn } from "../figures.js";
import { binary, capital, flops, integer, percent, plural } from "../format.js";
import { colour } from "../palette.js";
import { go, href, withParams } from "../router.js";
import { card, problemBox } from "../section.js";
import { table } from "../table.js";
import { datasetChoice, offeredDatasets } from "./controls.js";
import { grid, sideBySide } from "./side.js";

/** Headings, and what the figures below each are; those of balance say so themselves. */
const SECTIONS = {
  contents: ["Contents", "What each holds, as counts."],
  lengths: ["Lengths of documents", "Tokens of a packed document."],
  padding: ["Fill and padding by cause", "Shares of all positions in packs; a point is a hundredth."],
  rejects: ["Lost", "Documents by the reason why they were rejected, and tokens that were cut off."],
  sources: ["Sources", "Shares of all real tokens; a point is a hundredth."],
  steps: [
    "Steps",
    "Straggler ratio: the most expensive pack of a step over the mean one, where 1 means no waiting. Cost: the pack at that " +
      "percentile, by each dataset's own cost model.",
  ],
  balance: ["Balance"],
  images: ["Crops of each rank"],
};
/** Sections whose figures are several measures of the same things, named `thing: measure`. */
const GRIDS = { balance: "layout", images: "images" };
const JUDGED = "The second dataset's values are green where they are better, and red where worse.";
/** Sections in which what one side does not name is nothing, and not unknown. */
const COUNTED = new Set(["rejects", "sources"]);
const SHOW = { share: (value) => percent(value, 2), ratio: (value) => value.toFixed(3), GFLOP: flops };
const GOOD = { more: 1, less: -1 };

/** The figures of both by section, in the order of the first; what only the second has follows what it follows there. */
function sections(first, second) {
  const found = new Map();
  for (const { figures } of [first, second]) {
    const before = new Map();
    for (const figure of figures) {
      const rows = found.get(figure.section) ?? [];
      const at = (name) => rows.findIndex((row) => row.name === name);
      if (at(figure.name) < 0) rows.splice(at(before.get(figure.section)) + 1, 0, figure);
      before.set(figure.section, figure.name);
      found.set(figure.section, rows);
    }
  }
  return [...found];
}

function rowsOf(section, figures) {
  const value = (side, name) => side.figures.find((each) => each.section === section && each.name === name)?.value;
  return figures.map((figure) => ({
    name: section === "padding" ? figure.name.replaceAll("_", " ") : figure.name,
    of: (side) => value(side, figure.name) ?? (COUNTED.has(section) ? 0 : null),
    show: SHOW[figure.unit] ?? integer,
    points: figure.unit === "share",
    good: GOOD[figure.better],
  }));
}

function keys(first, second) {
  const names = [...new Set([...Object.keys(first.configuration), ...Object.keys(second.configuration)])];
  const said = (value) => (value === undefined || value === null ? "none" : JSON.stringify(value).replaceAll('"', ""));
  const differ = names.filter((name) => said(first.configuration[name]) !== said(second.configuration[name]));
  return table({
    caption: "Keys of the configuration that differ",
    rows: differ,
    empty: "Both were packed with the same configuration.",
    stacked: true,
    columns: [
      { label: "Key", head: true, value: (name) => h("code", {}, name) },
      { label: first.name, className: "long", value: (name) => said(first.configuration[name]) },
      { label: second.name, className: "long", value: (name) => said(second.configuration[name]) },
    ],
  });
}

/** Lengths of the documents of both, as shares, so that a large dataset does not hide a small one. */
function lengths(details) {
  const all = details.map(({ histograms }) => histograms.document_tokens.counts.reduce((sum, count) => sum + count, 0));
  const rows = [];
  for (const [side, { histograms }] of details.entries()) {
    const { edges, counts } = histograms.document_tokens;
    counts.forEach((count, index) => {
      rows[index] ??= { from: edges[index], to: edges[index + 1], shares: [0, 0] };
      rows[index].shares[side] = count / Math.max(1, all[side]);
    });
  }
  const shown = rows.slice(Math.max(0, rows.findIndex(({ shares }) => shares.some((share) => share > 0))));
  return chart({
    title: "Lengths of documents",
    note: "The share of each dataset's documents that is so long. Each bar's range is twice as wide as the one before.",
    traces: () =>
      details.map(({ name }, side) => ({
        type: "bar",
        name,
        x: shown.map(({ from }) => binary(from)),
        y: shown.map(({ shares }) => shares[side]),
        marker: {
          color: colour(side),
          pattern: { shape: side ? "/" : "", fillmode: "overlay", fgcolor: "#000000", fgopacity: 0.3, size: 7 },
        },
        hovertemplate: `${name.replaceAll("%", "")}, from %{x} tokens: %{y:.1%}<extra></extra>`,
      })),
    layout: { barmode: "group", xaxis: { title: "tokens, at least", type: "category" }, yaxis: { tickformat: ".0%" } },
    rows: shown,
    columns: [
      { label: "From (tokens)", head: true, number: true, value: ({ from }) => integer(from) },
      ...details.map(({ name }, side) => ({ label: name, number: true, value: ({ shares }) => percent(shares[side]) })),
    ],
  });
}

/** Both in a sentence: how full they are and what they lost. */
function verdict(details) {
  const said = details.map(({ name, fill, counts: { documents, packs, rejected } }) => {
    const lost = `lost ${integer(rejected)} of ${plural(documents + rejected, "document")}`;
    return [h("strong", {}, name), ` ${packs ? `is ${percent(fill)} full` : "holds no pack"} and ${lost}`];
  });
  return h("p", { class: "verdict", "data-says": "" }, said[0], "; ", said[1], ".");
}

async function compared(names) {
  const sides = await Promise.all(names.map((name) => get(["datasets", name, "compared"])));
  const details = await Promise.all(names.map((name) => get(["datasets", name])));
  const [first, second] = sides;
  const both = `${first.name} and ${second.name}`;
  const [tables, grids] = [[], []];
  const all = await figures();
  for (const [section, rows] of sections(first, second)) {
    const [title, note] = SECTIONS[section] ?? [capital(section), both];
    const named = rowsOf(section, rows);
    if (section in GRIDS) grids.push(card(title, grid(`${legend(shownIn(all, "comparison", GRIDS[section]))} ${JUDGED}`, named, first, second)));
    else tables.push(card(title, sideBySide(note, named, first, second, names)));
  }
  return [
    verdict(details),
    h("section", { class: "card", "aria-label": "Configuration" }, keys(first, second)),
    h("section", { class: "card" }, lengths(details)),
    h("div", { class: "columns" }, tables),
    grids,
  ];
}

export async function compare(params) {
  const offered = await offeredDatasets();
  const { names } = offered;
  const usual = [...offered.filled, ...names];
  const title = [
    h("h1", {}, "Compare"),
    h("p", { class: "note" }, "Two datasets side by side: fill, padding, balance, what was lost, lengths and sources."),
  ];
  if (names.length < 2 && offered.all)
    return h("div", { class: "view" }, title, h("p", { class: "empty" }, "There are not two whole datasets to compare."));
  const first = params.get("first") || usual[0];
  const second = params.get("second") || usual.find((name) => name !== first);
  const choose = (key) => (name) => go(withParams({ [key]: name }));
  return h(
    "div",
    { class: "view" },
    title,
    h(
      "form",
      { class: "card controls", "aria-label": "What to compare", onsubmit: (event) => event.preventDefault() },
      datasetChoice("first", "First", offered, first, choose("first")),
      datasetChoice("second", "Second", offered, second, choose("second")),
      h("a", { id: "swap", class: "note", href: href(["compare"], { first: second, second: first }) }, "Swap them"),
    ),
    first && second ? await compared([first, second]).catch(problemBox) : h("p", { class: "empty" }, "Name two datasets."),
  );
}
