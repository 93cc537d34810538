// What would another configuration give? Lengths, or a dataset's own documents, are planned again; nothing is written.

import { Problem, get, post } from "../api.js";
import { announce, h } from "../dom.js";
import { figures } from "../figures.js";
import { plural } from "../format.js";
import { go, href } from "../router.js";
import { card, field, problemBox } from "../section.js";
import { datasetChoice, offeredDatasets } from "./controls.js";
import { answered } from "./plan/answer.js";
import { keyForm } from "./plan/keys.js";

const LENGTHS = "812 0\n20480 120\n3300 4\n15000 96\n700 0\n9000 40";
/** What was typed, kept while the reader looks at something else. */
let typed = LENGTHS;

function parsedLengths(given) {
  const rows = given
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean)
    .map((line) => line.split(/[\s,;]+/).map(Number));
  if (!rows.length || rows.flat().some((value) => !Number.isInteger(value) || value < 0)) {
    throw new Problem(
      0,
      "Each line holds the tokens of one document and the number of its crops, if any: two whole numbers.",
    );
  }
  return { tokens: rows.map(([tokens]) => tokens), images: rows.map(([, images = 0]) => images) };
}

/** What a plan of a dataset's documents cannot know. */
async function staysOut(name) {
  if (!name) return null;
  const { counts } = await get(["datasets", name]);
  if (!counts.rejected) return null;
  return (
    "Before and after are plans of the documents that the dataset holds: " +
    `what packing it rejected, ${plural(counts.rejected, "document")}, is in neither.`
  );
}

/** Plans before and after, one after the other: the service makes one at a time. */
async function compared(name, documents, values, known) {
  const what = JSON.stringify(documents);
  if (known.what !== what) Object.assign(known, { what, before: await post(["plan"], { ...documents, config: {} }) });
  const after = Object.keys(values).length ? await post(["plan"], { ...documents, config: values }) : null;
  return answered(known.before, after, await staysOut(name), await figures());
}

function documentsField({ names, all }, chosen) {
  const choose = (name) => go(href(["plan"], { dataset: name }));
  const offered = { names: ["", ...names], all };
  return datasetChoice("source", "Documents", offered, chosen, choose, (name) => name || "lengths that I type in");
}

export async function whatIf(params) {
  const offered = await offeredDatasets();
  const name = params.get("dataset") ?? "";
  const { keys } = await get(["plan", "keys"], { dataset: name });
  const form = keyForm(keys, (key) => params.get(key));
  const lengths = h("textarea", { id: "lengths", class: "mono", spellcheck: "false" });
  lengths.value = typed;
  const result = h("div", { class: "view", id: "answer" }, h("p", { class: "empty" }, "No plan yet."));
  const button = h("button", { id: "plan-it", class: "main" }, "Plan it");
  const known = {};

  async function ask(event) {
    event.preventDefault();
    button.disabled = true;
    result.replaceChildren(h("p", { class: "loading" }, "Planning…"));
    try {
      typed = lengths.value;
      const documents = name ? { dataset: name } : { lengths: parsedLengths(typed) };
      const { values, texts } = form.changes();
      remember(href(["plan"], { dataset: name, ...texts }));
      result.replaceChildren(await compared(name, documents, values, known));
      announce(result.querySelector(".verdict").textContent);
    } catch (error) {
      if (error.name === "AbortError") return; // another view is shown
      result.replaceChildren(problemBox(error));
    }
    button.disabled = false;
    button.focus({ preventScroll: true });
  }

  return h(
    "div",
    { class: "view" },
    h("h1", {}, "What if"),
    h("p", { class: "note" }, "How full and how even would packs be with another configuration? Nothing is written."),
    h(
      "form",
      { class: "card", onsubmit: ask },
      documentsField(offered, name),
      !name && field("Lengths: one document per line, its tokens and crops", lengths),
      form.nodes,
      h("div", { class: "controls" }, button, h("a", { id: "present", href: href(["plan"], { dataset: name }), class: "note" }, "Back to the present values")),
    ),
    card("Before and after", result),
  );
}

/** The address says what is asked, so that it can be sent, without showing the view anew. */
function remember(address) {
  history.replaceState(null, "", address);
  document.getElementById("main").dataset.address = location.hash;
}
