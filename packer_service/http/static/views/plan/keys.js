// The keys of a configuration as controls, each with its meaning, its range and its present value.

import { Problem } from "../../api.js";
import { h } from "../../dom.js";
import { integer } from "../../format.js";

/** Headings, and the keys or sections below each. A key that is new in the service stands below the first. */
const GROUPS = [
  ["Packs", []],
  ["Layouts", ["layouts", "ring_degrees", "cp_sizes", "block_size", "bidirectional"]],
  ["Order of packs", ["order"]],
  ["Crops", ["vision"]],
  ["The model that will train", ["cost"]],
];

const groupOf = (key) =>
  (GROUPS.find(([, members]) => members.includes(key) || members.includes(key.split(".")[0])) ?? GROUPS[0])[0];

/** A value as a control shows it, and as an address holds it. */
export function written(key, value) {
  if (value === null || value === undefined) return "";
  if (key.kind === "weights" || key.kind === "types") return Object.entries(value).map(([name, weight]) => `${name}: ${weight}`).join(", ");
  if (key.kind === "phases") return JSON.stringify(value);
  return Array.isArray(value) ? value.join(", ") : String(value);
}

const parts = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);

function numberOf(key, text) {
  const value = Number(text);
  if (text === "" || Number.isNaN(value)) throw new Problem(0, `${key.key}: “${text}” is not a number.`);
  return value;
}

function weightsOf(key, text) {
  const given = parts(text).map((part) => part.split(/:(?=[^:]*$)/));
  const weights = Object.fromEntries(given.map(([name, weight]) => [name.trim(), numberOf(key, (weight ?? "").trim())]));
  // what the dataset's own mixture names and this one does not counts once again
  return { ...Object.fromEntries(Object.keys(key.value ?? {}).map((name) => [name, 1])), ...weights };
}

/** The value that a text means. */
function parsed(key, text) {
  if (key.kind === "weights") return weightsOf(key, text);
  if (key.kind === "integers") return parts(text).map((part) => numberOf(key, part));
  if (key.kind === "choices" || key.kind === "names") return parts(text);
  if (text === "" && key.nullable) return null;
  return key.kind === "integer" || key.kind === "number" ? numberOf(key, text) : text;
}

function range(key) {
  const most = key.most === null || key.most >= 2 ** 53 ? null : integer(key.most);
  const each = key.kind === "integers" ? "Each " : "";
  if (key.above !== null) return `Above ${integer(key.above)}.`;
  if (key.least === null) return "";
  return most === null ? `${each || "At "}least ${integer(key.least)}.` : `${each}${integer(key.least)} to ${most}.`;
}

function control(key, text) {
  const id = `key-${key.key}`;
  if (key.kind === "choice")
    return h("select", { id }, key.choices.map((choice) => h("option", { value: choice, selected: choice === text }, choice)));
  const numeric = key.kind === "integer" || key.kind === "number";
  const attributes = numeric
    ? { type: "number", min: key.least ?? key.above, max: key.most, step: key.kind === "integer" ? 1 : "any" }
    : { type: "text", placeholder: key.kind === "weights" ? "source: 0.5, other: 2" : null };
  return h("input", { id, value: text, autocomplete: "off", required: numeric && !key.nullable, ...attributes });
}

/** Members of a list that are chosen by ticking them. */
function ticks(key, text) {
  const chosen = parts(text);
  const boxes = key.choices.map((choice) => h("input", { type: "checkbox", value: choice, checked: chosen.includes(choice) }));
  const options = boxes.map((box) => h("label", {}, box, box.value));
  return { node: h("div", { class: "options" }, options), read: () => boxes.filter((box) => box.checked).map((box) => box.value).join(", ") };
}

/** One key: its control, and how to read it. */
function entry(key, text) {
  const changed = h("small", { class: "changed", "aria-live": "polite" });
  const many = key.kind === "choices";
  const { node, read } = many ? ticks(key, text) : { node: control(key, text), read: null };
  const current = read ?? (() => node.value.trim());
  const meaning = key.meaning.replaceAll("`", "").replace("null for", "empty for");
  const note = h("small", { class: "note" }, meaning, range(key) && ` ${range(key)}`);
  const differs = () => JSON.stringify(parsedOrNull(key, current())) !== JSON.stringify(key.value);
  const tell = () => changed.replaceChildren(differs() ? `instead of ${written(key, key.value) || "none"}` : "");
  const field = h(
    many ? "fieldset" : "div",
    { class: "key", oninput: tell },
    many ? h("legend", { class: "mono" }, key.key) : h("label", { for: node.id, class: "mono" }, key.key),
    node,
    note,
    changed,
  );
  tell();
  return { key, field, read: current };
}

function parsedOrNull(key, text) {
  try {
    return parsed(key, text);
  } catch {
    return undefined;
  }
}

/** The keys that no plan can answer for, with the reasons. */
function refusals(keys) {
  return h(
    "details",
    { class: "group" },
    h("summary", {}, `${keys.length} keys that a plan cannot answer for`),
    h(
      "ul",
      { class: "refused note" },
      keys.map((key) => h("li", {}, h("code", {}, key.key), `: ${key.refused}`)),
    ),
  );
}

/**
 * Controls for all keys, in groups. `text(key)` is what the address holds of one, or null.
 * Returns the elements, and `changes()`: what differs from the present values, as `{values, texts}`.
 */
export function keyForm(keys, text) {
  const entries = keys.filter((key) => key.refused === null).map((key) => entry(key, text(key.key) ?? written(key, key.value)));
  const groups = GROUPS.map(([title], index) => {
    const own = entries.filter(({ key }) => groupOf(key.key) === title);
    const asked = own.some(({ key }) => text(key.key) !== null);
    return (
      own.length > 0 &&
      h(
        "details",
        { class: "group", open: index === 0 || asked },
        h("summary", {}, title),
        h("div", { class: "keys" }, own.map(({ field }) => field)),
      )
    );
  });
  const refused = keys.filter((key) => key.refused !== null);
  return { nodes: [groups, refused.length > 0 && refusals(refused)], changes: () => changesOf(entries) };
}

function changesOf(entries) {
  const [values, texts] = [{}, {}];
  for (const { key, read } of entries) {
    const value = parsed(key, read());
    if (JSON.stringify(value) === JSON.stringify(key.value)) continue;
    texts[key.key] = read();
    const [section, name] = key.key.includes(".") ? key.key.split(".") : [null, key.key];
    if (section) values[section] = { ...values[section], [name]: value };
    else values[name] = value;
  }
  return { values, texts };
}
