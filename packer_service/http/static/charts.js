// Charts: drawn by Plotly in our colours, each with its figures as a table below it.

import { h } from "./dom.js";
import { variable } from "./palette.js";
import { table } from "./table.js";

const CONFIG = { displayModeBar: false, displaylogo: false, showTips: false, scrollZoom: false };
const dark = matchMedia("(prefers-color-scheme: dark)");
let library = null;

/** Plotly is 5 MB, so it is loaded only when the first chart is drawn. */
function plotly() {
  library ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "/static/plotly.min.js" });
    script.addEventListener("load", () => resolve(globalThis.Plotly));
    script.addEventListener("error", () => reject(new Error("The plotting library could not be loaded.")));
    document.head.append(script);
  });
  return library;
}

function axis(given = {}) {
  const line = { gridcolor: variable("--line"), linecolor: variable("--line"), zerolinecolor: variable("--line") };
  const { title, ...rest } = given;
  return { ...line, automargin: true, fixedrange: true, title: { text: title, standoff: 8 }, ...rest };
}

function layoutOf({ xaxis, yaxis, ...rest }) {
  return {
    autosize: true,
    bargap: 0.08,
    dragmode: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: variable("--quiet") },
    hoverlabel: { bgcolor: variable("--card"), bordercolor: variable("--line"), font: { color: variable("--ink") } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    margin: { l: 8, r: 8, t: 8, b: 8 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    separators: ".,",
    ...rest,
    xaxis: axis(xaxis),
    yaxis: axis({ rangemode: "tozero", ...yaxis }),
  };
}

function drawn(box, traces, layout) {
  let width = 0;
  const draw = async () => {
    try {
      const Plotly = await plotly();
      if (box.isConnected) await Plotly.react(box, traces(), layoutOf(layout), CONFIG);
    } catch (error) {
      box.replaceChildren(h("p", { class: "empty" }, `${error.message} The table below holds the figures.`));
    }
  };
  const size = new ResizeObserver(([entry]) => {
    if (!box.isConnected) {
      size.disconnect();
      dark.removeEventListener("change", draw);
    } else if (entry.contentRect.width !== width) {
      width = entry.contentRect.width;
      draw();
    }
  });
  size.observe(box);
  dark.addEventListener("change", draw);
}

/**
 * A figure: `title`, a plain sentence on how to read it (`note`), the picture and its figures as a table. `traces` is a
 * function, called again when the theme changes; `columns` and `rows` are the table's.
 */
export function chart({ title, note, traces, layout = {}, columns, rows, level = "h2" }) {
  if (!rows.length) return h("figure", {}, h(level, {}, title), h("p", { class: "empty" }, "Nothing to draw."));
  const box = h("div", {
    class: "plot",
    style: layout.height ? { height: `${layout.height}px` } : {},
    role: "img",
    "aria-label": `Chart: ${title}. The table below holds its figures.`,
  });
  drawn(box, traces, layout);
  return h(
    "figure",
    {},
    h("figcaption", {}, h(level, {}, title), h("p", { class: "note" }, note)),
    box,
    h("details", {}, h("summary", {}, "The figures as a table"), table({ caption: title, columns, rows })),
  );
}
