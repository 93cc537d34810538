"""The kinds of load in ``balance.parquet`` and the order of its rows.

The order lets a question about one layout read the rows of that layout and few others. The table is cut into blocks of
consecutive packs. A block holds, for each stored layout and then for each CP size, the rows sorted by kind, then pack,
then rank. The loads of one layout therefore lie in one contiguous stretch per block, and a block fits in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.schemas.config import PackConfig
from preshard.schemas.layout import SCHEMES

LAYOUT_KINDS = ("attention", "tiles", "ring_step", "keys_fetched")
"""Kinds of load of a token layout, in the order of their rows."""

IMAGE_KINDS = ("images", "pooled_tokens", "image_load", "least_image_load")
"""Kinds of load of the image boundaries, in the order of their rows."""


BLOCK_ROWS = 1 << 20
"""Largest number of rows in a block, unless a single pack has more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadGroup:
    """The loads of one layout at one ring degree, or (``scheme`` None) of the image boundaries of one CP size."""

    scheme: str | None
    degree: int

    @property
    def kinds(self) -> tuple[str, ...]:
        return LAYOUT_KINDS if self.scheme else IMAGE_KINDS

    @property
    def rows(self) -> int:
        """Rows of one pack."""
        return len(self.kinds) * self.degree


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Rows of one group and one block: ``loads.reshape(kinds, packs, degree)`` of the rows from ``first_row`` on."""

    group: LoadGroup
    first_pack: int
    packs: int
    first_row: int

    @property
    def rows(self) -> int:
        return self.packs * self.group.rows


def load_groups(config: PackConfig) -> tuple[LoadGroup, ...]:
    """Every group, in the order in which the rows of a pack are made: layouts as stored, then CP sizes ascending."""
    layouts = [
        LoadGroup(scheme=scheme, degree=degree)
        for scheme in SCHEMES
        if scheme in config.layouts
        for degree in sorted(config.ring_degrees)
    ]
    return (*layouts, *(LoadGroup(scheme=None, degree=size) for size in sorted(config.cp_sizes)))


@dataclass(frozen=True, kw_only=True, slots=True)
class BalanceOrder:
    """Where every row of a dataset's ``balance.parquet`` lies."""

    groups: tuple[LoadGroup, ...]
    n_packs: int

    @classmethod
    def of(cls, config: PackConfig, n_packs: int) -> BalanceOrder:
        return cls(groups=load_groups(config), n_packs=n_packs)

    @property
    def rows_per_pack(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def block_packs(self) -> int:
        """Packs of every block but the last."""
        return max(BLOCK_ROWS // self.rows_per_pack, 1)

    def blocks(self) -> Iterator[range]:
        """The packs of each block."""
        for first in range(0, self.n_packs, self.block_packs):
            yield range(first, min(first + self.block_packs, self.n_packs))

    def stretches(self) -> Iterator[Stretch]:
        """The whole table as stretches, from its first row to its last."""
        row = 0
        for block in self.blocks():
            for group in self.groups:
                stretch = Stretch(group=group, first_pack=block.start, packs=len(block), first_row=row)
                yield stretch
                row += stretch.rows

    def stretches_of(self, group: LoadGroup, packs: range) -> Iterator[Stretch]:
        """Those of one group that hold any of some consecutive packs.

        Raises:
            ValueError: there is no such group.
        """
        number = self.groups.index(group)
        before = sum(each.rows for each in self.groups[:number])
        each, rows = self.block_packs, self.rows_per_pack
        for first in range(packs.start // each * each, min(packs.stop, self.n_packs), each):
            held = min(each, self.n_packs - first)
            yield Stretch(group=group, first_pack=first, packs=held, first_row=first * rows + before * held)

    def places(self, packs: int) -> list[Int64[np.ndarray, "rows"]]:
        """For each group, where its rows stand in a block that is sorted pack by pack.

        Args:
            packs: number of packs in the block.
        """
        places, before = [], 0
        for group in self.groups:
            kind, pack, rank = np.ogrid[: len(group.kinds), :packs, : group.degree]
            places.append((pack * self.rows_per_pack + before + kind * group.degree + rank).ravel())
            before += group.rows
        return places

    def by_table(self, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Sorts rows that come pack by pack, in parts of any size, into the table's order: one table per stretch."""
        for block, rows in self._cut(parts):
            for places in self.places(len(block)):
                yield rows.take(pa.array(places))

    def by_pack(self, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Sorts rows of the table, in parts of any size, pack by pack again: one table per block.

        If the table ends early, the missing rows leave gaps where they would lie. Surplus rows come last, unchanged.
        """
        for block, rows in self._cut(parts):
            places = np.concatenate(self.places(len(block))) if len(block) else np.arange(len(rows))
            yield rows.take(pa.array(np.argsort(places[: len(rows)])))

    def by_block(self, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Rows of the table, in parts of any size, in the order of the table: one table per block."""
        for _, rows in self._cut(parts):
            yield rows

    def _cut(self, parts: Iterable[pa.Table]) -> Iterator[tuple[range, pa.Table]]:
        """The rows of each block. Rows beyond the last block come with an empty range of packs."""
        waiting: list[pa.Table] = []
        have, blocks = 0, self.blocks()
        block = next(blocks, None)
        for part in parts:
            waiting.append(part)
            have += len(part)
            while block is not None and have >= len(block) * self.rows_per_pack:
                joined, wanted = pa.concat_tables(waiting).unify_dictionaries(), len(block) * self.rows_per_pack
                yield block, joined.slice(0, wanted)
                waiting, have = [joined.slice(wanted)], have - wanted
                block = next(blocks, None)
        if have:
            yield block or range(0), pa.concat_tables(waiting).unify_dictionaries()
