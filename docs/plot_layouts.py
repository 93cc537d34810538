"""Draws what ``layouts.md`` shows, from one pack of a real dataset: its mask, who owns what, and the critical paths.

    python docs/plot_layouts.py DATASET PACK_ID [--ring 8] [--layouts zigzag ...] [--out docs/layouts]

Every figure is computed from the bytes of the pack by the same code that packs and verifies; nothing is drawn by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int8, Int64
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import LayoutMeasures, measure_layout
from preshard.packer_service.layout.tiles import tile_map
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.errors import PreshardError
from preshard.schemas.layout import SCHEMES, TILE, TokenLayout, layout_name, slice_positions
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.split import read_header

INK, ACCENT, WAIT, GATHERED = "#1b1b1b", "#d55e00", "#e4e4e4", "#0072b2"
Colour = str | tuple[float, float, float, float]
SHARES = "viridis_r"
THOUSANDS = "{x:,.0f}"

ZOOM_TILES = 8
"""Side of the closer look, in tiles."""

COLUMNS = 1152
"""Columns of the picture of owners; a column is a stretch of tokens."""


KINDS = {"padding": "#dddddd", "text": "#56b4e9", "images": "#e69f00", "video": "#009e73"}
"""Kinds of document and their colours: Okabe and Ito's palette, which colour-blind readers tell apart."""


@dataclass(frozen=True, kw_only=True)
class PicturedPack:
    """The part of a pack that the pictures show.

    Attributes:
        name: the pack, for titles.
        mask: its mask.
        edges: edges of its documents and of the padding between and behind them, in tokens.
        kinds: index in ``KINDS`` of each token's document.
        layouts: its layouts at the ring degree and of the schemes drawn, in the order of ``SCHEMES``.
    """

    name: str
    mask: MaskArrays
    edges: Int64[np.ndarray, "edges"]
    kinds: Int8[np.ndarray, "seq"]
    layouts: list[TokenLayout]


def load_pack(dataset: str, pack_id: int, ring_degree: int, schemes: Sequence[str] = SCHEMES) -> PicturedPack:
    """One pack from its header part, read by range as a rank reads it, with its layouts of the schemes.

    Raises:
        PreshardError: no dataset there, or one with a broken file.
        ValueError: no such pack, or no layout of this degree and these schemes; says which there are.
    """
    files = DatasetFiles(dataset)
    places, config = files.packs(), stored_config(files.manifest)
    if not 0 <= pack_id < len(places):
        raise ValueError(f"pack {pack_id} is not there; {dataset} has packs 0 to {len(places) - 1}")
    header = read_header(files, places[pack_id], config, files.manifest.axes)
    files.close()
    seq_len = config.seq_len
    names = [layout_name(scheme, ring_degree) for scheme in SCHEMES if scheme in schemes]
    layouts = [header.layouts[name] for name in names if name in header.layouts]
    if not layouts:
        held = header.layouts.values()
        degrees = ", ".join(map(str, sorted({layout.ring_degree for layout in held})))
        raise ValueError(
            f"no layout of ring degree {ring_degree} among {', '.join(schemes)}; "
            f"the pack has {', '.join(sorted({layout.scheme for layout in held}))} of degrees {degrees}"
        )
    timed = {image.doc_id for image in header.head.images if image.timestamp is not None}
    kinds, edges = np.zeros(seq_len, np.int8), [0, seq_len]
    for span in header.head.documents:
        kind = "text" if not span.n_images else "video" if span.doc_id in timed else "images"
        kinds[span.start : span.start + span.length] = list(KINDS).index(kind)
        edges += [span.start, span.start + span.length]
    return PicturedPack(
        name=f"pack {pack_id}: {seq_len:,} tokens, {len(header.head.documents)} documents",
        mask=header.sequence.mask,
        edges=np.unique(edges).astype(np.int64),
        kinds=kinds,
        layouts=layouts,
    )


def kind_patches(pack: PicturedPack) -> list[Patch]:
    """The legend of the kinds that the pack has."""
    present = set(np.unique(pack.kinds).tolist())
    return [Patch(color=colour, label=kind) for at, (kind, colour) in enumerate(KINDS.items()) if at in present]


def tile_shares(mask: MaskArrays) -> Float64[np.ndarray, "tiles tiles"]:
    """Share of allowed pairs in each tile, in natural order; NaN where there is none. Dense inside a row of tiles."""
    held = tile_map(MaskIndex.of(mask))
    shares = np.full(held.shape, np.nan)
    for row, seen in enumerate(held):
        queries = np.arange(row * TILE, min((row + 1) * TILE, mask.seq_len))
        keys = np.flatnonzero(np.repeat(seen, TILE)[: mask.seq_len])
        pairs = dense_mask(mask, queries, keys).sum(axis=0)
        counts = np.bincount(keys // TILE, weights=pairs, minlength=len(seen))
        shares[row, seen] = counts[seen] / TILE**2
    return shares


def zoom_start(pack: PicturedPack) -> int:
    """The first token of the stretch of tiles worth a closer look: the most documents, then the most image groups."""
    length = ZOOM_TILES * TILE
    starts = range(0, max(1, pack.mask.seq_len - length + 1), TILE)
    docs, groups = pack.mask.doc_ids, pack.mask.group_ids
    counts = [tuple(len(np.unique(ids[at : at + length])) for ids in (docs, groups)) for at in starts]
    return starts[max(range(len(counts)), key=lambda at: (counts[at], -at))]


def draw_mask(pack: PicturedPack) -> Figure:
    """The whole mask in tiles, and a stretch of it token by token."""
    figure = Figure(figsize=(11, 5.9), layout="constrained")
    whole, zoom = figure.subplots(1, 2)
    shares = tile_shares(pack.mask)
    sides, band = len(shares) * TILE, -pack.mask.seq_len / 28
    extent = (0, sides, sides, 0)
    drawn = whole.imshow(shares * 100, cmap=SHARES, vmin=0, vmax=100, extent=extent, interpolation="nearest")
    bar = figure.colorbar(drawn, cax=whole.inset_axes((0.5, 0.62, 0.45, 0.03)), orientation="horizontal")
    bar.set_label("allowed pairs in a tile, % (white: none)", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    full, total = int(np.nansum(shares == 1)), int(np.isfinite(shares).sum())
    whole.set_title(f"{total:,} of {shares.size:,} tiles hold an allowed pair; {full:,} are full", fontsize=10)
    for begin, end in pairwise(pack.edges):
        whole.fill_between([begin, end], band, 0, color=list(KINDS.values())[pack.kinds[begin]], lw=0)
        whole.plot([begin, begin], [band, 0], color="white", lw=0.7)
    start = zoom_start(pack)
    end = min(start + ZOOM_TILES * TILE, pack.mask.seq_len)
    whole.set(xlim=(0, sides), ylim=(sides, band))
    whole.add_patch(Rectangle((start, start), end - start, end - start, fill=False, edgecolor=ACCENT, lw=1.6))
    whole.legend(
        handles=kind_patches(pack), title="document (band on top)", fontsize=8, title_fontsize=8, loc=(0.6, 0.72)
    )
    _draw_zoom(zoom, pack, np.arange(start, end))
    for axes in (whole, zoom):
        axes.set(xlabel="key, natural position in tokens", ylabel="query, natural position in tokens")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(THOUSANDS)
            axis.set_major_locator(MaxNLocator(4))
    figure.suptitle(f"Attention mask of {pack.name}")
    return figure


def _draw_zoom(axes: Axes, pack: PicturedPack, stretch: Int64[np.ndarray, "stretch"]) -> None:
    allowed = dense_mask(pack.mask, stretch, stretch)
    later = allowed & (stretch[None, :] > stretch[:, None])
    block = stretch // TILE - stretch[0] // TILE
    held = tile_map(MaskIndex.of(pack.mask))[np.ix_(stretch // TILE, stretch // TILE)]
    codes = held.astype(np.int8) + allowed + later
    colours = ["white", "#dcdcdc", "#0072b2", "#e69f00"]
    first, last = int(stretch[0]), int(stretch[-1]) + 1
    extent = (first, last, last, first)
    axes.imshow(codes, cmap=ListedColormap(colours), vmin=0, vmax=3, extent=extent, interpolation="nearest")
    for line in range(int(block[-1]) + 1):
        axes.axhline(first + line * TILE, color=INK, lw=0.3)
        axes.axvline(first + line * TILE, color=INK, lw=0.3)
    axes.set_title("The framed stretch, token by token; lines are the edges of tiles", fontsize=10)
    labels = ["no tile: skipped", "computed for nothing", "allowed, key at or before the query", "allowed, later key"]
    handles = [Patch(facecolor=c, edgecolor=INK, lw=0.4, label=x) for c, x in zip(colours, labels, strict=True)]
    axes.legend(handles=handles, loc="upper right", fontsize=8, framealpha=1)


def draw_owners(pack: PicturedPack, measures: list[LayoutMeasures]) -> Figure:
    """Draws which rank holds which tokens: a panel a scheme, a lane a rank; paler where it holds a part of a column."""
    figure = Figure(figsize=(11, 2.05 * len(pack.layouts) + 0.8), layout="constrained")
    panels = figure.subplots(len(pack.layouts), 1, sharex=True, squeeze=False)[:, 0]
    for axes, layout, found in zip(panels, pack.layouts, measures, strict=True):
        ring, extent = layout.ring_degree, (0, pack.mask.seq_len, layout.ring_degree, 0)
        axes.imshow(lanes_of(pack, layout), aspect="auto", extent=extent, interpolation="nearest")
        axes.hlines(range(1, ring), 0, pack.mask.seq_len, color="#bbbbbb", lw=0.5)
        axes.vlines(pack.edges, 0, ring, color=INK, lw=0.35, alpha=0.6)
        _name_ranks(axes, ring, at=0.5)
        said = f"{layout.scheme}: {len(layout.runs):,} ranges, KV traffic {found.kv_traffic:.2f}"
        axes.set_title(said, fontsize=10, loc="left")
        axes.set_ylabel("ring rank")
    panels[-1].set_xlabel("natural position in tokens (thin lines: edges of documents)")
    panels[-1].xaxis.set_major_formatter(THOUSANDS)
    figure.suptitle(f"Owner of each token at ring degree {measures[0].ring_degree}, {pack.name}")
    figure.legend(handles=kind_patches(pack), ncols=len(KINDS), loc="outside lower center", fontsize=8)
    return figure


def lanes_of(pack: PicturedPack, layout: TokenLayout) -> Float64[np.ndarray, "ring columns 3"]:
    """Each rank's tokens in the colours of their documents, averaged over the tokens of each column."""
    seq_len, columns = pack.mask.seq_len, min(COLUMNS, pack.mask.seq_len)
    column = np.arange(seq_len) * columns // seq_len
    tokens = np.bincount(column, minlength=columns)
    ink = 1 - np.array([to_rgb(colour) for colour in KINDS.values()])
    lanes = np.ones((layout.ring_degree, columns, 3))
    for rank in range(layout.ring_degree):
        held = slice_positions(layout.runs, rank)
        for channel in range(3):
            weights = ink[pack.kinds[held], channel]
            lanes[rank, :, channel] -= np.bincount(column[held], weights=weights, minlength=columns) / tokens
    return lanes.clip(0, 1)


def _name_ranks(axes: Axes, ring_degree: int, at: float) -> None:
    every = range(0, ring_degree, -(-ring_degree // 16))
    axes.set_yticks([rank + at for rank in every], [str(rank) for rank in every], fontsize=7)


def draw_paths(pack: PicturedPack, measures: list[LayoutMeasures]) -> Figure:
    """Tiles of each rank, gathered and in ring steps one after the other, on one scale beside the tile floor."""
    figure = Figure(figsize=(11, 2.05 * len(measures) + 0.9), layout="constrained")
    panels = figure.subplots(len(measures), 2, sharex=True, sharey=True, squeeze=False)
    ring_degree, floor = measures[0].ring_degree, measures[0].tile_floor
    for (gather, ring), found in zip(panels, measures, strict=True):
        _draw_step(gather, 0, found.tiles.sum(axis=1), GATHERED)
        begin, ranks = 0, np.arange(ring_degree)
        for step, most in enumerate(found.ring_steps.tolist()):
            _draw_step(ring, begin, found.tiles[ranks, (ranks - step) % ring_degree], _step_colour(step, ring_degree))
            begin += most
        for axes, path, name in ((gather, found.gather_path, "gather"), (ring, found.ring_path, "ring")):
            axes.axvline(floor, color=ACCENT, ls="--", lw=1.4)
            times = f" = {path / floor:.3f} x floor" if floor else ""
            axes.set_title(f"{found.scheme}, {name} path {path:,}{times}", fontsize=10, loc="left")
            axes.spines[["top", "right"]].set_visible(False)
        gather.set_ylabel("ring rank")
        _name_ranks(gather, ring_degree, at=0)
    longest = max(found.ring_path for found in measures)
    panels[0, 0].set(xlim=(0, max(longest, 1) * 1.02), ylim=(ring_degree - 0.4, -0.6))
    for axes in panels[-1]:
        axes.set_xlabel("tiles one after the other: the time that a rank's kernel takes")
        axes.xaxis.set_major_formatter(THOUSANDS)
    figure.legend(handles=_path_patches(ring_degree, floor), ncols=5, loc="outside lower center", fontsize=8)
    figure.suptitle(f"Critical paths at ring degree {ring_degree}, {pack.name}")
    return figure


def _draw_step(axes: Axes, begin: int, tiles: Int64[np.ndarray, "ring"], colour: Colour) -> None:
    """The tiles of each rank in one step, and its wait for the rank that has most."""
    ranks, most = np.arange(len(tiles)), int(tiles.max())
    axes.barh(ranks, most - tiles, left=begin + tiles, color=WAIT)
    axes.barh(ranks, tiles, left=begin, color=colour)
    axes.axvline(begin + most, color=INK, lw=0.6)


def _path_patches(ring_degree: int, floor: float) -> list[Patch]:
    return [
        Patch(color=GATHERED, label="all keys gathered (left)"),
        *(Patch(color=_step_colour(step, ring_degree), label=f"ring step {step}") for step in {0, ring_degree - 1}),
        Patch(color=WAIT, label="waiting for the slowest rank"),
        Patch(facecolor="white", edgecolor=ACCENT, ls="--", label=f"tile floor {floor:,.1f}"),
    ]


def _step_colour(step: int, ring_degree: int) -> Colour:
    return colormaps["viridis"](0.1 + 0.8 * step / max(1, ring_degree - 1))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dataset", metavar="DATASET", help="a packed dataset")
    parser.add_argument("pack_id", metavar="PACK_ID", type=int, help="the pack to draw, from 0")
    parser.add_argument("--ring", type=int, default=8, help="ring degree of the layouts (default 8)")
    parser.add_argument("--layouts", nargs="+", metavar="SCHEME", choices=SCHEMES, help="(default: all of the pack)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("layouts"), help="folder of the pictures")
    asked = parser.parse_args(arguments)
    try:
        pack = load_pack(asked.dataset, asked.pack_id, asked.ring, asked.layouts or SCHEMES)
    except (PreshardError, ValueError) as error:
        parser.error(str(error))
    index = MaskIndex.of(pack.mask)
    measures = [measure_layout(index, layout) for layout in pack.layouts]
    asked.out.mkdir(parents=True, exist_ok=True)
    figures = {"mask": draw_mask(pack), "owners": draw_owners(pack, measures), "paths": draw_paths(pack, measures)}
    for name, figure in figures.items():
        # Without the software's version in it, the same pictures have the same bytes.
        figure.savefig(asked.out / f"{name}.png", dpi=110, facecolor="white", metadata={"Software": None})
        print(asked.out / f"{name}.png")


if __name__ == "__main__":
    main()
