// Documents, their images and the ranks that hold them, as strips along the sequence.

import { h, svg } from "../../dom.js";
import { integer, percent } from "../../format.js";
import { colour, colours, variable } from "../../palette.js";
import { go, href, withParams } from "../../router.js";
import { table } from "../../table.js";

const WIDTH = 1000;

/** Ranges of the sequence as coloured rectangles; each range has a start, length, colour and label, and may have an href. */
function strip(label, seqLen, ranges, className) {
  const scale = WIDTH / seqLen;
  return svg(
    "svg",
    { class: className, viewBox: `0 0 ${WIDTH} 10`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    ranges.map(({ start, length, fill, opacity, said, href }) =>
      svg(
        "rect",
        {
          x: start * scale,
          width: Math.max(length * scale - 0.6, 0.4),
          height: 10,
          fill,
          "fill-opacity": opacity ?? 1,
          "data-href": href,
          onclick: href && (() => go(href)),
        },
        svg("title", {}, said),
      ),
    ),
  );
}

function legend(entries) {
  return h(
    "ul",
    { class: "legend" },
    entries.map(([name, fill]) => h("li", {}, h("span", { class: "swatch", style: { background: fill } }), name)),
  );
}

function documentRanges(detail, palette, wanted) {
  return detail.documents.map((document, index) => ({
    start: document.start,
    length: document.length,
    fill: palette.get(document.source),
    opacity: wanted && document.doc_id !== wanted ? 0.2 : index % 2 ? 0.72 : 1,
    said: `${document.doc_id} (${document.source}): ${integer(document.length)} tokens from ${integer(document.start)}, ${integer(document.n_images)} crops`,
    href: withParams({ tokens: document.start, document: document.doc_id }),
  }));
}

function imageRanges(detail) {
  return detail.images.map((image) => ({
    start: image.start,
    length: image.end - image.start,
    fill: variable("--quiet"),
    said: `crop ${image.index} of ${image.doc_id}`,
  }));
}

function ownerRanges(answer) {
  return answer.runs.map(([rank, start, length]) => ({
    start,
    length,
    fill: colour(rank),
    said: `ring rank ${rank}: ${integer(length)} tokens from ${integer(start)}`,
  }));
}

function documentTable(name, detail, wanted) {
  const all = Math.max(1, detail.attention_area);
  return table({
    caption: "Documents of the pack",
    rows: detail.documents,
    rowClass: (document) => (document.doc_id === wanted ? "chosen" : null),
    empty: "This pack holds no document.",
    columns: [
      {
        label: "Document",
        head: true,
        className: "long",
        value: (document) =>
          h("a", { href: withParams({ tokens: document.start, document: document.doc_id }) }, document.doc_id),
      },
      { label: "Source", value: (document) => document.source },
      { label: "First token", number: true, value: (document) => integer(document.start) },
      { label: "Tokens", number: true, value: (document) => integer(document.length) },
      { label: "Crops", number: true, value: (document) => integer(document.n_images) },
      { label: "Annotations", number: true, value: (document) => integer(document.branches) },
      {
        label: "Text and images",
        value: (document) => h("a", { href: href(["d", name, "packs", detail.pack_id, "documents", document.number]) }, "read"),
      },
      { label: "Of the attention", number: true, value: (document) => percent(document.attention_area / all) },
    ],
  });
}

export function alongTheSequence(name, detail, answer, params) {
  const found = detail.documents.find((document) => document.doc_id === params.get("document"));
  const wanted = found?.doc_id;
  const sources = colours(detail.documents.map((document) => document.source));
  const { seq_len: length } = detail;
  return h(
    "div",
    { class: "view" },
    found &&
      h(
        "p",
        { class: "verdict" },
        `${found.doc_id} has ${integer(found.length)} tokens, starting at token ${integer(found.start)}.`,
      ),
    h(
      "figure",
      {},
      h(
        "figcaption",
        { class: "note" },
        `Documents, coloured by source; bare stretches are padding (${integer(detail.n_padding)} tokens). The table below shows the same.`,
      ),
      strip("Documents along the sequence", length, documentRanges(detail, sources, wanted), "strip"),
      legend([...sources]),
    ),
    detail.images.length > 0 &&
      h(
        "figure",
        {},
        h("figcaption", { class: "note" }, "Tokens that images fill"),
        strip("Image tokens along the sequence", length, imageRanges(detail), "strip thin"),
      ),
    h(
      "figure",
      {},
      h("figcaption", { class: "note" }, `The ring rank that holds each token: ${answer.layout}, ring degree ${answer.ring_degree}`),
      strip("Owning ring rank along the sequence", length, ownerRanges(answer), "strip thin"),
      legend(answer.ranks.map(({ ring_rank: rank }) => [`rank ${rank}`, colour(rank)])),
      h(
        "div",
        { class: "axis", "aria-hidden": "true" },
        [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", {}, integer(part * length))),
      ),
    ),
    h(
      "details",
      { open: Boolean(found) },
      h("summary", {}, "Documents as a table"),
      documentTable(name, detail, wanted),
    ),
  );
}
