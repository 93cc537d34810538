// The tokens of a part of the pack as text, those with loss marked.

import { get } from "../../api.js";
import { h } from "../../dom.js";
import { integer, plural } from "../../format.js";
import { withParams } from "../../router.js";
import { thumbnail } from "./images.js";

const WINDOW = 2048;

/** A crop in its place: its picture, and the tokens that stand for it. */
function crop(path, detail, span, size) {
  const { width, height } = detail.images[span.image];
  const said = `crop ${span.image}, ${width} × ${height}`;
  return h(
    "span",
    { class: "unit small" },
    thumbnail(path, span.image, said),
    h("small", {}, `${said}: ${plural(size, "token")}`),
  );
}

function rendered(path, detail, span) {
  const size = span.end - span.start;
  if (span.kind === "padding") return h("span", { class: "edge" }, `[${integer(size)} tokens of padding]`);
  if (span.kind === "image") return crop(path, detail, span, size);
  if (!span.loss) return span.text;
  return h("mark", { title: `loss weight ${span.weight.toPrecision(3)}` }, span.text);
}

/** The spans, with a heading wherever another document or annotation begins. */
function paragraphs(path, detail, spans) {
  const name = (number) =>
    detail.documents.find((document) => document.number === number)?.doc_id ?? `document ${number}`;
  let before = { document: null, branch: 0 };
  return spans.flatMap((span) => {
    const parts = [];
    if (span.document !== before.document && span.document >= 0) {
      parts.push(
        h("strong", { class: "edge" }, `${before.document === null ? "" : "\n\n"}── ${name(span.document)} ──\n`),
      );
    } else if (span.branch !== before.branch && span.branch > 0) {
      parts.push(h("strong", { class: "edge" }, `\n── annotation ${span.branch} ──\n`));
    }
    before = span;
    return [...parts, rendered(path, detail, span)];
  });
}

export async function text(path, detail, params) {
  const asked = Number.parseInt(params.get("tokens") ?? "0", 10);
  const start = Math.min(Math.max(0, Number.isNaN(asked) ? 0 : asked), detail.seq_len - 1);
  const end = Math.min(start + WINDOW, detail.seq_len);
  const answer = await get([...path, "text"], { start, end });
  const part = (label, id, from) => h("a", { id, href: withParams({ tokens: from }) }, label);
  return h(
    "div",
    { class: "view" },
    h(
      "p",
      { class: "note" },
      h("mark", { class: "sample" }, "Marked"),
      " tokens carry loss: they are the label of the token before them. The rest is only context. Decoded by ",
      answer.tokenizer,
      ".",
    ),
    h(
      "nav",
      { class: "pages", "aria-label": "Parts of the sequence" },
      start > 0 && part("← Earlier", "tokens-earlier", Math.max(0, start - WINDOW)),
      h("span", {}, `tokens ${integer(answer.start)} to ${integer(answer.end - 1)} of ${integer(detail.seq_len)}`),
      end < detail.seq_len && part("Later →", "tokens-later", end),
    ),
    h(
      "div",
      { class: "tokens", tabindex: "0", role: "region", "aria-label": "Decoded tokens" },
      paragraphs(path, detail, answer.spans),
    ),
  );
}
