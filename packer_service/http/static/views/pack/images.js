// The crops that each rank encodes, with the boundaries between ranks.

import { address, imageBytes, token } from "../../api.js";
import { h } from "../../dom.js";
import { bytes, integer, percent, plural, times, timestamp } from "../../format.js";
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

/** What ranks are dealt whole: units, or their crops where these are shared. Ranges of crops, each with its work. */
function partsOf(detail) {
  return detail.units.flatMap(({ first_image: first, end_image: end, load }) => {
    if (!detail.shares_crops) return [{ first, end, load }];
    return Array.from({ length: end - first }, (_, crop) => ({
      first: first + crop,
      end: first + crop + 1,
      load: load / (end - first),
    }));
  });
}

/** The encoder's work on the parts whose crops lie in a rank's range. */
function workOf(parts, boundary) {
  return parts
    .filter((part) => part.first >= boundary.start_image && part.end <= boundary.end_image)
    .reduce((sum, part) => sum + part.load, 0);
}

/** The least that the busiest of some ranks must do, if each takes consecutive whole parts. */
function leastPossible(loads, ranks) {
  let [low, high] = [Math.max(...loads), loads.reduce((sum, load) => sum + load, 0)];
  while (low < high) {
    const most = Math.floor((low + high) / 2);
    let [needed, taken] = [1, 0];
    for (const load of loads) {
      if (taken + load > most) [needed, taken] = [needed + 1, 0];
      taken += load;
    }
    if (needed <= ranks) high = most;
    else low = most + 1;
  }
  return low;
}

/** How evenly the ranks share the work, in words. */
function evenness(parts, work, shared) {
  const even = work.reduce((sum, load) => sum + load, 0) / work.length;
  const least = leastPossible(
    parts.map((part) => part.load),
    work.length,
  );
  const [whole, allow] = shared
    ? ["the crops of one image may lie on two ranks", "crops"]
    : ["a unit (a still image, a frame) is never divided", "units"];
  return (
    `Each CP rank encodes consecutive crops as they are stored; ${whole}. The busiest rank has ` +
    `${times(Math.max(...work) / even)} an even share of the work, ${times(Math.max(...work) / least)} the least that ` +
    `whole ${allow} allow.`
  );
}

function ofRank(path, images, boundary, share) {
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
      ` ${percent(share)} of the work: ${plural(own.length, "crop")}, ${plural(pooled, "pooled token")}`,
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
  const parts = partsOf(detail);
  const work = boundaries.map((boundary) => workOf(parts, boundary));
  const all = work.reduce((sum, load) => sum + load, 0);
  return h(
    "div",
    { class: "ranks" },
    h(
      "p",
      { class: "note" },
      evenness(parts, work, detail.shares_crops),
    ),
    boundaries.map((boundary, rank) => ofRank(path, detail.images, boundary, work[rank] / all)),
  );
}
