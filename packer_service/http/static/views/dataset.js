// One dataset: its heading, its parts as tabs, and the requested part.

import { get } from "../api.js";
import { h } from "../dom.js";
import { integer, percent, plural } from "../format.js";
import { href } from "../router.js";
import { crumbs } from "../section.js";
import { balance } from "./balance.js";
import { documents } from "./documents.js";
import { overview } from "./overview.js";
import { packs } from "./packs.js";
import { rejects } from "./rejects.js";
import { shards } from "./shards.js";
import { split } from "./split.js";

const PARTS = {
  overview: ["Overview", overview],
  balance: ["Balance", balance],
  split: ["Which split?", split],
  shards: ["Shards", shards],
  packs: ["Packs", packs],
  documents: ["Documents", documents],
  rejects: ["Rejects", rejects],
};

/** Parts that have nothing to show where nothing was packed. */
const OF_PACKS = new Set(["balance", "split", "shards", "packs", "documents"]);
const nothing = () => h("p", { class: "empty" }, "This dataset holds no pack.");

export async function dataset(name, part, params) {
  const detail = await get(["datasets", name]);
  const [title, build] = PARTS[part] ?? PARTS.overview;
  const tabs = Object.entries(PARTS).map(([key, [label]]) =>
    h(
      "a",
      { href: href(key === "overview" ? ["d", name] : ["d", name, key]), "aria-current": label === title && "page" },
      label,
    ),
  );
  return h(
    "div",
    { class: "view" },
    crumbs(["Datasets", href([])], [name]),
    h(
      "div",
      { class: "heading" },
      h("h1", {}, name),
      h(
        "p",
        { class: "note" },
        detail.counts.packs > 0 && [h("strong", { class: "fill" }, `${percent(detail.fill)} full`), " · "],
        `${plural(detail.counts.packs, "pack")} of ${integer(detail.seq_len)} tokens in ${plural(detail.shards, "shard")} · `,
        h("a", { href: href(["compare"], { first: name }) }, "Compare it"),
        " · ",
        h("a", { href: href(["plan"], { dataset: name }) }, "Pack it differently?"),
      ),
    ),
    h("nav", { class: "tabs", "aria-label": "Parts of the dataset" }, tabs),
    OF_PACKS.has(part) && !detail.counts.packs ? nothing() : await build(detail, params),
  );
}
