// The crops that each rank encodes, with the boundaries between ranks.

import { address, imageBytes, token } from "../../api.js";
import { h } from "../../dom.js";
import { bytes, integer, percent, plural, timestamp } from "../../format.js";
import { colour, inkOn } from "../../palette.js";

const FIRST = 24;

function described(image) {
  const when = image.timestamp === null ? "" : ` at ${timestamp(image.timestamp)}`;
  return `Crop ${image.index} of ${image.doc_id}${when}, ${image.width} × ${image.height}, ${bytes(image.bytes)}`;
}

/** Acts once an element scrolls into view, as `loading="lazy"` does for images that the browser fetches itself. */
function whenSeen(element, act) {
  const sight = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      sight.disconnect();
      act();
    },
    { rootMargin: "400px" },
  );
  sight.observe(element);
}

async function showBytes(picture, segments) {
  try {
    picture.src = await imageBytes(segments);
    await picture.decode();
    URL.revokeObjectURL(picture.src);
  } catch {
    picture.alt = `${picture.alt}: cannot be shown`;
  }
}

/** A crop as it is stored, under its number in the pack. */
export function thumbnail(path, index, said) {
  const segments = [...path, "images", index];
  const picture = h("img", { loading: "lazy", decoding: "async", width: 72, height: 72, alt: said, title: said });
  if (token.get()) whenSeen(picture, () => showBytes(picture, segments));
  else picture.src = address(segments);
  return picture;
}

const listed = (path, image) => h("li", {}, thumbnail(path, image.index, described(image)));

function ofRank(path, images, boundary, all) {
  const own = images.slice(boundary.start_image, boundary.end_image);
  const list = h(
    "ul",
    { class: "thumbs" },
    own.slice(0, FIRST).map((image) => listed(path, image)),
  );
  const rest = own.slice(FIRST);
  const more =
    rest.length > 0 &&
    h(
      "button",
      { onclick: () => (list.append(...rest.map((image) => listed(path, image))), more.remove()) },
      `Show ${integer(rest.length)} more`,
    );
  const pooled = boundary.end_pooled - boundary.start_pooled;
  return h(
    "section",
    { style: { "border-left-color": colour(boundary.rank) } },
    h(
      "h3",
      {},
      h(
        "span",
        { class: "rankname", style: { background: colour(boundary.rank), color: inkOn(boundary.rank) } },
        boundary.rank,
      ),
      ` ${plural(own.length, "crop")} (${percent(own.length / all)}), ${plural(pooled, "pooled token")}`,
    ),
    h(
      "p",
      { class: "note" },
      own.length
        ? `Crops ${integer(boundary.start_image)} to ${integer(boundary.end_image - 1)}`
        : "No crop: this rank only takes part in the exchange.",
    ),
    list,
    more,
  );
}

export function images(path, detail, cp) {
  if (!detail.n_images) return h("p", { class: "empty" }, "This pack holds no images.");
  const boundaries = detail.boundaries[String(cp)];
  if (!boundaries) {
    return h(
      "p",
      { class: "empty" },
      `No image boundaries were planned for CP size ${cp}. The planned sizes are ${detail.cp_sizes.join(", ")}: choose degrees whose product is one of them.`,
    );
  }
  return h(
    "div",
    { class: "ranks" },
    h(
      "p",
      { class: "note" },
      "Each CP rank encodes a contiguous range of crops. The frames of one unit are never divided.",
    ),
    boundaries.map((boundary) => ofRank(path, detail.images, boundary, detail.n_images)),
  );
}
