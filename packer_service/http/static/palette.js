// Colours that stay apart for colour-blind readers (after Okabe and Ito, the yellow darkened for white paper). Colour
// is never the only sign: ranks carry their number, sources their name.

const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a2b", "#8c8f94"];

export const colour = (index) => COLOURS[index % COLOURS.length];
/** Black or white, whichever is read on that colour. */
export const inkOn = (index) => (index % COLOURS.length === 0 ? "#ffffff" : "#000000");

export const rgb = (index) => {
  const value = Number.parseInt(colour(index).slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
};

/** A colour for each name, by its place in the sorted list, so that a source keeps its colour from view to view. */
export function colours(names) {
  const sorted = [...new Set(names)].sort();
  return new Map(sorted.map((name, index) => [name, colour(index)]));
}

/** The value of a CSS variable of the present theme. */
export const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
