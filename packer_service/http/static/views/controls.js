// The choice of layout and degrees that several views share; it is part of the address.

import { get } from "../api.js";
import { h } from "../dom.js";
import { integer } from "../format.js";
import { go, withParams } from "../router.js";
import { chooser, field } from "../section.js";

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

/** Datasets that a list offers; where there are more, a name is typed in. */
const MOST_NAMES = 200;

/** The names of whole datasets that a choice offers, which of them hold a pack, and whether those are all. */
export async function offeredDatasets() {
  const { items, total } = await get(["datasets"], { limit: MOST_NAMES });
  const whole = items.filter((entry) => entry.state === "whole");
  const names = whole.map(({ name }) => name);
  const filled = whole.filter(({ counts }) => counts.packs > 0).map(({ name }) => name);
  return { names, filled, all: total <= items.length };
}

/** A choice of a dataset: a list, or a field for its name where the list would leave some out. */
export function datasetChoice(id, label, offered, chosen, onchoose, text = String) {
  const listed = [...new Set([...offered.names, chosen])];
  if (offered.all) return chooser(id, label, listed, chosen, onchoose, text);
  const suggestions = h("datalist", { id: `${id}-names` }, offered.names.filter(Boolean).map((name) => h("option", { value: name })));
  const change = (event) => onchoose(event.target.value.trim());
  const input = h("input", { id, list: suggestions.id, value: chosen, autocomplete: "off", spellcheck: "false", onchange: change });
  const named = field(label, input);
  named.append(suggestions);
  return named;
}

/** Pages from which on a list has a field for the page to go to. */
const MANY_PAGES = 5;

/** A field for the number of a page: a list of a million rows is not walked through page by page. */
function anyPage(page) {
  const last = Math.ceil(page.total / page.limit);
  if (last < MANY_PAGES) return null;
  const number = h("input", {
    id: "page",
    type: "number",
    min: 1,
    max: last,
    step: 1,
    required: true,
    value: Math.floor(page.offset / page.limit) + 1,
  });
  const turn = (event) => {
    event.preventDefault();
    go(withParams({ offset: (number.value - 1) * page.limit || null }));
  };
  return h(
    "form",
    { class: "page", onsubmit: turn },
    h("label", { for: "page" }, "Page"),
    number,
    ` of ${integer(last)}`,
    h("button", { id: "turn" }, "Go"),
  );
}

/** Links to the previous and the next part of a list, and a field for any other. */
export function pages(page) {
  if (page.total <= page.items.length) return null;
  const link = (label, offset) =>
    h(
      "a",
      { id: `page-${label.toLowerCase()}`, href: withParams({ offset: offset || null }), rel: label === "Next" ? "next" : "prev" },
      label,
    );
  return h(
    "nav",
    { class: "pages", "aria-label": "Pages of the list" },
    page.offset > 0 && link("Previous", Math.max(0, page.offset - page.limit)),
    h(
      "span",
      {},
      `${integer(page.offset + 1)} to ${integer(page.offset + page.items.length)} of ${integer(page.total)}`,
    ),
    page.offset + page.items.length < page.total && link("Next", page.offset + page.limit),
    anyPage(page),
  );
}
