// What would another configuration give? Lengths, or a dataset's own documents, are planned again; nothing is written.

import { Problem, get, post } from "../api.js";
import { announce, h } from "../dom.js";
import { integer, percent, times } from "../format.js";
import { card, facts, field, problemBox } from "../section.js";
import { table } from "../table.js";

const LENGTHS = "812 0\n20480 120\n3300 4\n15000 96\n700 0\n9000 40";

function parsedLengths(given) {
  const rows = given
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean)
    .map((line) => line.split(/[\s,;]+/).map(Number));
  if (!rows.length || rows.flat().some((value) => !Number.isInteger(value) || value < 0)) {
    throw new Problem(
      0,
      "Each line holds the tokens of one document and the number of its crops, if any: two whole numbers.",
    );
  }
  return { tokens: rows.map(([tokens]) => tokens), images: rows.map(([, images = 0]) => images) };
}

function parsedConfig(given) {
  try {
    const config = JSON.parse(given.trim() || "{}");
    if (typeof config === "object" && config !== null && !Array.isArray(config)) return config;
  } catch {
    // said below
  }
  throw new Problem(0, 'The configuration is a JSON object, such as {"seq_len": 32768}.');
}

function compared(answer) {
  const rows = Object.values(answer.balance).flatMap(Object.values);
  const column = (label, spread) => ({ label, number: true, value: (row) => spread(row).mean?.toFixed(3) ?? "–" });
  return table({
    caption: `Balance, means over ${integer(answer.balanced_packs)} packs`,
    rows,
    empty: "No pack to balance.",
    columns: [
      { label: "Layout", head: true, value: (row) => row.layout },
      { label: "Ring degree", number: true, value: (row) => row.ring_degree },
      column("Gather path", (row) => row.gather_path),
      column("Ring path", (row) => row.ring_path),
      column("KV traffic", (row) => row.traffic),
      column("Attention imbalance", (row) => row.attention.imbalance),
    ],
  });
}

function answered(answer) {
  const stragglers = Object.entries(answer.straggler_ratio).map(([ranks, ratio]) => ({ ranks: Number(ranks), ratio }));
  return h(
    "div",
    { class: "view" },
    h(
      "p",
      { class: "verdict" },
      `${integer(answer.documents)} documents would fill ${integer(answer.packs)} packs of ${integer(answer.seq_len)} tokens to ${percent(answer.fill)}; ` +
        `${integer(answer.rejected)} would be rejected.`,
    ),
    facts([
      ["Fill", percent(answer.fill)],
      [
        "Packs",
        integer(answer.packs),
        `tokens alone need ${integer(answer.packs_for_tokens)}, crops alone ${integer(answer.packs_for_images)}`,
      ],
      ["Padding", integer(answer.padding_tokens), "tokens"],
      ["Rejected", integer(answer.rejected), Object.entries(answer.rejects).map((reject) => reject.join(" ")).join(", ")],
      ["Truncated", integer(Object.values(answer.truncated_tokens).reduce((sum, lost) => sum + lost, 0)), "tokens"],
      ["Straggler at 8", answer.straggler_ratio["8"] ? times(answer.straggler_ratio["8"]) : "–", "data-parallel ranks"],
      ["Planned in", `${answer.plan_seconds.toFixed(2)} s`],
    ]),
    table({
      caption: "Straggler ratio by data-parallel size",
      rows: stragglers,
      columns: [
        { label: "Ranks", head: true, value: (row) => integer(row.ranks) },
        { label: "Ratio", number: true, value: (row) => row.ratio.toFixed(4) },
      ],
    }),
    compared(answer),
  );
}

export async function whatIf() {
  const { items } = await get(["datasets"], { limit: 200 });
  const whole = items.filter((entry) => entry.state === "whole").map((entry) => entry.name);
  const source = h(
    "select",
    { id: "source" },
    h("option", { value: "" }, "the lengths below"),
    whole.map((name) => h("option", { value: name }, name)),
  );
  const lengths = h("textarea", { id: "lengths", class: "mono", spellcheck: "false" });
  lengths.value = LENGTHS;
  const config = h("textarea", { id: "config", class: "mono", spellcheck: "false" });
  config.value = '{"seq_len": 32768}';
  const result = h("div", { class: "view", id: "answer" }, h("p", { class: "empty" }, "No plan yet."));
  const button = h("button", { class: "main" }, "Plan it");
  source.addEventListener("change", () => (lengths.disabled = source.value !== ""));

  async function ask(event) {
    event.preventDefault();
    button.disabled = true;
    result.replaceChildren(h("p", { class: "loading" }, "Planning…"));
    try {
      const documents = source.value ? { dataset: source.value } : { lengths: parsedLengths(lengths.value) };
      result.replaceChildren(answered(await post(["plan"], { ...documents, config: parsedConfig(config.value) })));
      announce("The plan is shown");
    } catch (error) {
      result.replaceChildren(problemBox(error));
    }
    button.disabled = false;
    button.focus({ preventScroll: true });
  }

  return h(
    "div",
    { class: "view" },
    h("h1", {}, "What if"),
    h("p", { class: "note" }, "How full and how even would packs be with another configuration? Nothing is written."),
    h(
      "form",
      { class: "card", onsubmit: ask },
      field("Documents", source),
      field("Lengths: one document per line, its tokens and crops", lengths),
      field("Configuration as JSON; overrides the dataset's own if one is chosen", config),
      h("div", { class: "controls" }, button),
    ),
    card("Answer", result),
  );
}
