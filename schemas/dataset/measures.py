"""The columns of ``measures.parquet`` and the order of its rows.

The order lets a question about one layout, or one measure, read that and nothing else. The table is cut into blocks of
consecutive packs. A block has a row group for each stored layout and ring degree, then one for each CP size: in each,
one row per pack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.table import Column, Columns, number, numbers, schema_of
from preshard.schemas.dataset.table_file import lists
from preshard.schemas.layout import SCHEMES
from preshard.schemas.read_config import MAX_DEGREE

MEASURES_FILE = "measures.parquet"

LAYOUT_LOADS = ("attention", "tiles", "ring_steps", "keys_fetched")
"""Columns of a token layout that have a number for each ring rank (``ring_steps``: for each ring step)."""

LAYOUT_SCALARS = (
    "attention_tiles", "gather_path", "ring_path", "sum_attention", "most_attention", "sum_tiles", "sum_keys",
    "most_keys", "possible_keys",
)  # fmt: skip
"""Columns of a token layout that have one number."""

WINDOW_LOADS = tuple(f"window_{name}" for name in LAYOUT_LOADS)
"""The same under the mask of layers with a sliding window; null where no window is shorter than packs."""

LAYERS_SUMS = ("layers_tiles", "layers_gather_path", "layers_ring_path")
"""Columns that sum up tiles and paths over all layers of both kinds; null likewise."""

WINDOW_SCALARS = (*(f"window_{name}" for name in LAYOUT_SCALARS if name != "possible_keys"), *LAYERS_SUMS)
"""Columns of a token layout that have one number, and are null likewise."""

IMAGE_LOADS = ("images", "pooled_tokens", "image_load")
"""Columns of image boundaries that have a number for each CP rank."""

IMAGE_SCALARS = (
    *(f"{what}_{name}" for name in IMAGE_LOADS for what in ("sum", "most")),
    "least_image_load",
)
"""Columns of image boundaries that have one number."""


_OF_LAYOUT, _OF_IMAGES = "rows of CP sizes", "rows of layouts"
_WITHOUT_MASKS = "rows of CP sizes, and all without `model.masks`"

_MEANS = {
    "attention_tiles": "tiles of the whole mask in natural order; over the ring degree, the tile floor",
    "gather_path": "the most tiles of a rank",
    "ring_path": "the sum of `ring_steps`",
    "sum_attention": "the sum of `attention` over ranks",
    "most_attention": "its largest",
    "sum_tiles": "the sum of `tiles` over ranks",
    "sum_keys": "the sum of `keys_fetched` over ranks",
    "most_keys": "its largest",
    "possible_keys": "keys that gathering everything moves: `seq_len` x (R - 1)",
    "sum_images": "crops of all ranks",
    "most_images": "the most of one",
    "sum_pooled_tokens": "pooled rows of all ranks",
    "most_pooled_tokens": "the most of one",
    "sum_image_load": "the sum of `image_load` over ranks",
    "most_image_load": "its largest",
    "least_image_load": "the least possible largest `image_load` of a rank in stored order",
    "attention": "for each rank, allowed pairs of its queries",
    "tiles": "for each rank, 128 x 128 tiles, rows along its slice, columns along each other slice in turn",
    "ring_steps": "for each ring step, the most tiles of any rank, where rank r has the keys of rank (r - step) mod R",
    "keys_fetched": "for each rank, keys that its queries see and that it does not hold",
    "images": "for each rank, its crops",
    "pooled_tokens": "for each rank, its pooled rows",
    "image_load": "for each rank, the sum of its parts' `load`",
}
_WINDOWS = "the same without `window_`, in layers with a window"
_LAYERS = "`attention_tiles` and the paths, summed over all layers of both kinds"

MEASURE_COLUMNS: Columns = (
    number("pack_id", "the pack"),
    Column(
        name="scheme",
        type=pa.dictionary(pa.int32(), pa.string()),
        means="of layouts their name",
        nulls=_OF_LAYOUT,
        legal=SCHEMES,
    ),
    number("degree", "ring degree R of a layout, or CP size", most=MAX_DEGREE),
    *(number(name, _MEANS[name], nulls=_OF_LAYOUT) for name in LAYOUT_SCALARS),
    *(number(name, _MEANS[name], nulls=_OF_IMAGES) for name in IMAGE_SCALARS),
    *(column for name in LAYOUT_LOADS for column in lists(_MEANS[name], name, length="degree", nulls=_OF_LAYOUT)),
    *(column for name in IMAGE_LOADS for column in lists(_MEANS[name], name, length="degree", nulls=_OF_IMAGES)),
    *numbers(_WINDOWS, *(name for name in WINDOW_SCALARS if name not in LAYERS_SUMS), nulls=_WITHOUT_MASKS),
    *numbers(_LAYERS, *LAYERS_SUMS, nulls=_WITHOUT_MASKS),
    *lists(_WINDOWS, *WINDOW_LOADS, length="degree", nulls=_WITHOUT_MASKS),
)
MEASURES = schema_of(MEASURE_COLUMNS)
"""One row per (pack, scheme, ring degree), and per (pack, CP size) with ``scheme`` null. Columns of the other kind of
row are null.
"""

BLOCK_VALUES = 1 << 23
"""Most numbers in a block, unless a single pack has more: a block fits in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureGroup:
    """One layout at one ring degree, or (``scheme`` None) the image boundaries of one CP size."""

    scheme: str | None
    degree: int

    @property
    def scalars(self) -> tuple[str, ...]:
        return LAYOUT_SCALARS if self.scheme else IMAGE_SCALARS

    @property
    def loads(self) -> tuple[str, ...]:
        return LAYOUT_LOADS if self.scheme else IMAGE_LOADS

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are not null in any dataset."""
        return ("pack_id", "degree", *self.scalars, *self.loads)


class GroupPart(NamedTuple):
    """A row group, and the packs of which it has rows."""

    row_group: int
    packs: range


def measure_groups(config: PackConfig) -> tuple[MeasureGroup, ...]:
    """Every group, in the order in which the rows of a pack are made: layouts as stored, then CP sizes ascending."""
    layouts = [
        MeasureGroup(scheme=scheme, degree=degree)
        for scheme in SCHEMES
        if scheme in config.layouts
        for degree in sorted(config.ring_degrees)
    ]
    return (*layouts, *(MeasureGroup(scheme=None, degree=size) for size in sorted(config.cp_sizes)))


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureOrder:
    """Place of every row of a dataset's ``measures.parquet``."""

    groups: tuple[MeasureGroup, ...]
    n_packs: int

    @classmethod
    def of(cls, config: PackConfig, n_packs: int) -> MeasureOrder:
        return cls(groups=measure_groups(config), n_packs=n_packs)

    @property
    def n_rows(self) -> int:
        return self.n_packs * len(self.groups)

    @property
    def block_packs(self) -> int:
        """Packs of every block but the last."""
        each = sum(len(group.scalars) + len(group.loads) * group.degree for group in self.groups)
        return max(BLOCK_VALUES // each, 1)

    def blocks(self) -> Iterator[range]:
        """The packs of each block."""
        for first in range(0, self.n_packs, self.block_packs):
            yield self.block_of(first)

    def block_of(self, pack: int) -> range:
        """The packs of the block that a pack is in."""
        first = pack - pack % self.block_packs
        return range(first, min(first + self.block_packs, self.n_packs))

    def row_groups(self) -> list[int]:
        """The number of rows of every row group."""
        return [len(block) for block in self.blocks() for _ in self.groups]

    def parts(self, group: MeasureGroup, packs: range) -> list[GroupPart]:
        """The row groups of one group that hold any of some consecutive packs.

        Raises:
            ValueError: there is no such group.
        """
        number, each = self.groups.index(group), self.block_packs
        blocks = range(packs.start // each, -(-min(packs.stop, self.n_packs) // each)) if len(packs) else range(0)
        return [
            GroupPart(block * len(self.groups) + number, range(block * each, min((block + 1) * each, self.n_packs)))
            for block in blocks
        ]

    def by_table(self, rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Sorts rows that come pack by pack, in parts of any size, into the table's order: one table per row group.

        What waits for its block has no columns of nulls, which would take as much memory as numbers.
        """
        n, have, blocks = len(self.groups), 0, self.blocks()
        waiting: list[list[pa.Table]] = [[] for _ in self.groups]
        block = next(blocks, range(0))
        for part in rows:
            at = 0
            while at < len(part):
                assert block, "no more rows than the packs have"
                head = part.slice(at, len(block) * n - have)
                for place, parts in enumerate(waiting):
                    own = head.take(pa.array(np.arange((place - have) % n, len(head), n)))
                    parts += [own.select(_known(own)) if parts else own]
                at, have = at + len(head), have + len(head)
                if have == len(block) * n:
                    for place, parts in enumerate(waiting):
                        yield pa.concat_tables(parts, promote_options="permissive").unify_dictionaries()
                        waiting[place] = []
                    have, block = 0, next(blocks, range(0))
        assert not have, "no fewer rows than the packs have"


def _known(rows: pa.Table) -> list[str]:
    """The columns that hold anything, or a dictionary, which is written whole."""
    return [
        name
        for name in rows.column_names
        if rows[name].null_count < len(rows) or pa.types.is_dictionary(rows[name].type)
    ]
