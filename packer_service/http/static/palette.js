// Colours that colour-blind readers can tell apart: for ranks those of Okabe and Ito, with a yellow darkened for white
// paper and, in place of black, a brown that no padding and no line has; for sources Tol's muted ones, since both appear side by side. Colour is never the only sign: ranks show their
// number, sources their name.

const SOURCES = ["#5f55b5", "#cc6677", "#44aa99", "#ddcc77", "#88ccee", "#aa4499", "#3d8f5a", "#a8385f"];
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a2b", "#6f4e37"];

/** The colour of a rank. */
export const colour = (index) => COLOURS[index % COLOURS.length];
/** Colours on which black is not legible. */
const DARK = new Set(["#0072b2", "#6f4e37"]);
/** Black or white, whichever is legible on that colour. */
export const inkOn = (index) => (DARK.has(colour(index)) ? "#ffffff" : "#000000");

export const rgb = (index) => {
  const value = Number.parseInt(colour(index).slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
};

/** A colour for each name, by its place in the sorted list, so that a source keeps its colour from view to view. */
export function colours(names) {
  const sorted = [...new Set(names)].sort();
  return new Map(sorted.map((name, index) => [name, SOURCES[index % SOURCES.length]]));
}

/** The value of a CSS variable in the current theme. */
export const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
