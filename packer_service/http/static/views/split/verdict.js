// The split to train with in a sentence: what it is, what it saves, and the trainer's options for it.

import { get } from "../../api.js";
import { h } from "../../dom.js";
import { integer, percent, seconds, times } from "../../format.js";
import { go, href } from "../../router.js";
import { card, facts, field } from "../../section.js";

/** GPUs that are asked for where nobody said how many. */
const GPUS = 8;

/** The kinds of GPU that the service knows, by the names of its parameter. */
export const KINDS = ["h100", "h200", "b200", "a100", "l40s", "cpu"];

/** A split in words. */
function inWords(split) {
  const { ulysses_degree: ulysses, ring_degree: ring, layout, kind } = split;
  const heads = `Ulysses degree ${integer(ulysses)}`;
  const tokens = `ring degree ${integer(ring)}, layout ${layout}, keys by ${kind}`;
  if (ring > 1) return ulysses > 1 ? `${heads}, ${tokens}` : tokens;
  return ulysses > 1 ? heads : "a whole pack on each GPU";
}

/** What a speed-up saves of a run's time, in words; null where there is nothing to compare with. */
function saving(speedup, over) {
  if (speedup === null) return null;
  const share = 1 - 1 / speedup;
  if (Math.abs(share) < 0.0005) return `the same time as ${over}`;
  return `${percent(Math.abs(share))} ${share > 0 ? "less" : "more"} time than ${over}`;
}

/** Both savings, of what differs from the split itself. */
function savings(split) {
  const whole = split.ulysses_degree * split.ring_degree === 1;
  const found = [
    !whole && saving(split.speedup_over_cp1, "a whole pack on each GPU (CP 1)"),
    split.ring_degree > 1 && split.layout !== "zigzag" && saving(split.speedup_over_zigzag, "zigzag at the same degrees"),
  ].filter(Boolean);
  return found.length ? ` A run takes ${found.join(", and ")}.` : "";
}

/** GPUs of a node where a job has several. */
const OF_NODE = 8;

/** The command that trains with a split; it breaks between options and not inside. */
function command(split, name, gpus) {
  const nodes = gpus > OF_NODE && gpus % OF_NODE === 0 ? gpus / OF_NODE : 1;
  const several = nodes > 1 ? ` --nnodes ${nodes} --rdzv-backend c10d --rdzv-endpoint HEAD:29400 --rdzv-id run1` : "";
  const launched = gpus > 1 ? `torchrun --nproc-per-node ${gpus / nodes}${several} -m preshard.train` : "python -m preshard.train";
  const whole = `${launched} --data ${name} --model MODEL --steps 1000 ${split.options ?? ""}`.trim();
  return h("p", { class: "note" }, "Command: ", whole.split(/ (?=--|-m )/).flatMap((one) => [h("code", { class: "option" }, one), " "]));
}

/** Ways on from a split: what its ranks wait for, in the layout and degrees that it names, where they were packed. */
function waysOn(split, name) {
  const cp = split.ulysses_degree * split.ring_degree;
  if (split.ring_degree < 2 || split.derived) return null;
  const address = href(["d", name, "balance"], { layout: split.layout, ring: split.ring_degree, cp });
  return h("p", {}, h("a", { href: address }, "Which ranks wait?"));
}

/** The sentence that answers the question, with what it is an answer for below it. */
export function verdict(answer, name) {
  const [first] = answer.splits;
  if (!first) return h("p", { class: "verdict", "data-says": "" }, "No split of this dataset can take a step on so many GPUs.");
  const words = inWords(first);
  const lead = first.fits ? `Train with ${words}.` : `No split fits into memory. The fastest would be ${words}.`;
  return h(
    "div",
    { class: "verdict" },
    h("p", { "data-says": "" }, h("strong", {}, lead), savings(first)),
    h("p", {}, first.reason),
    command(first, name, answer.gpus),
    waysOn(first, name),
  );
}

const ratio = (value) => (value === null ? "–" : times(value));

const atATime = (packs) => (packs > 1 ? `${integer(packs)} packs side by side` : "one pack at a time");

/** The figures of the best split. */
export function bestFigures(split) {
  return facts([
    ["Time of a step", seconds(split.seconds.total), atATime(split.dp_size)],
    ["Tokens a second", integer(split.tokens_per_second), "real tokens, of one GPU"],
    ["GPU hours", (1e9 / split.tokens_per_second / 3600).toFixed(1), "for a billion tokens"],
    ["Speed over zigzag", ratio(split.speedup_over_zigzag), "at the same degrees"],
    ["Speed over CP 1", ratio(split.speedup_over_cp1), "a whole pack on each GPU"],
    ["Memory of a GPU", `${split.memory.total.toFixed(1)} GB`, `recomputation: ${split.recompute}`],
  ]);
}

/** What the answer is for, and how sure it is. */
export function basis(answer) {
  const { packs, sampled_packs: sampled } = answer;
  const all = packs === 1 ? "its only pack" : `all ${integer(packs)} packs`;
  const from = sampled < packs ? `${integer(sampled)} of ${integer(packs)} packs` : all;
  return (
    `Estimated for ${integer(answer.gpus)} × ${answer.gpu.toUpperCase()}, a model of ${(answer.parameters / 1e9).toFixed(2)} billion ` +
    `parameters and packs of ${integer(answer.seq_len)} tokens, from the loads of ${from}. No run on GPUs has confirmed it.`
  );
}

/** On a dataset's first view: what to train with, and the way to other numbers of GPUs and to everything assumed. */
export function advised(detail) {
  const shown = get(["datasets", detail.name, "advice"], { gpus: GPUS, limit: 1 }).then((answer) => {
    const gpus = h("input", { id: "gpus", type: "number", min: 1, max: 131072, step: 1, required: true, value: GPUS });
    const ask = (event) => {
      event.preventDefault();
      go(href(["d", detail.name, "split"], { gpus: gpus.value }));
    };
    return h(
      "div",
      { class: "view" },
      verdict(answer, detail.name),
      answer.splits.length > 0 && bestFigures(answer.splits[0]),
      h("p", { class: "note" }, basis(answer)),
      h("form", { class: "controls", "aria-label": "Other numbers of GPUs", onsubmit: ask }, field("GPUs", gpus), h("button", {}, "Compare splits")),
    );
  });
  return card("What to train with", shown, { id: "advised" });
}
