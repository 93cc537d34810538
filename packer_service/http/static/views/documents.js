// Where did a document go? A search field, the answer, and a list to choose from.

import { Problem, get } from "../api.js";
import { h } from "../dom.js";
import { integer } from "../format.js";
import { go, href, withParams } from "../router.js";
import { chooser, field, problemBox } from "../section.js";
import { table } from "../table.js";
import { pages } from "./controls.js";

/** Sources from which on one is typed in: nobody looks through a list of thousands. */
const MANY_SOURCES = 100;

const filter = (source) => go(withParams({ source, id: null, offset: null }));

function search(detail, value, params) {
  const input = h("input", {
    id: "document",
    type: "search",
    value,
    maxlength: 1024,
    autocomplete: "off",
    spellcheck: "false",
    size: 36,
  });
  const find = (event) => {
    event.preventDefault();
    const id = input.value;
    go(
      href(["d", detail.name, "documents"], {
        id: event.submitter?.value === "list" ? null : id,
        contains: event.submitter?.value === "list" ? id : null,
        source: typed ? typed.value : params.get("source"),
      }),
    );
  };
  const sources = detail.sources.map((entry) => entry.source);
  const typed =
    sources.length >= MANY_SOURCES &&
    h("input", { id: "source", type: "search", value: params.get("source") ?? "", autocomplete: "off", spellcheck: "false" });
  return h(
    "form",
    { class: "controls", role: "search", onsubmit: find },
    field("Document id", input),
    h("button", { class: "main", value: "find" }, "Where did it go?"),
    h("button", { value: "list" }, "List ids with this in them"),
    typed
      ? field("Source", typed)
      : chooser("source", "Source", ["", ...sources], params.get("source") ?? "", filter, (name) => name || "all sources"),
  );
}

function pieces(detail, answer) {
  const ranks = (piece) =>
    piece.ranks.map(({ ring_rank: rank, tokens }) => `rank ${rank}: ${integer(tokens)}`).join(", ");
  return table({
    caption: `Its positions; ranks at ${answer.chosen.layout}, ring degree ${answer.chosen.ring_degree}`,
    rows: answer.pieces,
    columns: [
      {
        label: "Pack",
        head: true,
        value: (piece) =>
          h(
            "a",
            {
              href: href(["d", detail.name, "packs", piece.pack_id], {
                layout: answer.chosen.layout,
                ring: answer.chosen.ring_degree,
                document: piece.doc_id,
              }),
            },
            `pack ${integer(piece.pack_id)}`,
          ),
      },
      { label: "Shard", className: "name", value: (piece) => piece.shard },
      { label: "Source", value: (piece) => piece.source },
      { label: "First token", number: true, value: (piece) => integer(piece.start) },
      { label: "Tokens", number: true, value: (piece) => integer(piece.length) },
      { label: "Crops", number: true, value: (piece) => integer(piece.n_images) },
      { label: "Cut off", number: true, value: (piece) => integer(piece.truncated_tokens) },
      { label: "Tokens on each ring rank", className: "long", value: ranks },
      {
        label: "Text and images",
        value: (piece) =>
          h("a", { href: href(["d", detail.name, "packs", piece.pack_id, "documents", piece.number]) }, "read"),
      },
    ],
  });
}

async function whereabouts(detail, id, params) {
  let answer;
  try {
    answer = await get(["datasets", detail.name, "documents", id], {
      layout: params.get("layout"),
      ring: params.get("ring"),
    });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return problemBox(error);
  }
  const lost = table({
    caption: "Rejected rows with this id",
    rows: answer.rejects,
    columns: [
      { label: "Reason", head: true, value: (row) => row.code },
      { label: "Stage", value: (row) => row.stage },
      { label: "Where", className: "long", value: (row) => row.location },
      { label: "What was wrong", className: "long", value: (row) => row.message },
    ],
  });
  return h(
    "section",
    { class: "card", "aria-labelledby": "whereabouts" },
    h("h2", { id: "whereabouts" }, id),
    h("p", { class: "verdict" }, answer.summary),
    answer.pieces.length > 0 && pieces(detail, answer),
    answer.rejects.length > 0 && lost,
  );
}

async function list(detail, params) {
  const [contains, source] = [params.get("contains"), params.get("source")];
  const asked = { contains, source, offset: params.get("offset"), limit: 50 };
  const page = await get(["datasets", detail.name, "documents"], asked);
  const which = [contains && `whose id contains ${contains}`, source && `from the source ${source}`].filter(Boolean);
  return h(
    "section",
    { class: "card", "aria-label": "Documents" },
    table({
      caption: `Packed documents ${which.length ? which.join(" ") : "in the order of their packs"}`,
      rows: page.items,
      empty: "No packed document matches. A rejected one is found by its whole id.",
      columns: [
        {
          label: "Document",
          head: true,
          className: "long",
          value: (row) => h("a", { href: withParams({ id: row.doc_id }) }, row.doc_id),
        },
        { label: "Source", value: (row) => row.source },
        {
          label: "Pack",
          number: true,
          value: (row) =>
            h(
              "a",
              { href: href(["d", detail.name, "packs", row.pack_id], { document: row.doc_id }) },
              integer(row.pack_id),
            ),
        },
        { label: "First token", number: true, value: (row) => integer(row.start) },
        { label: "Tokens", number: true, value: (row) => integer(row.length) },
        { label: "Crops", number: true, value: (row) => integer(row.n_images) },
        { label: "Cut off", number: true, value: (row) => integer(row.truncated_tokens) },
      ],
    }),
    pages(page),
  );
}

export async function documents(detail, params) {
  const id = params.get("id");
  return h(
    "div",
    { class: "view" },
    h("section", { class: "card", "aria-label": "Search" }, search(detail, id ?? params.get("contains") ?? "", params)),
    id && (await whereabouts(detail, id, params)),
    await list(detail, params),
  );
}
