// Shards, the worst balanced first, and why.

import { get } from "../api.js";
import { h } from "../dom.js";
import { figures, heading, legend, ofShard, shown, sortable } from "../figures.js";
import { bytes, integer, percent } from "../format.js";
import { href } from "../router.js";
import { table } from "../table.js";
import { asParams, chosenOf } from "./balance.js";
import { choice, layoutControls, pages } from "./controls.js";

/** Why a shard is where it is in the list, and the way to the pack that puts it there. */
function reason(worst, packHref) {
  return [`${worst.why} `, h("a", { href: packHref(worst.pack_id) }, `Open pack ${worst.pack_id}`)];
}

function worst(page, measure, packHref) {
  const [first] = page.items;
  if (!first?.worst || page.offset > 0) return null;
  const { chosen } = page;
  const at = `at ${chosen.layout}, ring degree ${chosen.ring_degree}, CP size ${chosen.cp_size}`;
  return h(
    "p",
    { class: "verdict", "data-says": "" },
    h("strong", {}, first.name),
    ` is the worst shard by ${measure.label} ${at}. `,
    reason(first.worst, packHref),
  );
}

export async function shards(detail, params) {
  const wanted = chosenOf(detail, params);
  const offered = sortable(await figures());
  const find = (key) => offered.find((figure) => figure.key === key);
  const measure = find(params.get("measure")) ?? find("ring_path");
  const page = await get(["datasets", detail.name, "shards"], {
    ...asParams(wanted),
    sort: `-${measure.key}`,
    offset: params.get("offset"),
  });
  const { chosen } = page;
  const packHref = (id) => href(["d", detail.name, "packs", id], { layout: chosen.layout, ring: chosen.ring_degree });
  const columns = [
    { label: "Shard", head: true, value: (shard) => shard.name },
    {
      label: "Packs",
      number: true,
      value: (shard) => `${integer(shard.first_pack)} to ${integer(shard.first_pack + shard.packs - 1)}`,
    },
    { label: "Size", number: true, value: (shard) => bytes(shard.bytes) },
    { label: "Fill", number: true, value: (shard) => percent(shard.fill) },
    { label: "Crops", number: true, value: (shard) => integer(shard.images) },
    { label: `${heading(measure)}, mean`, number: true, value: (shard) => shown(measure, shard[ofShard(measure)].mean) },
    { label: "Worst pack", number: true, value: (shard) => shown(measure, shard[ofShard(measure)].max) },
    {
      label: "Why",
      className: "long",
      value: (shard) => (shard.worst ? reason(shard.worst, packHref) : "–"),
    },
  ];
  return h(
    "div",
    { class: "view" },
    worst(page, measure, packHref),
    h(
      "section",
      { class: "card", "aria-label": "Shards" },
      layoutControls(
        detail,
        chosen,
        choice("measure", "Worst by", offered.map(({ key }) => key), measure.key, (key) => heading(find(key))),
      ),
      h("p", { class: "note" }, legend([measure])),
      table({
        caption: `Shards, the largest mean ${measure.label} of their packs first`,
        rows: page.items,
        columns,
        stacked: true,
      }),
      pages(page),
    ),
  );
}
