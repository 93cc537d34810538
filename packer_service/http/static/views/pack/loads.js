// How much each rank does, in total and in each ring step, and which rank the others wait for.

import { h } from "../../dom.js";
import { heading, shown, shownIn } from "../../figures.js";
import { integer, mean, percent } from "../../format.js";
import { colour, inkOn } from "../../palette.js";
import { facts } from "../../section.js";
import { table } from "../../table.js";

const name = (rank) => h("span", { class: "rankname", style: { background: colour(rank), color: inkOn(rank) } }, rank);

function balance(answer, all) {
  const measured = shownIn(all, "page", "layout").filter(({ key }) => key in answer.figures);
  const facing = measured.map((figure) => [heading(figure), shown(figure, answer.figures[figure.key]), figure.explain]);
  return facts([["Tile floor", mean(answer.tile_floor), "tiles: an even share of the whole mask"], ...facing]);
}

function ranks(answer) {
  const most = Math.max(1, ...answer.ranks.map((rank) => rank.tiles));
  return table({
    caption: "What each ring rank holds and computes",
    rows: answer.ranks,
    columns: [
      { label: "Rank", head: true, value: (rank) => name(rank.ring_rank) },
      {
        label: "Share of the busiest",
        className: "barcell",
        value: (rank) =>
          h("span", {
            class: "bar",
            "aria-hidden": "true",
            style: { width: percent(rank.tiles / most), background: colour(rank.ring_rank) },
          }),
      },
      { label: "Tiles", number: true, value: (rank) => integer(rank.tiles) },
      { label: "Allowed pairs", number: true, value: (rank) => integer(rank.attention_area) },
      { label: "Padding", number: true, value: (rank) => integer(rank.padding) },
      { label: "Tokens with loss", number: true, value: (rank) => integer(rank.loss_tokens) },
      { label: "Keys fetched", number: true, value: (rank) => integer(rank.keys_fetched) },
    ],
  });
}

/** A cell of the table of steps, tinted by its tiles; the rank that the step waits for is marked. */
function stepCell(tiles, most, slowest) {
  const tint = `color-mix(in srgb, var(--accent) ${Math.round((45 * tiles) / most)}%, transparent)`;
  return h(
    "span",
    { class: slowest ? "step slowest" : "step", style: { background: tint } },
    integer(tiles),
    slowest && h("span", { class: "visually-hidden" }, " slowest"),
  );
}

/** Whether others wait for a rank in a step: it has the most tiles, and some have fewer. */
const slow = (step, rank) => step.tiles[rank] === step.most && step.tiles.some((tiles) => tiles < step.most);

function steps(answer) {
  const most = Math.max(1, ...answer.steps.map((step) => step.most));
  const total = { ring_rank: null };
  return table({
    caption: "Tiles of each rank in each ring step. The rank that a step waits for is underlined.",
    className: "steps",
    rows: [...answer.ranks, total],
    columns: [
      { label: "Rank", head: true, value: ({ ring_rank: rank }) => (rank === null ? "waits for" : name(rank)) },
      ...answer.steps.map((step) => ({
        label: `Step ${step.step}`,
        number: true,
        value: ({ ring_rank: rank }) =>
          rank === null ? integer(step.most) : stepCell(step.tiles[rank], most, slow(step, rank)),
      })),
      {
        label: "Sum",
        number: true,
        value: ({ ring_rank: rank }) => integer(rank === null ? answer.ring_path_tiles : answer.ranks[rank].tiles),
      },
    ],
  });
}

export function loads(answer, all) {
  const busiest = answer.ranks.reduce((worst, rank) => (rank.tiles > worst.tiles ? rank : worst));
  const pace = answer.steps.reduce((worst, step) => (step.most > worst.most ? step : worst));
  return h(
    "div",
    { class: "view" },
    h(
      "p",
      { class: "verdict" },
      `Rank ${busiest.ring_rank} computes the most: ${integer(busiest.tiles)} tiles, where an even share is ${mean(answer.tile_floor)}. ` +
        `The longest ring step is ${pace.step}: it waits for rank ${pace.slowest} with ${integer(pace.most)} tiles.`,
    ),
    balance(answer, all),
    ranks(answer),
    steps(answer),
  );
}
