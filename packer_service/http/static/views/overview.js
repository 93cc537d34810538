// How full a dataset is, how even its steps are, and how large its documents and packs are.

import { get } from "../api.js";
import { chart } from "../charts.js";
import { h } from "../dom.js";
import { binary, bytes, day, flops, integer, percent, plural, times } from "../format.js";
import { variable } from "../palette.js";
import { href } from "../router.js";
import { card, facts } from "../section.js";
import { table } from "../table.js";
import { PADDING } from "../words.js";
import { advised } from "./split/verdict.js";

const were = (count) => (count === 1 ? "was" : "were");

function lost(detail) {
  const { documents, rejected } = detail.counts;
  const truncated = Object.values(detail.truncated_tokens).reduce((sum, count) => sum + count, 0);
  const cut = truncated ? ` ${plural(truncated, "token")} ${were(truncated)} cut off.` : " Nothing was cut off.";
  if (!documents && !rejected) return "The source holds no document.";
  if (!rejected) return `${documents === 1 ? "The only document" : `All ${plural(documents, "document")}`} of the source ${were(documents)} packed.${cut}`;
  return (
    `${plural(documents, "document")} ${were(documents)} packed; ${integer(rejected)} ${were(rejected)} rejected ` +
    `(${percent(rejected / (documents + rejected))}).${cut}`
  );
}

/** What keeps packs from being fuller, as the service words it. */
const limit = ({ limit: found }) => (found ? `Why not more: ${found.message}. ` : "");

/** What would fill packs: planned here by a click, and the command that packs so. */
function change({ name, limit: found }) {
  if (!found?.setting) return null;
  const settings = found.setting.split(" ").map((setting) => setting.split("="));
  const asked = href(["plan"], { dataset: name, ...Object.fromEntries(settings) });
  const set = settings.map(([key, value]) => `--set ${key}=${value}`).join(" ");
  return h(
    "p",
    { class: "note" },
    h("a", { href: asked }, "What should I change?"),
    " ",
    h("code", {}, `preshard pack ${name} --out ${name}-2 ${set}`),
  );
}
const repeated = ({ numbered }) => (numbered ? `; ${integer(numbered)} with a number behind a repeated id` : "");

function summary(detail) {
  const { counts } = detail;
  return facts([
    ["Documents", integer(counts.documents), `packed, of ${integer(counts.documents + counts.rejected)}${repeated(counts)}`],
    ["Rejected", h("a", { href: href(["d", detail.name, "rejects"]) }, integer(counts.rejected)), "documents, with reasons"],
    ["Tokens", integer(counts.tokens), "real ones"],
    ["Padding", integer(counts.padding_tokens), "tokens that hold nothing"],
    ["Crops", integer(counts.images), "images and frames"],
    ["Size", bytes(detail.bytes), plural(detail.shards, "shard")],
    straggler(detail),
  ]);
}

/** The ratio at the largest data-parallel size that the dataset can run. */
export function straggler({ straggler_ratio: ratios }) {
  const sizes = Object.keys(ratios).map(Number);
  if (!sizes.length) return ["Straggler", "–", "no step of whole packs"];
  const most = Math.max(...sizes);
  return [`Straggler at ${integer(most)}`, times(ratios[most]), "dearest pack of a step over the mean one"];
}

function padding(detail) {
  const rows = Object.entries(detail.padding);
  const all = detail.counts.packs * detail.seq_len;
  return chart({
    title: "Padding by cause",
    note: "Why positions in packs are empty. What is missing to fill the last pack cannot be avoided; another configuration may reduce the rest.",
    traces: () => [
      {
        type: "bar",
        orientation: "h",
        y: rows.map(([cause]) => cause.replace("_", " ")),
        x: rows.map(([, count]) => count),
        marker: { color: variable("--accent") },
        hovertemplate: "%{x:,} tokens<extra></extra>",
      },
    ],
    layout: { xaxis: { title: "tokens", tickformat: "," }, yaxis: { autorange: "reversed" } },
    rows,
    columns: [
      { label: "Cause", head: true, value: ([cause]) => cause.replace("_", " ") },
      { label: "Meaning", className: "long", value: ([cause]) => PADDING[cause] ?? "" },
      { label: "Tokens", number: true, value: ([, count]) => integer(count) },
      { label: "Of all", number: true, value: ([, count]) => percent(count / all, 2) },
    ],
  });
}

/** The axis of straggler ratios ends here at the lowest: a chart of 1.0017 would look as alarming as one of 1.7. */
const LEAST_RANGE = 1.1;

function stragglers(detail) {
  const rows = Object.entries(detail.straggler_ratio).sort(([a], [b]) => a - b);
  return chart({
    title: "Stragglers by data-parallel size",
    note: "A step waits for the rank with the most expensive pack: the mean over steps of the largest cost over the mean cost. 1 means no waiting. Sizes above the number of packs have no step.",
    traces: () => [
      {
        type: "scatter",
        mode: "lines+markers",
        x: rows.map(([size]) => size),
        y: rows.map(([, ratio]) => ratio),
        line: { color: variable("--accent"), width: 2 },
        marker: { size: 7 },
        cliponaxis: false,
        hovertemplate: "%{x} ranks: %{y:.4f}<extra></extra>",
      },
    ],
    layout: {
      xaxis: { title: "data-parallel ranks", type: "category" },
      yaxis: { title: "straggler ratio", range: [1, Math.max(LEAST_RANGE, 1.02 * Math.max(...rows.map(([, ratio]) => ratio)))] },
    },
    rows,
    columns: [
      { label: "Ranks", head: true, value: ([size]) => integer(Number(size)) },
      { label: "Straggler ratio", number: true, value: ([, ratio]) => ratio.toFixed(4) },
    ],
  });
}

/** How even the vision encoder's work is by itself, which other ranks wait for where they meet behind it. */
function encoder({ name }) {
  const shown = get(["datasets", name, "encoder"]).then(({ encoder_straggler: ratios }) =>
    table({
      caption: "Encoder stragglers by data-parallel size",
      rows: Object.entries(ratios).sort(([a], [b]) => a - b),
      empty: "The dataset has no step of whole packs.",
      columns: [
        { label: "Ranks", head: true, value: ([size]) => integer(Number(size)) },
        { label: "Encoder straggler", number: true, value: ([, ratio]) => ratio.toFixed(4) },
      ],
    }),
  );
  const note = "The largest work of the vision encoder for a pack of each step, summed up over steps, over the sum of their means. It is part of the cost, and counts by itself where ranks wait for each other behind the encoder.";
  return card("The vision encoder alone", shown, { note });
}

/** Whether all bars are equally wide; if not, they are drawn side by side, each labelled with the start of its range. */
function even(edges) {
  const width = edges[1] - edges[0];
  return edges.every(
    (edge, index) => index === 0 || Math.abs(edge - edges[index - 1] - width) < 1e-6 * Math.abs(width),
  );
}

/** A unit in which the edges are short to read: a pack may cost millions of GFLOP. */
function readable({ unit, edges, counts }) {
  if (unit !== "GFLOP" || edges[edges.length - 1] < 1e5) return { unit, edges, counts };
  return { unit: "TFLOP", edges: edges.map((edge) => edge / 1000), counts };
}

/** The bars from the first that is not empty. */
function bars({ edges, counts }) {
  const rows = counts.map((count, index) => ({ from: edges[index], to: edges[index + 1], count }));
  return rows.slice(
    Math.max(
      0,
      rows.findIndex((row) => row.count > 0),
    ),
  );
}

function histogram(title, note, given, counted) {
  const { unit, edges, counts } = readable(given);
  const linear = even(edges);
  const rows = bars({ edges, counts });
  const few = Math.max(...counts) <= 5; // or the axis would show half documents
  const short = !unit.endsWith("FLOP") && edges[edges.length - 1] - edges[0] <= 5; // or half crops
  return chart({
    title,
    note: linear ? note : `${note} Each bar's range is twice as wide as the one before.`,
    traces: () => [
      {
        type: "bar",
        x: rows.map((row) => (linear ? (row.from + row.to) / 2 : binary(row.from))),
        width: linear ? rows.map((row) => row.to - row.from) : null,
        y: rows.map((row) => row.count),
        customdata: rows.map((row) => [row.from, row.to]),
        marker: { color: variable("--accent") },
        hovertemplate: `%{customdata[0]:,.0f} to %{customdata[1]:,.0f} ${unit}: %{y:,}<extra></extra>`,
      },
    ],
    layout: {
      bargap: 0.04,
      xaxis: linear ? { title: unit, tickformat: ",", dtick: short ? 1 : null } : { title: `${unit}, at least`, type: "category" },
      yaxis: { title: counted, dtick: few ? 1 : null },
    },
    rows,
    columns: [
      { label: `From (${unit})`, head: true, number: true, value: (row) => integer(row.from) },
      { label: "To below", number: true, value: (row) => integer(row.to) },
      { label: counted, number: true, value: (row) => integer(row.count) },
    ],
  });
}

/** Rows of a table of sources: those with most tokens, where there are more. */
const MOST_SOURCES = 50;

function sources(detail) {
  const count = (label, value) => ({ label, number: true, value: (row) => integer(value(row)) });
  const all = detail.sources;
  const most = all.length > MOST_SOURCES ? [...all].sort((a, b) => b.tokens - a.tokens).slice(0, MOST_SOURCES) : all;
  return table({
    caption:
      most.length < all.length
        ? `What became of the ${MOST_SOURCES} sources with most tokens, of ${integer(all.length)}`
        : "What became of each source",
    rows: most,
    columns: [
      { label: "Source", head: true, value: (row) => row.source },
      count("Documents", (row) => row.documents),
      count("Tokens", (row) => row.tokens),
      count("Crops", (row) => row.images),
      count("Cut-off tokens", (row) => row.truncated_tokens),
      {
        label: "Rejected",
        number: true,
        value: (row) =>
          row.rejected
            ? h("a", { href: href(["d", detail.name, "rejects"], { source: row.source }) }, integer(row.rejected))
            : "0",
      },
    ],
  });
}

function origin(detail) {
  return h(
    "details",
    {},
    h("summary", {}, "Where it comes from, and its configuration"),
    facts([
      ["Packed", detail.packed ? day(detail.packed) : "–", `by preshard ${detail.preshard_version}`],
      ["Tokenizer", detail.tokenizer.name ?? "–"],
      ["Source files", integer(detail.files.length)],
      ["Cost of a pack", detail.counts.packs ? flops(Number(detail.cost_percentiles["50"])) : "–", "median"],
    ]),
    h("p", { class: "note" }, "Dataset id ", h("code", {}, detail.dataset_id)),
    h(
      "pre",
      { class: "tokens mono", tabindex: "0", "aria-label": "Configuration" },
      JSON.stringify(detail.config, null, 2),
    ),
  );
}

/** Columns and files that nothing read, the most frequent first. */
function unread(detail) {
  const rows = [
    ...Object.entries(detail.unused_columns).map(([name, files]) => ["column of the rows", name, files]),
    ...Object.entries(detail.unread_files).map(([name, files]) => ["files not read as rows", name, files]),
  ];
  return table({
    caption: "Files and columns of the source that were not read",
    rows: rows.sort((a, b) => b[2] - a[2]),
    empty: "Every column and every file was read.",
    columns: [
      { label: "Name", head: true, value: ([, name]) => name },
      { label: "What it is", value: ([what]) => what },
      { label: "Files", number: true, value: ([, , files]) => integer(files) },
    ],
  });
}

/** The figures as pictures; those of crops only where there are any. */
function pictures(detail) {
  const { histograms } = detail;
  const figures = [
    padding(detail),
    stragglers(detail),
    histogram("Length of documents", "Tokens of each packed document.", histograms.document_tokens, "documents"),
    histogram(
      "Cost of packs",
      "What the cost model expects a pack to take: attention, linear layers and vision.",
      histograms.pack_cost,
      "packs",
    ),
  ];
  if (detail.counts.images)
    figures.push(
      histogram("Crops of documents", "Crops of each packed document.", histograms.document_images, "documents"),
      histogram("Crops of packs", "Crops of each pack.", histograms.pack_images, "packs"),
    );
  return h(
    "div",
    { class: "columns" },
    figures.map((figure) => h("section", { class: "card" }, figure)),
  );
}

export function overview(detail) {
  const { packs } = detail.counts;
  return h(
    "div",
    { class: "view" },
    detail.warnings.map((warning) => h("div", { class: "problem" }, h("p", {}, warning))),
    h("div", { class: "verdict" }, h("p", {}, packs ? `${percent(detail.fill)} of all tokens are real. ${limit(detail)}${lost(detail)}` : `Nothing was packed. ${lost(detail)}`), packs > 0 && change(detail)),
    packs > 0 && advised(detail),
    h("section", { class: "card", "aria-label": "Totals" }, summary(detail)),
    packs > 0 && pictures(detail),
    detail.counts.images > 0 && encoder(detail),
    detail.sources.length > 0 && card("Sources", sources(detail)),
    card("Not read", unread(detail)),
    h("section", { class: "card", "aria-label": "Origin" }, origin(detail)),
  );
}
