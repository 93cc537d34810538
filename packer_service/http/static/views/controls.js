// The choice of layout and degrees that several views share; it is part of the address.

import { h } from "../dom.js";
import { go, withParams } from "../router.js";
import { chooser } from "../section.js";

const choose = (name) => (value) => go(withParams({ [name]: value, offset: null }));

/** Selects for layout, ring degree and CP size; `also` holds further selects. */
export function layoutControls(detail, chosen, also = []) {
  return h(
    "form",
    { class: "controls", "aria-label": "What to show", onsubmit: (event) => event.preventDefault() },
    chooser("layout", "Layout", detail.layouts, chosen.layout, choose("layout")),
    chooser("ring", "Ring degree", detail.ring_degrees, chosen.ring_degree, choose("ring")),
    chooser("cp", "CP size (images)", detail.cp_sizes, chosen.cp_size, choose("cp")),
    also,
  );
}

/** A select for one parameter of the address; `text` gives an option's label. */
export function choice(name, label, options, chosen, text = String) {
  return chooser(name, label, options, chosen, choose(name), text);
}

/** Links to the previous and the next part of a list. */
export function pages(page) {
  if (page.total <= page.items.length) return null;
  const link = (label, offset) =>
    h("a", { href: withParams({ offset: offset || null }), rel: label === "Next" ? "next" : "prev" }, label);
  return h(
    "nav",
    { class: "pages", "aria-label": "Pages of the list" },
    page.offset > 0 && link("Previous", Math.max(0, page.offset - page.limit)),
    h(
      "span",
      {},
      `${page.offset + 1} to ${page.offset + page.items.length} of ${new Intl.NumberFormat("en").format(page.total)}`,
    ),
    page.offset + page.items.length < page.total && link("Next", page.offset + page.limit),
  );
}
