// All layouts at all ring degrees side by side, and how the images are shared.

import { get } from "../api.js";
import { chart } from "../charts.js";
import { h } from "../dom.js";
import { figures, heading, legend, shown, shownIn, spread } from "../figures.js";
import { integer, mean, percent } from "../format.js";
import { colour } from "../palette.js";
import { withParams } from "../router.js";
import { card } from "../section.js";
import { table } from "../table.js";
import { choice, layoutControls } from "./controls.js";

const GIGA = 1e9;
const STATISTICS = { mean: "mean of all packs", p95: "the pack at 95%", max: "the worst pack" };
const TICKS = { share: ".1%", ratio: ".3f" };
/** Hatching as well as colours, for readers who cannot tell the colours apart. */
const SHAPES = ["", "/", "x", "."];

function compared(answer, measure, statistic) {
  const value = (entry) => spread(measure, entry)[statistic];
  const degrees = [...new Set(answer.layouts.map((entry) => entry.ring_degree))].sort((a, b) => a - b);
  const layouts = [...new Set(answer.layouts.map((entry) => entry.layout))];
  const at = (layout, degree) => answer.layouts.find((entry) => entry.layout === layout && entry.ring_degree === degree);
  const share = measure.unit === "share";
  return chart({
    title: `${heading(measure)}, ${STATISTICS[statistic]}`,
    note: legend([measure]),
    traces: () =>
      layouts.map((layout, index) => ({
        type: "bar",
        name: layout,
        x: degrees.map(String),
        y: degrees.map((degree) => at(layout, degree) && value(at(layout, degree))),
        marker: {
          color: colour(index),
          pattern: {
            shape: SHAPES[index % SHAPES.length],
            fillmode: "overlay",
            fgcolor: "#000000",
            fgopacity: 0.3,
            size: 7,
          },
        },
        hovertemplate: `${layout}, ring degree %{x}: %{y:${TICKS[measure.unit] ?? ",.0f"}}<extra></extra>`,
      })),
    layout: { barmode: "group", bargap: 0.25, xaxis: { title: "ring degree", type: "category" }, yaxis: { title: measure.label, tickformat: share ? ".0%" : null } },
    rows: layouts,
    columns: [
      { label: "Layout", head: true, value: (layout) => layout },
      ...degrees.map((degree) => ({
        label: `Ring degree ${degree}`,
        number: true,
        value: (layout) => (at(layout, degree) ? shown(measure, value(at(layout, degree))) : "–"),
      })),
    ],
  });
}

/** A column with a figure: mean, 95% and worst pack, or its one value. */
function column(figure) {
  const value = (entry) => {
    const over = spread(figure, entry);
    if (!over) return shown(figure, entry[figure.key]);
    return over.mean === null ? "–" : [over.mean, over.p95, over.max].map((each) => shown(figure, each)).join(" / ");
  };
  return { label: heading(figure), number: true, value };
}

function everything(answer, chosen, measures) {
  return table({
    caption: "Mean / 95% / worst pack. Paths are multiples of the tile floor.",
    rows: answer.layouts,
    rowClass: (entry) => (entry.layout === chosen.layout && entry.ring_degree === chosen.ring_degree ? "chosen" : null),
    columns: [
      {
        label: "Layout",
        head: true,
        value: (entry) => h("a", { href: withParams({ layout: entry.layout, ring: entry.ring_degree }) }, entry.layout),
      },
      { label: "Ring degree", number: true, value: (entry) => entry.ring_degree },
      ...measures.map(column),
    ],
  });
}

function ranksOf(title, note, loads, unit) {
  const rows = loads.map((load, rank) => ({ rank, load }));
  return chart({
    title,
    note,
    level: "h3",
    traces: () => [
      {
        type: "bar",
        x: rows.map(({ rank }) => String(rank)),
        y: loads,
        marker: { color: rows.map(({ rank }) => colour(rank)) },
        hovertemplate: `rank %{x}: %{y:,.1f} ${unit}<extra></extra>`,
      },
    ],
    layout: { xaxis: { title: "rank", type: "category" }, yaxis: { title: unit, tickformat: "," } },
    rows,
    columns: [
      { label: "Rank", head: true, value: ({ rank }) => rank },
      { label: unit, number: true, value: ({ load }) => mean(load) },
    ],
  });
}

function imageTable(answer, chosen, measures) {
  return table({
    caption: "How evenly ranks share the vision encoder's work; of an imbalance, mean / 95% / worst pack",
    rows: answer.images,
    rowClass: (entry) => (entry.cp_size === chosen.cp_size ? "chosen" : null),
    empty: "No image boundaries were planned.",
    columns: [
      { label: "CP size", head: true, value: (entry) => h("a", { href: withParams({ cp: entry.cp_size }) }, entry.cp_size) },
      ...measures.map(column),
    ],
  });
}

function preferred(answer) {
  const degrees = Object.keys(answer.preferred).map(Number).sort((a, b) => a - b).filter((degree) => degree > 1);
  const layouts = [...new Set(answer.layouts.map((entry) => entry.layout))];
  const all = (degree) => Object.values(answer.preferred[degree]).reduce((sum, packs) => sum + packs, 0);
  return table({
    caption: "Packs for which the cost model prefers each layout, by ring degree",
    rows: layouts,
    empty: "No layout was stored for a ring.",
    columns: [
      { label: "Layout", head: true, value: (layout) => layout },
      ...degrees.map((degree) => ({
        label: `Ring degree ${degree}`,
        number: true,
        value: (layout) => {
          const packs = answer.preferred[degree][layout] ?? 0;
          return `${integer(packs)} (${percent(packs / Math.max(1, all(degree)), 0)})`;
        },
      })),
    ],
  });
}

/** What the address asks for if the dataset has it, else the service's default. */
export function chosenOf(detail, params) {
  const last = (list) => list[list.length - 1];
  const one = (list, value, preferred) =>
    list.map(String).includes(value) ? list.find((item) => String(item) === value) : preferred;
  const preferred = detail.layouts.includes("balanced_ring") ? "balanced_ring" : last(detail.layouts);
  const ring = one(detail.ring_degrees, params.get("ring"), last(detail.ring_degrees));
  return {
    layout: one(detail.layouts, params.get("layout"), preferred),
    ring_degree: ring,
    cp_size: one(detail.cp_sizes, params.get("cp"), detail.cp_sizes.includes(ring) ? ring : last(detail.cp_sizes)),
  };
}

/** The choice as parameters of a request or an address. */
export const asParams = ({ layout, ring_degree: ring, cp_size: cp }) => ({ layout, ring, cp });

export async function balance(detail, params) {
  const [answer, all] = await Promise.all([get(["datasets", detail.name, "balance"]), figures()]);
  const chosen = chosenOf(detail, params);
  const [ofLayouts, ofImages] = ["layout", "images"].map((of) => shownIn(all, "page", of));
  const offered = ofLayouts.filter(({ kind }) => kind === "spread" || kind === "loads");
  const find = (key) => offered.find((figure) => figure.key === key);
  const measure = find(params.get("measure")) ?? find("ring_path");
  const statistic = params.get("of") in STATISTICS ? params.get("of") : "mean";
  const entry = answer.layouts.find(
    (each) => each.layout === chosen.layout && each.ring_degree === chosen.ring_degree,
  );
  const images = answer.images.find((each) => each.cp_size === chosen.cp_size);
  return h(
    "div",
    { class: "view" },
    h(
      "section",
      { class: "card", "aria-label": "Layouts side by side" },
      h(
        "form",
        { class: "controls", "aria-label": "What to compare", onsubmit: (event) => event.preventDefault() },
        choice("measure", "Measure", offered.map(({ key }) => key), measure.key, (key) => heading(find(key))),
        choice("of", "Of the packs", Object.keys(STATISTICS), statistic, (key) => STATISTICS[key]),
      ),
      compared(answer, measure, statistic),
    ),
    h(
      "section",
      { class: "card", "aria-label": "Ranks" },
      layoutControls(detail, chosen),
      h(
        "div",
        { class: "columns" },
        entry &&
          ranksOf(
            `Tiles of each ring rank: ${entry.layout}, ring degree ${entry.ring_degree}`,
            "Mean over packs. Equal bars mean that no rank has more to do over many packs; a single pack may still be uneven.",
            entry.tiles.rank_mean,
            "tiles",
          ),
        images &&
          ranksOf(
            `Work of each CP rank in the vision encoder: CP size ${images.cp_size}`,
            "Mean over packs, in billions of multiplications. Frames and stills stay whole, so bars cannot always be equal.",
            images.image_load.rank_mean.map((load) => load / GIGA),
            "G multiplications",
          ),
      ),
    ),
    card("All layouts", everything(answer, chosen, ofLayouts), { note: legend(ofLayouts) }),
    card("Preferred layouts", preferred(answer), {
      note:
        "The layout whose busiest rank takes the least time by the cost model: tiles at the attention kernel's speed, and " +
        "keys over the link, for the better of gather and ring.",
    }),
    card("Image boundaries", imageTable(answer, chosen, ofImages), { note: legend(ofImages) }),
  );
}
