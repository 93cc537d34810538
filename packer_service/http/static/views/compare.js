// Two datasets side by side: what differs in their configurations and in every figure.

import { get } from "../api.js";
import { chart } from "../charts.js";
import { h } from "../dom.js";
import { binary, integer, percent, plural } from "../format.js";
import { colour } from "../palette.js";
import { href } from "../router.js";
import { card } from "../section.js";
import { table } from "../table.js";
import { choice } from "./controls.js";
import { sideBySide } from "./side.js";

const SECTIONS = {
  contents: "Contents",
  lengths: "Lengths of documents",
  padding: "Fill and padding by cause",
  rejects: "Lost",
  sources: "Sources",
  steps: "Steps",
  balance: "Balance, means over packs",
  images: "Images",
};
/** Sections in which what one side does not name is nothing, and not unknown. */
const COUNTED = new Set(["rejects", "sources"]);
const SHOW = { share: (value) => percent(value, 2), ratio: (value) => value.toFixed(3) };
const GOOD = { more: 1, less: -1 };

/** The figures of both by section, in the order of the first. */
function sections(first, second) {
  const found = new Map();
  for (const figure of [...first.figures, ...second.figures]) {
    const rows = found.get(figure.section) ?? new Map();
    if (!rows.has(figure.name)) rows.set(figure.name, figure);
    found.set(figure.section, rows);
  }
  return [...found].map(([section, rows]) => [section, [...rows.values()]]);
}

function rowsOf(section, figures) {
  const value = (side, name) => side.figures.find((each) => each.section === section && each.name === name)?.value;
  return figures.map((figure) => ({
    name: section === "padding" ? figure.name.replaceAll("_", " ") : figure.name,
    of: (side) => value(side, figure.name) ?? (COUNTED.has(section) ? 0 : null),
    show: SHOW[figure.unit],
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
  const said = details.map(({ name, fill, counts: { documents, rejected } }) => {
    const lost = `lost ${integer(rejected)} of ${plural(documents + rejected, "document")}`;
    return [h("strong", {}, name), ` is ${percent(fill)} full and ${lost}`];
  });
  return h("p", { class: "verdict", "data-says": "" }, said[0], "; ", said[1], ".");
}

async function compared(names) {
  const sides = await Promise.all(names.map((name) => get(["datasets", name, "compared"])));
  const details = await Promise.all(names.map((name) => get(["datasets", name])));
  const [first, second] = sides;
  const both = `${first.name} and ${second.name}`;
  const tables = sections(first, second).map(([section, figures]) => {
    const title = SECTIONS[section] ?? section;
    return card(title, sideBySide(`${title}: ${both}`, rowsOf(section, figures), first, second, names));
  });
  return [
    verdict(details),
    h("section", { class: "card", "aria-label": "Configuration" }, keys(first, second)),
    h("section", { class: "card" }, lengths(details)),
    h("div", { class: "columns" }, tables),
  ];
}

export async function compare(params) {
  const { items } = await get(["datasets"], { limit: 200 });
  const names = items.filter((entry) => entry.state === "whole").map((entry) => entry.name);
  const title = [
    h("h1", {}, "Compare"),
    h("p", { class: "note" }, "Two datasets side by side: fill, padding, balance, what was lost, lengths and sources."),
  ];
  if (names.length < 2)
    return h("div", { class: "view" }, title, h("p", { class: "empty" }, "There are not two whole datasets to compare."));
  const pick = (key, usual) => (names.includes(params.get(key)) ? params.get(key) : usual);
  const first = pick("first", names[0]);
  const second = pick("second", names.find((name) => name !== first));
  return h(
    "div",
    { class: "view" },
    title,
    h(
      "form",
      { class: "card controls", "aria-label": "What to compare", onsubmit: (event) => event.preventDefault() },
      choice("first", "First", names, first),
      choice("second", "Second", names, second),
      h("a", { id: "swap", class: "note", href: href(["compare"], { first: second, second: first }) }, "Swap them"),
    ),
    await compared([first, second]),
  );
}
