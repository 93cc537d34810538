// From the address to a view: loads what the view needs, shows it, and says what went wrong.

import { Problem, abandon, forget, token } from "./api.js";
import { announce, h } from "./dom.js";
import { current } from "./router.js";
import { field, takeAwaited } from "./section.js";
import { compare } from "./views/compare.js";
import { dataset } from "./views/dataset.js";
import { datasets } from "./views/datasets.js";
import { packedDocument } from "./views/document.js";
import { pack } from "./views/pack.js";
import { whatIf } from "./views/plan.js";

const main = document.getElementById("main");
/** Milliseconds before a view counts as slow: shorter waits would only make the page flicker. */
const PATIENCE = 150;
let shown = { path: null, turn: 0 };

function viewOf(segments) {
  const [first, name, part, id, inside, number] = segments;
  if (!first) return { nav: "datasets", title: "Datasets", build: () => datasets(current().params) };
  if (first === "plan" && !name) return { nav: "plan", title: "What if", build: () => whatIf(current().params) };
  if (first === "compare" && !name) return { nav: "compare", title: "Compare", build: () => compare(current().params) };
  if (first === "d" && name && part === "packs" && id && inside === "documents" && number) {
    const title = `Document ${number} of pack ${id} of ${name}`;
    return { nav: "datasets", title, build: () => packedDocument(name, id, number, current().params) };
  }
  if (first === "d" && name && part === "packs" && id) {
    return { nav: "datasets", title: `Pack ${id} of ${name}`, build: () => pack(name, id, current().params) };
  }
  if (first === "d" && name) {
    return { nav: "datasets", title: name, build: () => dataset(name, part ?? "overview", current().params) };
  }
  return { nav: null, title: "No such page", build: () => h("p", { class: "empty" }, "There is no such page.") };
}

/** A problem in sentences, or for a 401 the field for the token. */
function problemView(error) {
  if (!(error instanceof Problem)) console.error(error);
  const known = error instanceof Problem;
  const box = h(
    "div",
    { class: "problem", role: "alert" },
    h("p", {}, h("strong", {}, known ? error.title : "This view could not be shown")),
    error.message === error.title ? null : h("p", {}, error.message),
  );
  return h("div", { class: "view" }, h("h1", {}, "Sorry"), error.status === 401 ? askForToken() : box);
}

function askForToken() {
  const input = h("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const send = (event) => {
    event.preventDefault();
    token.set(input.value.trim());
    show();
  };
  const refused = token.get()
    ? h("p", { class: "problem", role: "alert" }, "The service did not accept that token.")
    : null;
  return h(
    "form",
    { class: "card", onsubmit: send },
    h("p", {}, "This service asks for its token. It is kept in this tab until you close it."),
    refused,
    h("div", { class: "controls" }, field("Token", input), h("button", { class: "main" }, "Continue")),
  );
}

/**
 * Replaces the view. A change of parameters alone keeps the scroll position and the focus, even if the focus is in a card
 * whose content arrives later: until then the page keeps its height. Where what had the focus is gone, the view has it.
 */
function swap(node, samePath) {
  const inside = main.contains(document.activeElement);
  const focused = document.activeElement?.id;
  const regain = (last) => {
    if (!inside || document.activeElement !== document.body) return;
    const found = focused && document.getElementById(focused);
    if (found || last) (found || main).focus({ preventScroll: true });
  };
  const height = window.scrollY;
  main.style.minHeight = samePath ? `${main.offsetHeight}px` : "";
  main.replaceChildren(node);
  window.scrollTo(0, samePath ? height : 0);
  if (samePath) regain(false);
  else main.focus({ preventScroll: true });
  Promise.allSettled(takeAwaited()).then(() => {
    if (!node.isConnected) return;
    if (samePath) regain(true);
    main.style.minHeight = "";
  });
}

/** What is said of a view that changed: what its most telling element says of itself, or its text. */
function changed(node) {
  const telling = node.querySelector("[data-says]");
  return telling?.dataset.says || telling?.textContent || "Updated";
}

async function show() {
  const { segments } = current();
  const path = segments.join("/");
  const samePath = path === shown.path;
  const first = shown.path === null;
  const turn = shown.turn + 1;
  shown = { path, turn };
  abandon();
  const view = viewOf(segments);
  if (!samePath) forget();
  document.title = view.title === "Datasets" ? "preshard" : `${view.title} · preshard`;
  for (const link of document.querySelectorAll("[data-nav]")) {
    if (link.dataset.nav === view.nav) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => {
    announce("Loading");
    if (!samePath) main.replaceChildren(h("p", { class: "loading" }, "Loading…"));
  }, PATIENCE);
  let node;
  try {
    node = await view.build();
  } catch (error) {
    node = problemView(error);
  }
  clearTimeout(slow);
  if (turn !== shown.turn) return; // the reader has moved on
  swap(node, samePath || first);
  main.removeAttribute("aria-busy");
  main.dataset.address = location.hash; // what is shown, which may lag behind the address bar
  announce(first || !samePath ? `${view.title} shown` : changed(node));
}

// The skip link's own address must not become a view's.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", show);
show();
