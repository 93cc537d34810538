"""Every figure of how evenly ranks are loaded, named once.

``report``, ``plan``, comparison, the service and its page show what this list says, in its words. A new figure is an
entry here; where no expression over the stored columns gives it, a column of ``measures.parquet`` besides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from preshard.packer_service.layout.measures import key_weight
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import MEASURES, MeasureGroup
from preshard.schemas.layout import TILE

Better = Literal["less", "more"]

Place = Literal["report", "comparison", "page"]
"""Places where a figure is read: the tables of ``report`` and ``plan``, a comparison of two datasets, or the page."""

EVERYWHERE: tuple[Place, ...] = ("report", "comparison", "page")

Kind = Literal["mean", "spread", "loads", "ranks", "ratio"]
"""Values shown of a figure over packs: its mean; mean, 95% and worst; the same with the mean load of each rank; that
alone; or one sum over another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure of token layouts or of image boundaries.

    Attributes:
        key: its name in JSON and REST.
        of: what it says something about.
        kind: what is said of it.
        words: what it is.
        unit: `tiles`, `tokens`; `share` is a part of 1, `ratio` a multiple of the best possible.
        better: which of two values is better; None where neither is.
        value: its value in one pack, an expression over columns of ``measures.parquet``; null where it has no meaning.
        over: for a ratio, what the sum of values is divided by.
        ranks: the column that has a load for each rank.
        label: what it is called where people read it.
        explain: what it means, for a legend.
        where: the places that show it.
        of_ranks: the heading of its loads of each rank in ``report``; left out if empty.
        worst: what is said of a pack that is badly balanced by it; nothing sorts by it if empty.
        of_shard: its name in lists of shards, where it is another.
    """

    key: str
    of: Literal["layout", "images"]
    kind: Kind
    words: str
    unit: str
    better: Better | None = None
    value: str = ""
    over: str = ""
    ranks: str = ""
    label: str = ""
    explain: str = ""
    where: tuple[Place, ...] = ()
    of_ranks: str = ""
    worst: str = ""
    of_shard: str = ""

    @property
    def has_spread(self) -> bool:
        """Whether mean, 95% and worst pack are said of it."""
        return self.kind in ("spread", "loads")

    @property
    def measured(self) -> str:
        """Description of the figure's value in one pack."""
        words = self.words.removesuffix(" of each rank.").removesuffix(" of each rank's queries.")
        return f"Imbalance of {words[0].lower()}{words[1:]}." if self.kind == "loads" else self.words

    def columns(self) -> set[str]:
        """The columns that its value is computed from: not the loads of ranks, which take far longer to read."""
        return {*re.findall(r"[a-z_]+", f"{self.value} {self.over}")} & {*MEASURES.names}


FIGURES = (
    Figure(
        key="tile_floor",
        of="layout",
        kind="mean",
        words="Mean over packs: tiles of the whole mask over the ring degree.",
        unit="tiles",
        value="attention_tiles / degree",
        label="tile floor",
        explain=f"an even share of the pack's tiles, which are {TILE} x {TILE} queries and keys and computed or "
        "skipped as a whole; no layout leaves less to its slowest rank",
        where=("page",),
    ),
    Figure(
        key="gather_path",
        of="layout",
        kind="spread",
        words="Gather critical path as a multiple of the tile floor.",
        unit="ratio",
        better="less",
        value="gather_path / nullif(attention_tiles / degree, 0)",
        label="gather path",
        explain="tiles of the slowest rank once it has its keys, over the tile floor",
        where=EVERYWHERE,
        worst="the gather critical path is {value:.3f} times the tile floor",
    ),
    Figure(
        key="ring_path",
        of="layout",
        kind="spread",
        words="Ring critical path as a multiple of the tile floor.",
        unit="ratio",
        better="less",
        value="ring_path / nullif(attention_tiles / degree, 0)",
        label="ring path",
        explain="the sum over the steps of a ring of each step's slowest rank's tiles, over the tile floor",
        where=EVERYWHERE,
        worst="the ring critical path is {value:.3f} times the tile floor",
    ),
    Figure(
        key="traffic",
        of="layout",
        kind="spread",
        words="Keys needed but not held, over those that gathering everything moves.",
        unit="share",
        better="less",
        value="sum_keys / greatest(possible_keys, 1)",
        label="KV traffic",
        explain="keys that ranks need and do not hold, over those that gathering everything moves",
        where=EVERYWHERE,
        worst="ranks fetch {value:.3f} of the keys that gathering everything moves",
    ),
    Figure(
        key="gather_path_tiles",
        of="layout",
        kind="mean",
        words="Mean gather critical path, in tiles.",
        unit="tiles",
        better="less",
        value="gather_path",
    ),
    Figure(
        key="ring_path_tiles",
        of="layout",
        kind="mean",
        words="Mean ring critical path, in tiles.",
        unit="tiles",
        better="less",
        value="ring_path",
    ),
    Figure(
        key="attention",
        of="layout",
        kind="loads",
        words="Allowed pairs of each rank's queries.",
        unit="ratio",
        better="less",
        value="most_attention / nullif(sum_attention / degree, 0)",
        ranks="attention",
        label="imbalance",
        explain="allowed pairs of the busiest rank over the mean of all ranks",
        where=("report", "page"),
        worst="the busiest rank has {value:.3f} times the mean of attention pairs",
    ),
    Figure(
        key="tiles",
        of="layout",
        kind="loads",
        words="Tiles of each rank.",
        unit="ratio",
        better="less",
        value="gather_path / nullif(sum_tiles / degree, 0)",
        ranks="tiles",
        of_ranks="tiles of each rank",
    ),
    Figure(
        key="keys_fetched",
        of="layout",
        kind="ranks",
        words="Mean keys that each rank needs but does not hold, in tokens.",
        unit="tokens",
        better="less",
        ranks="keys_fetched",
    ),
    Figure(
        key="most_keys",
        of="layout",
        kind="spread",
        words="Most keys that a rank needs but does not hold, in tokens.",
        unit="tokens",
        better="less",
        value="most_keys",
        label="most keys fetched",
        explain="keys, in tokens, that one rank must fetch at most; gather attention holds them all",
        where=("comparison", "page"),
        worst="one rank fetches the keys of {value:,.0f} tokens",
    ),
    Figure(
        key="cost",
        of="layout",
        kind="mean",
        words="Mean modelled cost of the better of gather and ring attention, in tiles.",
        unit="tiles",
        better="less",
        value="least(ring_path + {key_weight} * ({seq_len} // degree) * (degree - 1), "
        "gather_path + {key_weight} * most_keys)",
    ),
    Figure(
        key="images",
        of="images",
        kind="loads",
        words="Crops of each rank.",
        unit="ratio",
        better="less",
        value="most_images / nullif(sum_images / degree, 0)",
        ranks="images",
        of_ranks="crops of each rank",
        worst="the busiest rank has {value:.3f} times the mean of crops",
        of_shard="image_imbalance",
    ),
    Figure(
        key="pooled_tokens",
        of="images",
        kind="loads",
        words="Pooled rows of each rank.",
        unit="ratio",
        better="less",
        value="most_pooled_tokens / nullif(sum_pooled_tokens / degree, 0)",
        ranks="pooled_tokens",
        worst="the busiest rank has {value:.3f} times the mean of pooled rows",
        of_shard="pooled_imbalance",
    ),
    Figure(
        key="image_load",
        of="images",
        kind="loads",
        words="Vision encoder's work of each rank, in multiplications.",
        unit="ratio",
        better="less",
        value="most_image_load / nullif(sum_image_load / degree, 0)",
        ranks="image_load",
        label="encoder imbalance",
        explain="the vision encoder's work of the busiest rank over the mean of all ranks; frames and stills stay "
        "whole, so 1 is not always possible",
        where=("page",),
        worst="the busiest rank has {value:.3f} times the mean of the vision encoder's work",
        of_shard="image_load_imbalance",
    ),
    Figure(
        key="weighted_imbalance",
        of="images",
        kind="ratio",
        words="Largest work of a rank, summed over packs, over the sum of the means; null without images.",
        unit="ratio",
        better="less",
        value="most_image_load",
        over="sum_image_load / degree",
        label="busiest rank over the mean",
        explain="the vision encoder's work, summed over packs",
        where=EVERYWHERE,
    ),
    Figure(
        key="excess",
        of="images",
        kind="ratio",
        words="Largest work of a rank, summed over packs, over the sum of what is least possible with whole units; "
        "null without images.",
        unit="ratio",
        better="less",
        value="most_image_load",
        over="least_image_load",
        label="over the best possible",
        explain="the busiest rank's work over the least that whole frames and stills allow",
        where=EVERYWHERE,
    ),
)
"""Figures in the order in which answers have them."""

LAYOUT_FIGURES = tuple(figure for figure in FIGURES if figure.of == "layout")
IMAGE_FIGURES = tuple(figure for figure in FIGURES if figure.of == "images")
MEASURED = {figure.key: figure for figure in FIGURES if figure.worst}
"""Figures by which packs and shards are sorted, by their keys."""

COST = next(figure for figure in FIGURES if figure.key == "cost")
FLOOR = next(figure for figure in FIGURES if figure.key == "tile_floor")


def shown(figures: Iterable[Figure], place: Place) -> list[Figure]:
    """Figures that a place shows."""
    return [figure for figure in figures if place in figure.where]


def figures_of(group: MeasureGroup) -> tuple[Figure, ...]:
    """The figures of a layout, or those of image boundaries."""
    return LAYOUT_FIGURES if group.scheme else IMAGE_FIGURES


def expression(sql: str, config: PackConfig) -> str:
    """SQL by which DuckDB computes a ``value`` or ``over``, with values of the configuration in their places."""
    return sql.format(key_weight=f"{key_weight(config.cost):.17e}", seq_len=config.seq_len)
