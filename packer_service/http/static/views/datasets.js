// The list of datasets below the service's root.

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, day, integer, percent } from "../format.js";
import { href } from "../router.js";
import { table } from "../table.js";
import { pages } from "./controls.js";

const PAGE = 200;

function state(entry) {
  if (entry.state === "whole") return "whole";
  return [
    h("span", { class: entry.state === "damaged" ? "state bad" : "state" }, entry.state),
    h("div", { class: "note" }, entry.reason),
  ];
}

const number = (label, value) => ({ label, number: true, value: (entry) => (entry.counts ? value(entry) : "–") });

export async function datasets(params) {
  const page = await get(["datasets"], { limit: PAGE, offset: params.get("offset") });
  const list = table({
    caption: "By name. Fill: real tokens of all positions in packs. Rejected: documents that could not be packed. Size: of all shards.",
    rows: page.items,
    empty: page.total
      ? "The list ends before this page."
      : "There is no dataset here yet. Pack one below the folder that this service was started with, and it will appear.",
    columns: [
      {
        label: "Name",
        head: true,
        className: "long",
        value: (entry) =>
          entry.state === "whole" ? h("a", { href: href(["d", entry.name]) }, entry.name) : entry.name,
      },
      { label: "State", className: "long", value: state },
      number("Packs", (entry) => integer(entry.counts.packs)),
      number("Pack length", (entry) => `${integer(entry.seq_len)} tokens`),
      number("Fill", (entry) => percent(entry.fill)),
      number("Documents", (entry) => integer(entry.counts.documents)),
      number("Rejected", (entry) => integer(entry.counts.rejected)),
      { label: "Size", number: true, value: (entry) => bytes(entry.bytes) },
      {
        label: "Packed",
        className: "name",
        value: ({ packed }) => (packed ? h("time", { datetime: packed, title: packed }, day(packed)) : "–"),
      },
    ],
    stacked: true,
  });
  return h(
    "div",
    { class: "view" },
    h("h1", {}, "Datasets"),
    h("p", { class: "note" }, "What was packed, how full and how balanced it is, and what was lost. Choose a dataset."),
    h("section", { class: "card", "aria-label": "All datasets" }, list, pages(page)),
    !page.complete &&
      h("p", { class: "note" }, "There may be more: the folder is deeper or wider than the service looks."),
  );
}
