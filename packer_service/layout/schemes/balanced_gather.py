"""``balanced_gather``: whole blocks dealt so that all ranks have equally many tiles and few keys move.

When keys are gathered before the kernel runs, a rank's time is the tiles of its own rows, whoever holds the keys. Equal
loads are easy; among the many balanced deals the search looks for the one whose ranks fetch the fewest keys, by
exchanging blocks (:mod:`~preshard.packer_service.layout.schemes.gather_exchanges`).

Exchanging single blocks hardly ever moves a document to another rank, because both ranks need its keys halfway. So
blocks are merged in pairs, again and again, and the longest are dealt first; then they are split again and the search
goes on from there (the multilevel method, Hendrickson and Leland 1995).

A model with sliding windows has two masks, and gathers keys for each. Tiles and keys of a mask count as often as it has
layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64

from preshard.packer_service.layout.blocks import BlockMap, WeighedMap, merge_pairs, pair_maps, sum_loads
from preshard.packer_service.layout.deals import consecutive, head_tail, longest_first
from preshard.packer_service.layout.schemes.gather_exchanges import exchange_blocks

SLACK = 64
"""A gather path within ``1 / SLACK`` of the tile floor counts as near-best; among those, the keys to move decide."""

DEAR = 64
"""Factor on the price of a tile above the limit once the limit comes first. It is then worth the keys of 128 blocks: no
exchange saves more unless its two rows see more than 128 blocks together."""

EXCHANGES = 400
"""Exchanges tried for each block. Where blocks are merged, half of all go to the longest blocks and half to the blocks
as they are, half of those to pairs, and so on."""

FEWEST = 4
"""Merged blocks that a rank must have at least."""

MOST_WORK = 6_000_000_000
"""Bound of a search's work in steps of its inner loops: an exchange touches every block that its two rows see. It keeps
packs of a million tokens below two seconds (docs/layouts.md)."""

Found = tuple[np.ndarray, int, int]
"""Owners, their tiles above the limits, and the sum of squares of the keys that ranks fetch, each times the weights of
the masks."""


def gather_owners(
    masks: Sequence[WeighedMap],
    ring_degree: int,
    *,
    tries: int | None = None,
    rivals: Sequence[Int32[np.ndarray, "blocks"]] = (),
    at_most: int | None = None,
) -> Int32[np.ndarray, "blocks"]:
    """Rank of each block: the same number of blocks on every rank, a near-best gather path, and few keys to fetch.

    Args:
        masks: the map of each mask, of a number of blocks that ``ring_degree`` divides, and the weight of its path.
        ring_degree: number of ranks.
        tries: exchanges to try; by default a number that grows with the blocks, and never with time.
        rivals: other deals of the blocks; the result's path is near-best, or at least no longer than any of theirs.
        at_most: gather path of other layouts, of any form, that the result must not exceed where the search finds that
            whole blocks allow it.
    """
    count = len(masks[0].blocks.loads)
    if ring_degree == 1:
        return np.zeros(count, np.int32)
    limits, price = _limits(masks, ring_degree, at_most), _tile_price(masks[0].blocks)
    tries = _default_tries(masks) if tries is None else tries
    lengths = [masks]  # of blocks as they are, of pairs, of pairs of pairs; all have the same tiles
    while len(lengths[-1][0].blocks.loads) % (2 * ring_degree) == 0 and count >> len(lengths) >= FEWEST * ring_degree:
        lengths.append([WeighedMap(merge_pairs(each.blocks), each.weight) for each in lengths[-1]])
    found = list[Found]()
    for merged in reversed(range(len(lengths))):
        runs = _DealtRuns(masks=lengths[merged], ring_degree=ring_degree, limits=limits, price=price, seed=8 * merged)
        if found:
            found = runs.refine(np.repeat(_best(found)[0], 2), 3 * price << merged >> 1, tries >> merged + 1)
        else:
            found = runs.begin(tries >> 1 if merged else tries)
    if _best(found)[1]:
        # No deal is within the limits: the shortest path known becomes them, and is kept.
        known = [head_tail(count, ring_degree), longest_first(sum_loads(masks), ring_degree), *rivals]
        known += [each[0] for each in found]
        paths = [_paths(masks, owners, ring_degree) for owners in known]
        weights = np.array([each.weight for each in masks], np.int64)
        limits, start = min(zip(paths, known, strict=True), key=lambda each: int((weights * each[0]).sum()))
        runs = _DealtRuns(masks=masks, ring_degree=ring_degree, limits=limits, price=price, seed=0)
        found = [runs.search(start, DEAR * price, price, tries >> 2, 6)]
    return _best(found)[0]


@dataclass(frozen=True, kw_only=True)
class _DealtRuns:
    """Runs of the search over blocks of one length.

    Attributes:
        masks, ring_degree: as of :func:`gather_owners`.
        limits: of each mask, the most tiles that a rank may have.
        price: keys that one tile above the limit weighs.
        seed: added to the seeds of the runs: each run of a pack has its own.
    """

    masks: Sequence[WeighedMap]
    ring_degree: int
    limits: Int64[np.ndarray, "masks"]
    price: int
    seed: int

    def search(self, start: Int32[np.ndarray, "blocks"], penalty: int, threshold: int, tries: int, seed: int) -> Found:
        """One run, its threshold for a single mask."""
        weights = np.array([each.weight for each in self.masks], np.int64)
        maps, ceiling = pair_maps(self.masks), threshold * int(weights.sum())
        found: Found = exchange_blocks(
            maps, weights, start, self.ring_degree, self.limits, penalty, ceiling, tries, self.seed + seed
        )
        return found

    def begin(self, tries: int) -> list[Found]:
        """Runs from deals that are known. Tiles are cheap at first, so that documents can change ranks."""
        count = len(self.masks[0].blocks.loads)
        starts = [head_tail(count, self.ring_degree), consecutive(count, self.ring_degree)]
        found = [
            self.search(start, self.price // 2, 2 * self.price, tries // 4, seed)
            for seed, start in enumerate(starts, 1)
        ]
        found.append(self.search(_best(found)[0], self.price, self.price, tries // 2, 3))
        return self._within_limits(found, tries // 2)

    def refine(self, start: Int32[np.ndarray, "blocks"], threshold: int, tries: int) -> list[Found]:
        """Runs from the deal of longer blocks."""
        return self._within_limits([self.search(start, 2 * self.price, threshold, tries, 1)], tries // 2)

    def _within_limits(self, found: list[Found], tries: int) -> list[Found]:
        """Adds runs where the keys were worth more than the tiles, as in a mask of squares."""
        if not _best(found)[1]:
            return found
        starts = [_best(found)[0], longest_first(sum_loads(self.masks), self.ring_degree)]
        more = [self.search(start, DEAR * self.price, self.price, tries, seed) for seed, start in enumerate(starts, 4)]
        return found + more


def _limits(masks: Sequence[WeighedMap], ring_degree: int, at_most: int | None) -> Int64[np.ndarray, "masks"]:
    """Most tiles of each mask that a rank may have: near-best paths, less where other layouts' are shorter."""
    totals = [int(each.blocks.loads.sum()) for each in masks]
    least = [-(-total // ring_degree) for total in totals]
    slack = [
        max(0, total * (SLACK + 1) // (SLACK * ring_degree) - low) for total, low in zip(totals, least, strict=True)
    ]
    all_slack = sum(each.weight * more for each, more in zip(masks, slack, strict=True))
    if at_most is not None and all_slack:
        left = max(0, at_most - sum(each.weight * low for each, low in zip(masks, least, strict=True)))
        slack = [more * min(left, all_slack) // all_slack for more in slack]
    return np.array([low + more for low, more in zip(least, slack, strict=True)], np.int64)


def _paths(
    masks: Sequence[WeighedMap], owners: Int32[np.ndarray, "blocks"], ring_degree: int
) -> Int64[np.ndarray, "masks"]:
    """The most tiles of a rank under each mask."""
    loads = np.zeros((len(masks), ring_degree), np.int64)
    for mask, each in enumerate(masks):
        np.add.at(loads[mask], owners, each.blocks.loads)
    most: Int64[np.ndarray, "masks"] = loads.max(axis=1)
    return most


def _best(found: list[Found]) -> Found:
    """The one with the fewest tiles above the limits, then the least sum of squared keys."""
    return min(found, key=lambda each: each[1:])


def _tile_price(blocks: BlockMap) -> int:
    """Keys that one tile above the limit weighs: two blocks of keys where a block is one tile."""
    keys, tiles = int(blocks.real.max(initial=0)), int(blocks.row_spans[:, 2].max(initial=1))
    return max(2, 2 * keys // tiles)


def _default_tries(masks: Sequence[WeighedMap]) -> int:
    """:data:`EXCHANGES` for each block, fewer where wide rows would take more than :data:`MOST_WORK`."""
    count = len(masks[0].blocks.loads)
    # Of one exchange: two ranks, two rows, there and back, and what does not depend on the width.
    work = sum(8 * (int(np.diff(each.blocks.row_spans[:, :2]).sum()) // max(count, 1)) + 256 for each in masks)
    return min(EXCHANGES * count, MOST_WORK // work)
