// One pack: what it holds, which rank owns what at the chosen layout, and how much each rank does.

import { get } from "../api.js";
import { h } from "../dom.js";
import { figures } from "../figures.js";
import { bytes, flops, integer, percent } from "../format.js";
import { href } from "../router.js";
import { card, crumbs, facts } from "../section.js";
import { chosenOf } from "./balance.js";
import { choice } from "./controls.js";
import { alongTheSequence } from "./pack/along.js";
import { images } from "./pack/images.js";
import { loads } from "./pack/loads.js";
import { maskPicture } from "./pack/mask.js";
import { text } from "./pack/text.js";

const ULYSSES = [1, 2, 4, 8];
const MOST_CELLS = 320;

/** Cells along the mask's side: whole blocks, so that every cell has one owner, and few enough to draw at once. */
function cells({ seq_len: length, block_size: block }) {
  const blocks = Math.ceil(length / block);
  return Math.ceil(blocks / Math.ceil(blocks / MOST_CELLS));
}

function neighbours(name, detail, params) {
  const kept = { layout: params.get("layout"), ring: params.get("ring"), ulysses: params.get("ulysses") };
  const link = (id, label) => id !== null && h("a", { href: href(["d", name, "packs", id], kept) }, label);
  return h(
    "nav",
    { "aria-label": "Other packs" },
    link(detail.previous, "← Previous pack"),
    link(detail.next, "Next pack →"),
  );
}

function summary(detail) {
  return facts([
    [
      "Fill",
      percent(detail.n_tokens / detail.seq_len),
      `${integer(detail.n_tokens)} of ${integer(detail.seq_len)} tokens`,
    ],
    ["Documents", integer(detail.n_documents)],
    ["Crops", integer(detail.n_images), `${integer(detail.n_pooled_tokens)} pooled tokens`],
    ["Tokens with loss", integer(detail.loss_tokens), `${percent(detail.loss_tokens / Math.max(1, detail.n_tokens))} of the real ones`],
    ["Attention", integer(detail.attention_tiles), "tiles of 128 × 128 tokens"],
    ["Cost", flops(detail.cost), "of a step, by the cost model"],
    ["Sample", bytes(detail.size), `${detail.shard}, at byte ${integer(detail.offset)}`],
  ]);
}

function controls(detail, chosen) {
  return h(
    "form",
    { class: "controls", "aria-label": "What to show", onsubmit: (event) => event.preventDefault() },
    choice("layout", "Layout", detail.layouts, chosen.layout),
    choice("ring", "Ring degree", detail.ring_degrees, chosen.ring_degree),
    choice("ulysses", "Ulysses degree", ULYSSES, chosen.ulysses),
    h("p", { class: "note" }, `${chosen.ring_degree} × ${chosen.ulysses} = CP size ${chosen.ring_degree * chosen.ulysses}`),
  );
}

export async function pack(name, id, params) {
  const path = ["datasets", name, "packs", id];
  const detail = await get(path);
  const ulysses = ULYSSES.find((degree) => String(degree) === params.get("ulysses")) ?? 1;
  const chosen = { ...chosenOf(detail, params), ulysses };
  const { layout, ring_degree: ring } = chosen;
  const owned = get([...path, "layout"], { layout, ring, ulysses });
  const mask = owned.then((answer) => get([...path, "mask"], { layout, ring, size: cells(answer) }));
  return h(
    "div",
    { class: "view" },
    crumbs(
      ["Datasets", href([])],
      [name, href(["d", name])],
      ["Packs", href(["d", name, "packs"])],
      [`Pack ${detail.pack_id}`],
    ),
    h("div", { class: "heading" }, h("h1", {}, `Pack ${integer(detail.pack_id)}`), neighbours(name, detail, params)),
    h("section", { class: "card", "aria-label": "Totals" }, summary(detail)),
    h("section", { class: "card sticky", "aria-label": "Layout and degrees" }, controls(detail, chosen)),
    card(
      "Along the sequence",
      owned.then((answer) => alongTheSequence(name, detail, answer, params)),
    ),
    card(
      "The mask and its owners",
      Promise.all([mask, owned]).then(([picture, answer]) => maskPicture(detail, picture, answer, params)),
    ),
    card(
      "Work of each rank",
      Promise.all([owned, figures()]).then(([answer, all]) => loads(answer, all)),
    ),
    card(`Crops of each rank at CP size ${ring * ulysses}`, images(path, detail, ring * ulysses)),
    card("Tokens as text", text(path, detail, params)),
  );
}
