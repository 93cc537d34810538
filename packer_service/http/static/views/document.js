// One document of a pack as it is read: its text with what carries loss, images and frames in place.

import { get } from "../api.js";
import { h } from "../dom.js";
import { integer, percent, plural, timestamp } from "../format.js";
import { href, withParams } from "../router.js";
import { card, crumbs, facts } from "../section.js";
import { thumbnail } from "./pack/images.js";

/** Tokens of an answer. */
const MOST_TOKENS = 8192;

function ranges(positions) {
  const names = positions.length > 1 ? ["time ", "height ", "width "] : [""];
  return positions.map(([first, last], axis) => `${names[axis]}${integer(first)}–${integer(last)}`).join(", ");
}

/** A unit: its pictures, and what stands for it. */
function unit(path, shown, span, exact) {
  const what = shown.kind === "image" ? "image" : "video";
  const grid = shown.grid.slice(shown.grid[0] > 1 ? 0 : 1).join(" × ");
  const sizes = [...new Set(shown.crops.map((crop) => `${crop.width} × ${crop.height}`))].join(", ");
  const times = shown.crops.map((crop) => crop.timestamp).filter((seconds) => seconds !== null);
  const when = times.length ? ` at ${[...new Set(times.map(timestamp))].join(", ")}` : "";
  const described = `${what} ${shown.medium + 1}${when}: ${sizes}`;
  const counts = `${grid} patches, ${plural(shown.rows, "row")}`;
  const place = `tokens ${integer(shown.start)}–${integer(shown.end - 1)}, positions ${ranges(span.positions)}`;
  return h(
    "span",
    { class: "unit" },
    shown.crops.map((crop) => thumbnail(path, crop.index, described)),
    h("small", {}, described, h("br"), counts, exact && [h("br"), place]),
  );
}

/** Where a run of text stands, in front of it. */
const placed = (span) =>
  h("small", { class: "place" }, `${integer(span.start)}–${integer(span.end - 1)} at ${ranges(span.positions)}`);

function content(path, answer, exact) {
  const units = new Map(answer.units.map((shown) => [shown.number, shown]));
  let branch = 0;
  return answer.spans.flatMap((span) => {
    const parts = [];
    if (span.branch !== branch && span.branch > 0)
      parts.push(h("strong", { class: "edge" }, `\n── annotation ${span.branch}, from position ${integer(span.positions[0][0])} ──\n`));
    branch = span.branch;
    if (exact && span.unit === null) parts.push(placed(span));
    if (span.unit !== null) parts.push(unit(path, units.get(span.unit), span, exact));
    else if (span.loss) parts.push(h("mark", { title: `loss weight ${span.weight.toPrecision(3)}` }, span.text));
    else parts.push(span.text);
    return parts;
  });
}

function neighbours(name, id, answer) {
  const link = (number, label) =>
    number !== null && h("a", { href: href(["d", name, "packs", id, "documents", number]) }, label);
  return h(
    "nav",
    { "aria-label": "Other documents of the pack" },
    link(answer.previous, "← Previous document"),
    link(answer.next, "Next document →"),
  );
}

function parts(answer) {
  const part = (label, id, from) => h("a", { id, href: withParams({ tokens: from }) }, label);
  return h(
    "nav",
    { class: "pages", "aria-label": "Parts of the document" },
    answer.start > 0 && part("← Earlier", "tokens-earlier", Math.max(0, answer.start - MOST_TOKENS)),
    h("span", {}, `tokens ${integer(answer.start)} to ${integer(answer.end - 1)} of ${integer(answer.length)}`),
    answer.end < answer.length && part("Later →", "tokens-later", answer.end),
  );
}

export async function packedDocument(name, id, number, params) {
  const path = ["datasets", name, "packs", id];
  const exact = params.get("positions") !== null;
  const answer = await get([...path, "documents", number], { start: params.get("tokens") });
  return h(
    "div",
    { class: "view" },
    crumbs(
      ["Datasets", href([])],
      [name, href(["d", name])],
      ["Packs", href(["d", name, "packs"])],
      [`Pack ${id}`, href(["d", name, "packs", id], { document: answer.doc_id })],
      [answer.doc_id],
    ),
    h("div", { class: "heading" }, h("h1", {}, answer.doc_id), neighbours(name, id, answer)),
    h(
      "section",
      { class: "card", "aria-label": "Totals" },
      facts([
        ["Source", answer.source, answer.piece ? `piece ${answer.piece}` : null],
        ["Tokens", integer(answer.length), `from token ${integer(answer.first_token)} of the pack`],
        ["Tokens with loss", integer(answer.loss_tokens), `${percent(answer.loss_tokens / Math.max(1, answer.length))} of them`],
        ["Annotations", integer(answer.annotations), "branches that do not see each other"],
      ]),
    ),
    card(
      "As it is read",
      h(
        "div",
        { class: "view" },
        h(
          "p",
          { class: "note" },
          h("mark", { class: "sample" }, "Marked"),
          ` tokens carry loss. Decoded by ${answer.tokenizer}. `,
          h(
            "a",
            {
              id: "positions",
              "data-says": exact ? "Tokens and positions are shown" : "Tokens and positions are hidden",
              href: withParams({ positions: exact ? null : "shown" }),
            },
            exact ? "Hide tokens and positions" : "Show tokens and positions",
          ),
          exact && ". In front of each run of text: its tokens in the document, at the positions that the model gives them.",
        ),
        parts(answer),
        h(
          "div",
          { class: "tokens tall", tabindex: "0", role: "region", "aria-label": "Document" },
          content(path, answer, exact),
        ),
      ),
    ),
  );
}
