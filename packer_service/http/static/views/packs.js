// Packs in any order, the worst balanced first.

import { get } from "../api.js";
import { h } from "../dom.js";
import { figures, heading, shown, sortable } from "../figures.js";
import { flops, integer } from "../format.js";
import { href, withParams } from "../router.js";
import { table } from "../table.js";
import { asParams, chosenOf } from "./balance.js";
import { layoutControls, pages } from "./controls.js";

const FIRST = "-ring_path";

/** A column whose heading sorts by it: the largest first, then, chosen again, the smallest first. */
function sorting(field, label, value, sort) {
  const falling = sort === `-${field}`;
  const rising = sort === field;
  return {
    label,
    number: true,
    value: (pack) => value(pack[field]),
    id: `sort-${field}`,
    href: withParams({ sort: falling ? field : `-${field}`, offset: null }),
    sorted: falling ? "descending" : rising ? "ascending" : null,
  };
}

export async function packs(detail, params) {
  const wanted = chosenOf(detail, params);
  const sort = params.get("sort") ?? FIRST;
  const page = await get(["datasets", detail.name, "packs"], {
    ...asParams(wanted),
    sort,
    offset: params.get("offset"),
    limit: 50,
  });
  const { chosen } = page;
  const column = (field, label, value) => sorting(field, label, value, page.sort);
  const columns = [
    {
      label: "Pack",
      head: true,
      value: (pack) =>
        h(
          "a",
          { href: href(["d", detail.name, "packs", pack.pack_id], { layout: chosen.layout, ring: chosen.ring_degree }) },
          integer(pack.pack_id),
        ),
    },
    { label: "Shard", className: "name", value: (pack) => pack.shard.replace(/\.tar$/, "") },
    ...sortable(await figures()).map((figure) => column(figure.key, heading(figure), (value) => shown(figure, value))),
    column("cost", "Cost", flops),
    column("n_documents", "Documents", integer),
    column("n_images", "Crops", integer),
    column("n_padding", "Padding", integer),
  ];
  return h(
    "section",
    { class: "card", "aria-label": "Packs" },
    layoutControls(detail, chosen),
    h(
      "p",
      { class: "note" },
      "Choose a column's heading to sort by it, and again to reverse the order. Paths are multiples of the tile floor; an imbalance is the busiest rank's work over the mean of all ranks. 1 is perfect.",
    ),
    table({
      caption: `Packs, balance at ${chosen.layout}, ring degree ${chosen.ring_degree}, CP size ${chosen.cp_size}`,
      rows: page.items,
      columns,
    }),
    pages(page),
  );
}
