// A card whose content may arrive later than the view, and may fail on its own.

import { Problem } from "./api.js";
import { h } from "./dom.js";

const awaited = new Set();

/** Promises of the cards that were made since the last call. */
export function takeAwaited() {
  const taken = [...awaited];
  awaited.clear();
  return taken;
}

/** The sentences of a problem, in place of what could not be shown. */
export function problemBox(error) {
  if (!(error instanceof Problem)) console.error(error);
  return h("div", { class: "problem", role: "alert" }, h("p", {}, error.message));
}

/** A card with a heading; `content` is an element or several, or a promise of one that the card waits for. */
export function card(title, content, { note = null, id = null } = {}) {
  const body = h("div", { class: "view" });
  const whole = h(
    "section",
    { class: "card", "aria-labelledby": id && `${id}-title` },
    h("h2", { id: id && `${id}-title` }, title),
    note && h("p", { class: "note" }, note),
    body,
  );
  if (!(content instanceof Promise)) {
    body.append(...[content].flat());
    return whole;
  }
  body.append(h("p", { class: "loading" }, "Loading…"));
  awaited.add(content);
  content.then(
    (node) => body.replaceChildren(node),
    (error) => body.replaceChildren(problemBox(error)),
  );
  return whole;
}

/** Where this view is: links up to the list of datasets. */
export function crumbs(...steps) {
  const items = steps.map(([label, href], index) =>
    h(
      "li",
      {},
      href ? h("a", { href }, label) : h("span", { "aria-current": index === steps.length - 1 && "page" }, label),
    ),
  );
  return h("nav", { class: "crumbs", "aria-label": "Where you are" }, h("ol", {}, items));
}

/** Facts, each with a name, a value and an optional line of explanation. */
export function facts(entries) {
  return h(
    "dl",
    { class: "facts" },
    entries.map(([name, value, more]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value, more && h("small", {}, more))),
    ),
  );
}

/** A control under its name. */
export function field(label, control) {
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control);
}

/** A select that calls `onchoose` when it changes; `text` gives an option's label. */
export function chooser(id, label, options, chosen, onchoose, text = String) {
  const entries = options.map((option) =>
    h("option", { value: option, selected: String(option) === String(chosen) }, text(option)),
  );
  return field(label, h("select", { id, onchange: (event) => onchoose(event.target.value) }, entries));
}
