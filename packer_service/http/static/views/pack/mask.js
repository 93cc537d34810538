// The attention mask as a picture: queries downwards, keys to the right, coloured by the rank that owns the query.

import { h } from "../../dom.js";
import { integer, percent } from "../../format.js";
import { colour, inkOn, rgb } from "../../palette.js";
import { withParams } from "../../router.js";

const OPAQUE = 255;
/** The faintest cell is still visible: one with a single allowed pair is a tile that a kernel computes. */
const FAINTEST = 60;
/** The square root keeps sparse cells apart, which would all look empty on a linear scale. */
const opacity = (share) => (share > 0 ? FAINTEST + (OPAQUE - FAINTEST) * Math.sqrt(share) : 0);
/** How much of its opacity a cell keeps that is not part of what was chosen. */
const DIMMED = 0.14;

function painted(width, height, pixel) {
  const canvas = h("canvas", { width, height, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) image.data.set(pixel(x, y), 4 * (y * width + x));
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Whether rank `query` computes with keys of rank `key` in what was chosen; null chooses everything. */
function chosenPart(rank, step, ring) {
  return (query, key) => (rank === null || query === rank) && (step === null || (query - step + ring) % ring === key);
}

function reading(canvas, picture) {
  const line = h("p", { class: "note", "aria-hidden": "true" }, "Point at the picture to read off a cell.");
  const range = (index) =>
    `${integer(index * picture.cell)} to ${integer(Math.min((index + 1) * picture.cell, picture.seq_len) - 1)}`;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = (value, extent) => Math.min(picture.size - 1, Math.max(0, Math.floor((picture.size * value) / extent)));
    const x = at(event.clientX - box.left, box.width);
    const y = at(event.clientY - box.top, box.height);
    line.textContent =
      `Queries ${range(y)} of rank ${picture.owners[y]}, keys ${range(x)} of rank ${picture.owners[x]}: ` +
      `${percent(picture.share[y][x])} of the pairs are allowed.`;
  });
  return line;
}

/** Links that choose one of `count` things by its number, or all of them. */
function chips(name, label, count, chosen, coloured) {
  const chip = (value, text) =>
    h(
      "a",
      {
        href: withParams({ [name]: value }),
        id: `${name}-${value ?? "all"}`,
        class: "rankname",
        "aria-current": value === chosen && "true",
        style: coloured && value !== null ? { background: colour(value), color: inkOn(value) } : {},
      },
      text,
    );
  return h(
    "p",
    { class: "chips" },
    h("span", { class: "note" }, label),
    chip(null, "all"),
    Array.from({ length: count }, (_, index) => chip(index, String(index))),
  );
}

function number(params, name, count) {
  const value = params.get(name);
  return value !== null && /^\d+$/.test(value) && Number(value) < count ? Number(value) : null;
}

export function maskPicture(detail, picture, answer, params) {
  const rank = number(params, "rank", answer.ring_degree);
  const step = number(params, "step", answer.ring_degree);
  const part = chosenPart(rank, step, answer.ring_degree);
  const { size, share, owners } = picture;
  const cells = painted(size, size, (x, y) => [
    ...rgb(owners[y]),
    opacity(share[y][x]) * (part(owners[y], owners[x]) ? 1 : DIMMED),
  ]);
  const strip = (across) =>
    across ? painted(size, 1, (x) => [...rgb(owners[x]), OPAQUE]) : painted(1, size, (_, y) => [...rgb(owners[y]), OPAQUE]);
  const allowed = detail.attention_area / detail.seq_len ** 2;
  const said = `Attention mask of ${integer(detail.seq_len)} by ${integer(detail.seq_len)} tokens: ${percent(allowed, 2)} of the pairs are allowed.`;
  return h(
    "div",
    { class: "columns" },
    h(
      "figure",
      {},
      h(
        "div",
        { class: "mask", role: "img", "aria-label": said },
        h("span"),
        h("div", {}, strip(true)),
        h("div", {}, strip(false)),
        h("div", { class: "square" }, cells),
      ),
      reading(cells, picture),
    ),
    h(
      "div",
      { class: "view" },
      h("p", {}, said),
      h(
        "p",
        {},
        "Queries run downwards, keys to the right. A cell has the colour of the ring rank that owns its queries, stronger " +
          "the more of its pairs are allowed. The strips show who owns the queries (left) and the keys (top).",
      ),
      h(
        "p",
        {},
        `In ring step t, rank r has the keys of rank r − t. A tile of ${answer.tile} × ${answer.tile} tokens costs the same whether one of its pairs is allowed or all.`,
      ),
      chips("rank", "Queries of rank", answer.ring_degree, rank, true),
      chips("step", "Ring step", answer.ring_degree, step, false),
    ),
  );
}
