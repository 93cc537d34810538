"""``balanced_gather``: whole blocks dealt so that all ranks have equally many tiles and few keys move.

When keys are gathered before the kernel runs, a rank's time is the tiles of its own rows, whoever holds the keys. Equal
loads are easy; among the many balanced deals the search looks for the one whose ranks fetch the fewest keys. Its cost
is the keys fetched plus a penalty for each tile above the limit. It exchanges two blocks of two ranks, takes what does
not raise the cost, and early on also what raises it by less than a falling random threshold ("threshold accepting",
Dueck and Scheuer 1990: annealing without exponentials, so that all machines take the same way).

A step waits for the rank that fetches most. So half of the cost counts all keys alike, and half counts them by the
square of what a rank fetches.

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

from preshard.packer_service.layout.blocks import BlockMap, WeighedMap, merge_pairs, sum_loads
from preshard.packer_service.layout.deals import consecutive, draw_pair, head_tail, longest_first, next_random
from preshard.packer_service.numerics import ONE, compiled

SLACK = 64
"""A gather path within ``1 / SLACK`` of the tile floor counts as near-best; among those, the keys to move decide."""

DEAR = 64
"""How many times its price a tile above the limit weighs once the limit comes first. It is then worth the keys of 128
blocks: no exchange saves more unless its two rows see more than 128 blocks together."""

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


@compiled
def _difference(blocks: BlockMap, old: int, new: int, spans: np.ndarray) -> int:
    """Columns in which two rows differ, as ``spans`` (first, end, 1 where only the new row has keys, else -1).

    Blocks of one document see almost the same keys, so differences are short and an exchange is cheap to judge.
    """
    here, there = blocks.row_edges[old], blocks.row_edges[new]
    here_end, there_end = blocks.row_edges[old + 1], blocks.row_edges[new + 1]
    count, at, never = 0, np.int32(0), np.int32(len(blocks.real))
    while here < here_end or there < there_end:
        start_old = max(at, blocks.row_spans[here, 0]) if here < here_end else never
        start_new = max(at, blocks.row_spans[there, 0]) if there < there_end else never
        end_old = blocks.row_spans[here, 1] if here < here_end else never
        end_new = blocks.row_spans[there, 1] if there < there_end else never
        if start_old == start_new:
            at = min(end_old, end_new)
        else:
            at = min(end_old, start_new) if start_old < start_new else min(end_new, start_old)
            spans[count, 0], spans[count, 1] = min(start_old, start_new), at
            spans[count, 2] = -1 if start_old < start_new else 1
            count += 1
        if here < here_end and end_old <= at:
            here += 1
        if there < there_end and end_new <= at:
            there += 1
    return count


@compiled
def _change_of_keys(seen: np.ndarray, real: np.ndarray, spans: np.ndarray, count: int, sign: int) -> np.int64:
    """What a rank needs more, or less, of keys when ``sign`` times the spans are added to its rows that see each block.

    Keys are newly needed where nothing saw them, and no longer where the last row that did is gone.
    """
    change = np.int64(0)
    for span in range(count):
        step = np.int32(spans[span, 2] * sign)
        turning, keys = np.int32(0 if step > 0 else 1), np.int64(0)
        for column in range(spans[span, 0], spans[span, 1]):
            keys += real[column] if seen[column] == turning else 0
        change += keys * step
    return change


@compiled
def _see(seen: np.ndarray, spans: np.ndarray, count: int, sign: int) -> None:
    """Add ``sign`` times the spans to a rank's count of rows that see each block."""
    for span in range(count):
        step = np.int32(spans[span, 2] * sign)
        for column in range(spans[span, 0], spans[span, 1]):
            seen[column] += step


@compiled
def _begin(blocks: BlockMap, owners: np.ndarray, ring: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each rank: its rows that see each block, its tiles, and the keys that it needs, held ones among them."""
    seen, loads, need = np.zeros((ring, len(owners)), np.int32), np.zeros(ring, np.int64), np.zeros(ring, np.int64)
    for row in range(len(owners)):
        loads[owners[row]] += blocks.loads[row]
        for span in range(blocks.row_edges[row], blocks.row_edges[row + 1]):
            for column in range(blocks.row_spans[span, 0], blocks.row_spans[span, 1]):
                need[owners[row]] += blocks.real[column] if seen[owners[row], column] == 0 else 0
                seen[owners[row], column] += 1
    return seen, loads, need


@compiled
def _excess(loads: np.ndarray, limits: np.ndarray, weights: np.ndarray, rank: int) -> np.int64:
    """A rank's tiles above the limit of each mask, times its weight."""
    excess = np.int64(0)
    for mask in range(len(limits)):
        excess += weights[mask] * max(np.int64(0), loads[mask, rank] - limits[mask])
    return excess


@compiled
def _search(
    maps: tuple[BlockMap, ...],
    weights: np.ndarray,
    start: np.ndarray,
    ring: int,
    limits: np.ndarray,
    penalty: int,
    threshold: int,
    tries: int,
    seed: int,
) -> tuple[np.ndarray, np.int64, np.int64]:
    """The best owners met in ``tries`` exchanges: fewest tiles above ``limits``, then the least sum of squared keys.

    An exchange is accepted when it costs at most a threshold. That is the product of two random fractions of 1,024 and
    a ceiling which falls linearly from ``threshold`` to 0: most draws are far below the ceiling, a few come near it.
    """
    owners, count, masks, most_spans = start.copy(), len(start), len(maps), 0
    seen, loads = np.zeros((masks, ring, count), np.int32), np.zeros((masks, ring), np.int64)
    fetched, total, squares = np.zeros(ring, np.int64), np.int64(0), np.int64(0)
    row_keys, gains, differing = np.zeros(count, np.int64), np.empty(masks, np.int64), np.empty(masks, np.int64)
    for mask in range(masks):
        seen[mask], loads[mask], keys = _begin(maps[mask], owners, ring)
        fetched += weights[mask] * (keys - maps[mask].real.sum() // ring)
        for row in range(count):
            most_spans = max(most_spans, maps[mask].row_edges[row + 1] - maps[mask].row_edges[row])
            row_keys[row] += weights[mask] * maps[mask].row_keys[row]
    spans = np.empty((masks, 4 * most_spans + 4, 3), np.int32)
    excess = np.int64(0)
    for rank in range(ring):
        excess += _excess(loads, limits, weights, rank)
        keys_of_rank = max(np.int64(0), fetched[rank])
        total += keys_of_rank
        squares += keys_of_rank * keys_of_rank
    best, best_excess, best_squares = owners.copy(), excess, squares
    state = np.uint64(seed)
    for turn in range(tries):
        state = next_random(state)
        i, j = draw_pair(state, count)
        if j < 0 or j >= count or owners[i] == owners[j]:
            continue
        a, b, over = owners[i], owners[j], np.int64(0)
        for mask in range(masks):
            gain, limit = maps[mask].loads[j] - maps[mask].loads[i], limits[mask]
            here, there = loads[mask, a], loads[mask, b]
            more = max(0, here + gain - limit) + max(0, there - gain - limit)
            over += weights[mask] * (more - max(0, here - limit) - max(0, there - limit))
            gains[mask] = gain
        state = next_random(state)
        low, high = np.int64(state & np.uint64(1023)), np.int64((state >> np.uint64(32)) & np.uint64(1023))
        allowed = threshold * (tries - turn) // tries * low * high >> 20  # over 1024 * 1024
        # An exchange hardly saves more than all keys of both rows.
        if penalty * over > allowed + row_keys[i] + row_keys[j]:
            continue
        change_here, change_there, is_same = np.int64(0), np.int64(0), True
        for mask in range(masks):
            differing[mask] = _difference(maps[mask], i, j, spans[mask])
            is_same &= differing[mask] == 0
        if is_same:
            continue
        for mask in range(masks):
            change_here += weights[mask] * _change_of_keys(
                seen[mask, a], maps[mask].real, spans[mask], differing[mask], ONE
            )
            change_there += weights[mask] * _change_of_keys(
                seen[mask, b], maps[mask].real, spans[mask], differing[mask], -ONE
            )
        old_here, old_there = max(np.int64(0), fetched[a]), max(np.int64(0), fetched[b])
        new_here = max(np.int64(0), fetched[a] + change_here)
        new_there = max(np.int64(0), fetched[b] + change_there)
        more_keys = new_here + new_there - old_here - old_there
        more_squares = new_here * new_here + new_there * new_there - old_here * old_here - old_there * old_there
        twice_mean = max(np.int64(1), 2 * total // ring)  # a key more changes the square of a rank at the mean by it
        if (more_keys + more_squares // twice_mean) // 2 + penalty * over > allowed:
            continue
        for mask in range(masks):
            _see(seen[mask, a], spans[mask], differing[mask], ONE)
            _see(seen[mask, b], spans[mask], differing[mask], -ONE)
            loads[mask, a] += gains[mask]
            loads[mask, b] -= gains[mask]
        fetched[a] += change_here
        fetched[b] += change_there
        total, squares, excess = total + more_keys, squares + more_squares, excess + over
        owners[i], owners[j] = b, a
        if excess < best_excess or (excess == best_excess and squares < best_squares):
            best_excess, best_squares = excess, squares
            for block in range(count):
                best[block] = owners[block]
    return best, best_excess, best_squares


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
        maps, ceiling = tuple(each.blocks for each in self.masks), threshold * int(weights.sum())
        found: Found = _search(
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
        """More runs where the keys were worth more than the tiles, as in a mask of squares."""
        if not _best(found)[1]:
            return found
        starts = [_best(found)[0], longest_first(sum_loads(self.masks), self.ring_degree)]
        more = [self.search(start, DEAR * self.price, self.price, tries, seed) for seed, start in enumerate(starts, 4)]
        return found + more


def _limits(masks: Sequence[WeighedMap], ring_degree: int, at_most: int | None) -> Int64[np.ndarray, "masks"]:
    """Of each mask, the most tiles that a rank may have: near-best paths, less where other layouts' are shorter."""
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
