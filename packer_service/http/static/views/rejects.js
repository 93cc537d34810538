// What was lost and why: counts by reason and source, and the rows behind each count.

import { get } from "../api.js";
import { h } from "../dom.js";
import { integer, percent, plural } from "../format.js";
import { withParams } from "../router.js";
import { table } from "../table.js";
import { CODES } from "../words.js";
import { pages } from "./controls.js";

/** Columns of sources: those that lost most, where there are more. */
const MOST_SOURCES = 12;

/** Rows of a page of rejects, and reasons that are shown. On a phone, where each is a card of its own, fewer. */
const shown = () => (matchMedia("(max-width: 40rem)").matches ? { rows: 10, reasons: 5 } : { rows: 50, reasons: 10 });

const filter = (code, source) => withParams({ code, source, stage: null, offset: null });

function counts(detail, chosen) {
  const codes = Object.keys(detail.rejects).sort();
  const every = Object.keys(detail.rejects_by_source);
  const count = (source, code) => detail.rejects_by_source[source][code] ?? 0;
  const of = (source) => codes.reduce((sum, code) => sum + count(source, code), 0);
  const sources = every.sort((a, b) => of(b) - of(a)).slice(0, MOST_SOURCES).sort();
  const link = (value, code, source) =>
    value
      ? h(
          "a",
          {
            href: filter(code, source),
            "aria-current": chosen.code === code && chosen.source === source && "true",
            "aria-label": `${value}: show ${[code, source].filter(Boolean).join(" in ") || "all"}`,
          },
          integer(value),
        )
      : "–";
  const all = (code) => every.reduce((sum, source) => sum + count(source, code), 0);
  const some = sources.length < every.length ? ` The ${MOST_SOURCES} of ${integer(every.length)} sources with most of them.` : "";
  return table({
    caption: `Rejected documents by reason and source. Choose a number to see its rows.${some}`,
    stacked: true,
    rows: [...codes, null],
    rowClass: (code) => (chosen.code && chosen.code === code ? "chosen" : null),
    columns: [
      { label: "Reason", head: true, value: (code) => code ?? "all" },
      { label: "Meaning", className: "long", value: (code) => (code ? (CODES[code] ?? "") : "every reason") },
      ...sources.map((source) => ({
        label: source,
        number: true,
        value: (code) => link(code ? count(source, code) : of(source), code, source),
      })),
      {
        label: "all",
        number: true,
        value: (code) => link(code ? all(code) : codes.reduce((sum, one) => sum + all(one), 0), code, null),
      },
    ],
  });
}

/** Messages that differ only in the values they quote are one reason. */
function reasons(detail) {
  return table({
    caption: "The most frequent reasons, each with its first row",
    rows: detail.reject_reasons.slice(0, shown().reasons),
    stacked: true,
    columns: [
      {
        label: "Documents",
        number: true,
        value: (reason) => h("a", { href: filter(reason.code, null) }, integer(reason.documents)),
      },
      { label: "Reason", head: true, value: (reason) => reason.code },
      { label: "For example", className: "long", value: (reason) => reason.message ?? "" },
      { label: "Where", className: "long", value: (reason) => reason.location ?? "" },
    ],
  });
}

export async function rejects(detail, params) {
  const { documents, rejected } = detail.counts;
  if (!rejected)
    return h("p", { class: "empty" }, `Nothing was rejected: all ${plural(documents, "document")} were packed.`);
  const chosen = { code: params.get("code"), source: params.get("source"), stage: params.get("stage") };
  const page = await get(["datasets", detail.name, "rejects"], { ...chosen, offset: params.get("offset"), limit: shown().rows });
  const said = Object.entries(chosen)
    .filter(([, value]) => value)
    .map(([name, value]) => `${name} ${value}`)
    .join(", ");
  const columns = [
    { label: "Document", head: true, className: "long", value: (row) => row.doc_id },
    { label: "Reason", className: "name", value: (row) => row.code },
    { label: "Source", value: (row) => row.source },
    { label: "Stage", value: (row) => row.stage },
    { label: "Where", className: "long", value: (row) => row.location },
    { label: "What was wrong", className: "long", value: (row) => row.message },
  ];
  return h(
    "div",
    { class: "view" },
    h(
      "p",
      { class: "verdict" },
      `${plural(rejected, "document")} of ${integer(documents + rejected)} (${percent(rejected / (documents + rejected))}) could not be packed.`,
    ),
    h("section", { class: "card", "aria-label": "Counts" }, counts(detail, chosen)),
    !said && h("section", { class: "card", "aria-label": "Reasons" }, reasons(detail)),
    h(
      "section",
      { class: "card", "aria-label": "Rows" },
      said && h("p", {}, h("a", { href: filter(null, null) }, "Show all rejects")),
      table({
        caption: `${plural(page.total, "reject")}${said ? ` of ${said}` : ""}`,
        rows: page.items,
        columns,
        stacked: true,
        empty: "No reject matches.",
      }),
      pages(page),
    ),
  );
}
