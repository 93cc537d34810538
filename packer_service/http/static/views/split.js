// Which split of packs over GPUs trains fastest: estimated step times and memory, with everything that is assumed.

import { get } from "../api.js";
import { chart } from "../charts.js";
import { h } from "../dom.js";
import { integer, plural, seconds, times } from "../format.js";
import { colour } from "../palette.js";
import { go, withParams } from "../router.js";
import { card, facts, field } from "../section.js";
import { table } from "../table.js";
import { choice } from "./controls.js";

const GPUS = ["h100", "h200", "b200", "a100", "l40s", "cpu"];
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

const degrees = (split) => `${split.ulysses_degree} × ${split.ring_degree}`;
function named(split) {
  if (split.ring_degree > 1) return `${degrees(split)} ${split.layout}, ${split.kind}`;
  return split.ulysses_degree > 1 ? `${degrees(split)} ulysses` : "1 × 1";
}
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
    choice("gpu", "Kind", GPUS, params.get("gpu") ?? "h100", (name) => name.toUpperCase()),
    h("button", { class: "main" }, "Which split?"),
  );
}

function best(answer) {
  const [first] = answer.splits;
  if (!first) return h("p", { class: "verdict" }, "No split of this dataset can take a step on so many GPUs.");
  const layout = first.ring_degree > 1 ? `, ${first.layout} by ${first.kind}` : "";
  const name = `Ulysses ${first.ulysses_degree} × ring ${first.ring_degree}${layout}. `;
  const all = `${integer(answer.fitting)} of the ${plural(answer.considered, "split")} that were estimated fit into memory.`;
  return h(
    "p",
    { class: "verdict" },
    h("strong", {}, first.fits ? name : `None fits into memory. The fastest is ${name}`),
    `${first.reason} ${all}`,
  );
}

function summary(split) {
  return facts([
    ["Step", seconds(split.seconds.total), `${plural(split.dp_size, "pack")} side by side`],
    ["Tokens a second", integer(split.tokens_per_second), "of one GPU"],
    ["Over zigzag", ratio(split.speedup_over_zigzag), "at the same degrees"],
    ["Over CP 1", ratio(split.speedup_over_cp1), "a whole pack on each GPU"],
    ["Memory", gigabytes(split.memory.total), `recomputation: ${split.recompute}`],
  ]);
}

function stepTimes(answer) {
  const rows = answer.splits;
  const parts = Object.keys(PARTS).filter((part) => rows.some((split) => split.seconds[part] > 0));
  return chart({
    title: "Where a step's time goes",
    note:
      "Estimated seconds of the rank that takes longest, the fastest split first. Hatched parts are waiting: for a slower " +
      "rank, for bytes, or for the most expensive pack.",
    traces: () =>
      parts.map((part, index) => ({
        type: "bar",
        orientation: "h",
        name: PARTS[part][0],
        y: rows.map((split, place) => `${place + 1}. ${named(split)}`),
        x: rows.map((split) => split.seconds[part]),
        marker: {
          color: colour(index),
          pattern: { shape: WAITS.has(part) ? "/" : "", fillmode: "overlay", fgcolor: "#000000", fgopacity: 0.35, size: 6 },
        },
        hovertemplate: `${PARTS[part][0]}: %{x:.4f} s<extra></extra>`,
      })),
    layout: {
      barmode: "stack",
      bargap: 0.3,
      height: 130 + 34 * rows.length,
      legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", traceorder: "normal" },
      xaxis: { title: "seconds" },
      yaxis: { autorange: "reversed" },
    },
    rows,
    columns: [
      { label: "Split", head: true, value: named },
      ...parts.map((part) => ({ label: PARTS[part][0], number: true, value: (split) => seconds(split.seconds[part]) })),
      { label: "Step", number: true, value: (split) => seconds(split.seconds.total) },
    ],
  });
}

const needed = (split) => [
  gigabytes(split.memory.total),
  !split.fits && h("div", { class: "worse" }, "does not fit"),
];

const why = (split) =>
  split.stored ? split.reason : `${split.reason} The dataset was not packed for it: a reader derives layout or boundaries.`;

function splits(answer) {
  return table({
    caption: "The fastest splits of those that fit into memory, then those that do not",
    rows: answer.splits,
    empty: "No split.",
    stacked: true,
    columns: [
      { label: "Ulysses × ring", head: true, value: degrees },
      { label: "Layout", value: (split) => (split.ring_degree > 1 ? split.layout : "any") },
      { label: "Keys by", value: (split) => split.kind },
      { label: "DP", number: true, value: (split) => integer(split.dp_size) },
      { label: "Step", number: true, value: (split) => seconds(split.seconds.total) },
      { label: "Tokens/s/GPU", number: true, value: (split) => integer(split.tokens_per_second) },
      { label: "Over zigzag", number: true, value: (split) => ratio(split.speedup_over_zigzag) },
      { label: "Over CP 1", number: true, value: (split) => ratio(split.speedup_over_cp1) },
      { label: "Memory", number: true, value: needed },
      { label: "Why", className: "long", value: why },
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
        h("button", { class: "main" }, "Estimate again"),
        given.length > 0 && h("a", { class: "note", href: usual }, "Back to the usual values"),
      ),
    ),
  );
}

const notes = (answer) =>
  h(
    "ul",
    { class: "notes note" },
    answer.notes.map((note) => h("li", {}, note)),
  );

const basis = (answer) =>
  `Estimates from ${integer(answer.sampled_packs)} of ${plural(answer.packs, "pack")}, for a model of ` +
  `${(answer.parameters / 1e9).toFixed(2)} billion parameters.`;

export async function split(detail, params) {
  const asked = { limit: LISTED, ...Object.fromEntries(params) };
  const answer = await get(["datasets", detail.name, "advice"], asked);
  const [first] = answer.splits;
  return h(
    "div",
    { class: "view" },
    h("section", { class: "card", "aria-label": "Question" }, question(answer, params)),
    best(answer),
    first && h("section", { class: "card", "aria-label": "The best split" }, summary(first)),
    first && h("section", { class: "card" }, stepTimes(answer)),
    first && card("Splits", [splits(answer), memory(answer)]),
    card("What this rests on", [notes(answer), assumptions(answer, params)], { note: basis(answer) }),
  );
}
