// Which split of packs over GPUs trains fastest: estimated step times and memory, with everything that is assumed.

import { get } from "../api.js";
import { chart } from "../charts.js";
import { h } from "../dom.js";
import { integer, seconds, times } from "../format.js";
import { colour } from "../palette.js";
import { go, withParams } from "../router.js";
import { card, field } from "../section.js";
import { table } from "../table.js";
import { choice } from "./controls.js";
import { KINDS, basis, bestFigures, verdict } from "./split/verdict.js";

const LISTED = 10;

/** The parts of a step, each with its name and what it is. */
const PARTS = {
  linear: ["Linear layers", "products with weights"],
  attention: ["Attention", "an even share of the pack's tiles"],
  attention_waiting: ["Waiting for attention", "what the slowest rank has beyond that"],
  vision: ["Vision", "an even share of the encoder's work"],
  vision_waiting: ["Waiting for vision", "what the busiest rank has beyond that"],
  exchange: ["Exchange", "keys, values, heads and features on their way while nothing is computed"],
  parameters: ["Parameters", "parameters and gradients on their way beyond what hides behind computing"],
  straggler: ["Straggler", "what the most expensive pack of a step takes beyond the mean one"],
};
/** What computes is plain, what waits is hatched. */
const WAITS = new Set(["attention_waiting", "vision_waiting", "exchange", "parameters", "straggler"]);

const MEMORY = {
  state: "State of the optimiser",
  gathered: "Gathered parameters",
  activations: "Activations",
  keys: "Keys of others",
  logits: "Logits",
};

/** Where a split's whole name would leave no room for its bar. */
const narrow = matchMedia("(max-width: 40rem)");

/** How ranks share a pack: by heads, by tokens, or not at all. */
function degrees({ ulysses_degree: ulysses, ring_degree: ring }) {
  const parts = [ulysses > 1 && `Ulysses ${integer(ulysses)}`, ring > 1 && `ring ${integer(ring)}`].filter(Boolean);
  return parts.join(", ") || "whole packs";
}
const named = (split) => (split.ring_degree > 1 ? `${degrees(split)}, ${split.layout}, keys by ${split.kind}` : degrees(split));
/** The same in two lines, for a phone. */
const inLines = (split) => (split.ring_degree > 1 ? `${degrees(split)},<br>${split.layout}` : degrees(split));
const gigabytes = (value) => `${value.toFixed(1)} GB`;
const ratio = (value) => (value === null ? "–" : times(value));

function question(answer, params) {
  const gpus = h("input", { id: "gpus", type: "number", min: 1, max: 131072, step: 1, required: true, value: answer.gpus });
  const ask = (event) => {
    event.preventDefault();
    go(withParams({ gpus: gpus.value }));
  };
  return h(
    "form",
    { class: "controls", "aria-label": "What to train on", onsubmit: ask },
    field("GPUs", gpus),
    choice("gpu", "Kind", KINDS, params.get("gpu") ?? "h100", (name) => name.toUpperCase()),
    h("button", { id: "which", class: "main" }, "Which split?"),
  );
}

/** GPU hours that a part of the step takes of 10⁹ real tokens: steps of different splits hold different numbers of packs. */
const gpuHours = (answer, split, seconds) => (((seconds * answer.gpus) / split.tokens_per_step) * 1e9) / 3600;

function costs(answer) {
  const rows = answer.splits;
  const hours = (split, part) => gpuHours(answer, split, split.seconds[part]);
  const parts = Object.keys(PARTS).filter((part) => rows.some((split) => split.seconds[part] > 0));
  return chart({
    title: "Where the time goes",
    note:
      "Estimated GPU hours for a billion real tokens, the fastest split first. Hatched parts are waiting: for a slower " +
      "rank, for bytes, or for the most expensive pack of a step.",
    traces: () =>
      parts.map((part, index) => ({
        type: "bar",
        orientation: "h",
        name: PARTS[part][0],
        y: rows.map((split, place) => `${place + 1}. ${narrow.matches ? inLines(split) : named(split)}`),
        x: rows.map((split) => hours(split, part)),
        marker: {
          color: colour(index),
          pattern: { shape: WAITS.has(part) ? "/" : "", fillmode: "overlay", fgcolor: "#000000", fgopacity: 0.35, size: 6 },
        },
        hovertemplate: `${PARTS[part][0]}: %{x:.2f} GPU hours<extra></extra>`,
      })),
    layout: {
      barmode: "stack",
      bargap: 0.3,
      height: 130 + (narrow.matches ? 46 : 34) * rows.length,
      legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", traceorder: "normal" },
      xaxis: { title: "GPU hours for 10⁹ tokens" },
      yaxis: { autorange: "reversed" },
    },
    rows,
    columns: [
      { label: "Split", head: true, value: named },
      ...parts.map((part) => ({ label: PARTS[part][0], number: true, value: (split) => hours(split, part).toFixed(2) })),
      { label: "All", number: true, value: (split) => hours(split, "total").toFixed(2) },
      { label: "Time of a step", number: true, value: (split) => seconds(split.seconds.total) },
    ],
  });
}

const needed = (split) => [
  gigabytes(split.memory.total),
  !split.fits && h("div", { class: "worse" }, "does not fit"),
];

/** The layout, how keys travel, and what of it a reader derives. */
const layoutOf = (split) => [
  split.ring_degree > 1 ? split.layout : "any layout",
  split.kind !== "none" && h("div", { class: "note" }, split.kind === "ulysses" ? "heads dealt" : `keys by ${split.kind}`),
  split.derived && h("div", { class: "note" }, "derived, not packed"),
  !split.stored && !split.derived && h("div", { class: "note" }, "image boundaries derived"),
];

/** What the columns hold, for who sees them for the first time. */
const COLUMNS =
  "Ranks of a pack: Ulysses shares it by heads, a ring by tokens. Layout: which rank holds which tokens, and how keys reach the " +
  "ranks that need them; what is derived works, and packing with these degrees would spare the reader the work. Packs a step: " +
  "those that train side by side. Tokens a second: real tokens, of one GPU. Speed over zigzag: at the same degrees; over " +
  "CP 1: a whole pack on each GPU. Memory: of one GPU, in 10⁹ bytes.";

function splits(answer) {
  return table({
    caption: "The fastest splits of those that fit into memory, then those that do not",
    rows: answer.splits,
    empty: "No split.",
    stacked: true,
    columns: [
      { label: "Ranks of a pack", head: true, value: degrees },
      { label: "Layout", value: layoutOf },
      { label: "Packs a step", number: true, value: (split) => integer(split.dp_size) },
      { label: "Tokens a second", number: true, value: (split) => integer(split.tokens_per_second) },
      { label: "Over zigzag", number: true, value: (split) => ratio(split.speedup_over_zigzag) },
      { label: "Over CP 1", number: true, value: (split) => ratio(split.speedup_over_cp1) },
      { label: "Memory", number: true, value: needed },
      { label: "Why", className: "long", value: (split) => split.reason },
    ],
  });
}

function memory(answer) {
  return h(
    "details",
    {},
    h("summary", {}, "Memory of a rank, by what it holds"),
    table({
      caption: "In 10⁹ bytes",
      rows: answer.splits,
      columns: [
        { label: "Split", head: true, value: named },
        ...Object.entries(MEMORY).map(([key, label]) => ({ label, number: true, value: (split) => split.memory[key].toFixed(1) })),
        { label: "All", number: true, value: (split) => split.memory.total.toFixed(1) },
        { label: "Computed again", value: (split) => split.recompute },
      ],
    }),
  );
}

/** Every assumption as a control; one that is emptied is the usual again. */
function assumptions(answer, params) {
  const inputs = answer.assumptions.map((entry) => {
    const number = typeof entry.value === "number" || entry.value === null;
    return h("input", {
      id: `assume-${entry.name}`,
      name: entry.name,
      type: number ? "number" : "text",
      step: number ? "any" : null,
      value: entry.value ?? "",
      autocomplete: "off",
    });
  });
  const ask = (event) => {
    event.preventDefault();
    const changed = inputs.map((input, index) => {
      const { name, value } = answer.assumptions[index];
      return [name, input.value === String(value ?? "") ? params.get(name) : input.value];
    });
    go(withParams(Object.fromEntries(changed)));
  };
  const given = answer.assumptions.filter((entry) => params.get(entry.name) !== null);
  const usual = withParams(Object.fromEntries(given.map(({ name }) => [name, null])));
  const key = (entry, index) =>
    h(
      "div",
      { class: "key" },
      h("label", { for: inputs[index].id, class: "mono" }, entry.name),
      inputs[index],
      h("small", { class: "note" }, entry.meaning),
      entry.source === "given"
        ? h("small", { class: "changed" }, "given here")
        : h("small", { class: "note" }, `from: ${entry.source}`),
    );
  return h(
    "details",
    { open: given.length > 0 },
    h("summary", {}, `All ${answer.assumptions.length} assumptions, to be changed`),
    h(
      "form",
      { class: "view", "aria-label": "Assumptions", onsubmit: ask },
      h("div", { class: "keys" }, answer.assumptions.map(key)),
      h(
        "div",
        { class: "controls" },
        h("button", { id: "again", class: "main" }, "Estimate again"),
        given.length > 0 && h("a", { id: "usual", class: "note", href: usual }, "Back to the usual values"),
      ),
    ),
  );
}

/** What limits the answer, but for what stands above already. */
const notes = (answer, above) =>
  h(
    "ul",
    { class: "notes note" },
    answer.notes.filter((note) => !above.includes(note)).map((note) => h("li", {}, note)),
  );

export async function split(detail, params) {
  const asked = { limit: LISTED, ...Object.fromEntries(params) };
  const answer = await get(["datasets", detail.name, "advice"], asked);
  const [first] = answer.splits;
  const warnings = detail.warnings.filter((warning) => answer.notes.includes(warning));
  return h(
    "div",
    { class: "view" },
    h(
      "section",
      { class: "card", "aria-label": "The best split" },
      question(answer, params),
      verdict(answer, detail.name),
      first && bestFigures(first),
      h("p", { class: "note" }, basis(answer)),
    ),
    warnings.map((warning) => h("div", { class: "problem" }, h("p", {}, warning))),
    first && h("section", { class: "card" }, costs(answer)),
    first && card("Splits", [splits(answer), memory(answer)], { note: COLUMNS }),
    card("What this rests on", [notes(answer, warnings), assumptions(answer, params)]),
  );
}
