// Packs in any order, the worst balanced first.

import { get } from "../api.js";
import { h } from "../dom.js";
import { flops, integer, percent } from "../format.js";
import { href, withParams } from "../router.js";
import { table } from "../table.js";
import { chosenOf } from "./balance.js";
import { layoutControls, pages } from "./controls.js";

const FIRST = "-ring";
const decimals = (value) => (value === null ? "–" : value.toFixed(3));

/** A column whose header sorts by it: first the largest, then, asked again, the smallest. */
function sortable(field, label, value, sort) {
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
    ...wanted,
    sort,
    offset: params.get("offset"),
    limit: 50,
  });
  const { chosen } = page;
  const column = (field, label, value) => sortable(field, label, value, page.sort);
  const columns = [
    {
      label: "Pack",
      head: true,
      value: (pack) =>
        h(
          "a",
          { href: href(["d", detail.name, "packs", pack.pack_id], { layout: chosen.layout, ring: chosen.ring }) },
          integer(pack.pack_id),
        ),
    },
    { label: "Shard", className: "name", value: (pack) => pack.shard.replace(/\.tar$/, "") },
    column("ring", "Ring path", decimals),
    column("gather", "Gather path", decimals),
    column("attention", "Attention", decimals),
    column("traffic", "KV traffic", (value) => (value === null ? "–" : percent(value))),
    column("images", "Image imb.", decimals),
    column("cost", "Cost", flops),
    column("n_documents", "Documents", integer),
    column("n_images", "Images", integer),
    column("n_padding", "Padding", integer),
  ];
  return h(
    "section",
    { class: "card", "aria-label": "Packs" },
    layoutControls(detail, chosen),
    h(
      "p",
      { class: "note" },
      "Choose a column's head to sort by it, and again to turn the order. Paths are multiples of the tile floor, imbalances the largest rank over the mean: 1 is perfect.",
    ),
    table({
      caption: `Packs, balance at ${chosen.layout}, ring ${chosen.ring}, CP ${chosen.cp}`,
      rows: page.items,
      columns,
    }),
    pages(page),
  );
}
