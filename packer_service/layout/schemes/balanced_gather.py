"""``balanced_gather``: whole blocks dealt so that all ranks have equally many tiles and few keys move.

When keys are gathered before the kernel runs, a rank's time is the tiles of its own rows, whoever holds the keys. Equal
loads are easy; among the many balanced deals the search looks for the one whose ranks need the fewest keys. Its cost is
the keys needed plus a penalty for each tile above the limit. It exchanges two blocks of two ranks, takes what does not
raise the cost, and early on also what raises it by less than a falling random threshold ("threshold accepting", Dueck
and Scheuer 1990: annealing without exponentials, so that all machines take the same way).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.layout.blocks import BlockMap
from preshard.packer_service.layout.deals import consecutive, draw_pair, head_tail, longest_first, next_random
from preshard.packer_service.numerics.compiled import ONE, compiled

SLACK = 64
"""A gather path within ``1 / SLACK`` of the tile floor counts as near-best; among those, the keys to move decide."""

DEAR = 64
"""How many times its price a tile above the limit weighs once the limit comes first. It is then worth the keys of 128
blocks: no exchange saves more unless its two rows see more than 128 blocks together."""

EXCHANGES = 450
"""Exchanges tried for each block in the usual three runs together. On packs of the demo at R = 8, half as many leave 4%
more keys to move, and twice as many save 4%."""

MOST_WORK = 6_000_000_000
"""Bound of a search's work in steps of its inner loops: an exchange touches every block that its two rows see. It keeps
packs of a million tokens below two seconds (docs/layouts.md)."""

Found = tuple[np.ndarray, int, int]
"""Owners, their tiles above the limit, and the keys that all ranks need."""


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
def _begin(blocks: BlockMap, owners: np.ndarray, ring: int) -> tuple[np.ndarray, np.ndarray, np.int64]:
    """Rows of each rank that see each block, tiles of each rank, and the keys that all ranks need."""
    seen, loads, need = np.zeros((ring, len(owners)), np.int32), np.zeros(ring, np.int64), np.int64(0)
    for row in range(len(owners)):
        loads[owners[row]] += blocks.loads[row]
        for span in range(blocks.row_edges[row], blocks.row_edges[row + 1]):
            for column in range(blocks.row_spans[span, 0], blocks.row_spans[span, 1]):
                need += blocks.real[column] if seen[owners[row], column] == 0 else 0
                seen[owners[row], column] += 1
    return seen, loads, need


@compiled
def _search(
    blocks: BlockMap, start: np.ndarray, ring: int, limit: int, penalty: int, threshold: int, tries: int, seed: int
) -> tuple[np.ndarray, np.int64, np.int64]:
    """The best owners met in ``tries`` exchanges: fewest tiles above ``limit``, then fewest keys needed.

    An exchange is accepted when it costs at most a threshold. That is the product of two random fractions of 1,024 and
    a ceiling which falls linearly from ``threshold`` to 0: most draws are far below the ceiling, a few come near it.
    """
    owners, count = start.copy(), len(start)
    seen, loads, need = _begin(blocks, owners, ring)
    most_spans = 0
    for row in range(count):
        most_spans = max(most_spans, blocks.row_edges[row + 1] - blocks.row_edges[row])
    spans = np.empty((4 * most_spans + 4, 3), np.int32)
    excess = np.int64(0)
    for rank in range(ring):
        excess += max(0, loads[rank] - limit)
    best, best_excess, best_need = owners.copy(), excess, need
    state = np.uint64(seed)
    for turn in range(tries):
        state = next_random(state)
        i, j = draw_pair(state, count)
        if j < 0 or j >= count or owners[i] == owners[j]:
            continue
        a, b, gain = owners[i], owners[j], blocks.loads[j] - blocks.loads[i]
        over = max(0, loads[a] + gain - limit) + max(0, loads[b] - gain - limit)
        over -= max(0, loads[a] - limit) + max(0, loads[b] - limit)
        state = next_random(state)
        low, high = np.int64(state & np.uint64(1023)), np.int64((state >> np.uint64(32)) & np.uint64(1023))
        allowed = threshold * (tries - turn) // tries * low * high >> 20  # over 1024 * 1024
        # An exchange saves at most all keys of both rows.
        if penalty * over > allowed + blocks.row_keys[i] + blocks.row_keys[j]:
            continue
        differing = _difference(blocks, i, j, spans)
        if differing == 0:
            continue
        change = _change_of_keys(seen[a], blocks.real, spans, differing, ONE)
        change += _change_of_keys(seen[b], blocks.real, spans, differing, -ONE)
        if change + penalty * over > allowed:
            continue
        _see(seen[a], spans, differing, ONE)
        _see(seen[b], spans, differing, -ONE)
        need, excess = need + change, excess + over
        loads[a] += gain
        loads[b] -= gain
        owners[i], owners[j] = b, a
        if excess < best_excess or (excess == best_excess and need < best_need):
            best_excess, best_need = excess, need
            for block in range(count):
                best[block] = owners[block]
    return best, best_excess, best_need


def gather_owners(
    blocks: BlockMap,
    ring_degree: int,
    *,
    tries: int | None = None,
    rivals: Sequence[Int32[np.ndarray, "blocks"]] = (),
    at_most: int | None = None,
) -> Int32[np.ndarray, "blocks"]:
    """Rank of each block: the same number of blocks on every rank, a near-best gather path, and few keys to fetch.

    Args:
        blocks: the map of a number of blocks that ``ring_degree`` divides.
        ring_degree: number of ranks.
        tries: exchanges to try; by default a number that grows with the blocks, and never with time.
        rivals: other deals of the blocks; the result's path is near-best, or at least no longer than any of theirs.
        at_most: gather path of other layouts, of any form, that the result must not exceed where the search finds that
            whole blocks allow it.
    """
    count, total = len(blocks.loads), int(blocks.loads.sum())
    if ring_degree == 1:
        return np.zeros(count, np.int32)
    near_best = total * (SLACK + 1) // (SLACK * ring_degree)
    limit = max(-(-total // ring_degree), near_best if at_most is None else min(near_best, at_most))
    price, tries = _tile_price(blocks), _default_tries(blocks) if tries is None else tries

    def search(start: np.ndarray, penalty: int, threshold: int, part: int, seed: int) -> Found:
        """One run with a ``part``-th of the budget. Each run of a pack has a seed of its own, counted from 1."""
        return _search(blocks, start, ring_degree, limit, penalty, threshold, tries // part, seed)

    # Tiles are cheap at first, so that documents can change ranks, then expensive.
    starts = [head_tail(count, ring_degree), consecutive(count, ring_degree)]
    found = [search(start, price // 2, 2 * price, 4, seed) for seed, start in enumerate(starts, 1)]
    middle = min(found, key=lambda each: each[2] + price // 2 * each[1])
    found.append(search(middle[0], price, price, 2, 3))
    if min(found, key=_tiles_then_keys)[1]:
        # The keys were worth more than the tiles, as in a mask of squares.
        starts += [min(found, key=_tiles_then_keys)[0], longest_first(blocks.loads, ring_degree)]
        found += [search(start, DEAR * price, price, 4, seed) for seed, start in enumerate(starts[2:], 4)]
    best = min(found, key=_tiles_then_keys)
    if best[1]:
        # No deal is within the limit: the shortest path known becomes it, and is kept.
        known = [*starts, *rivals, *(each[0] for each in found)]
        limit, start = min(((_path(blocks, owners, ring_degree), owners) for owners in known), key=lambda each: each[0])
        best = search(start, DEAR * price, price, 4, 6)
    return best[0]


def _path(blocks: BlockMap, owners: Int32[np.ndarray, "blocks"], ring_degree: int) -> int:
    loads = np.zeros(ring_degree, np.int64)
    np.add.at(loads, owners, blocks.loads)
    return int(loads.max())


def _tiles_then_keys(found: Found) -> tuple[int, int]:
    return found[1], found[2]


def _tile_price(blocks: BlockMap) -> int:
    """Keys that one tile above the limit weighs: two blocks of keys where a block is one tile."""
    keys, tiles = int(blocks.real.max(initial=0)), int(blocks.row_spans[:, 2].max(initial=1))
    return max(2, 2 * keys // tiles)


def _default_tries(blocks: BlockMap) -> int:
    """:data:`EXCHANGES` for each block, fewer where wide rows would take more than :data:`MOST_WORK`."""
    count = len(blocks.loads)
    width = int((blocks.row_spans[:, 1] - blocks.row_spans[:, 0]).sum()) // max(count, 1)
    # Of one exchange: two ranks, two rows, there and back, and what does not depend on the width.
    work = 8 * width + 256
    return min(EXCHANGES * count, MOST_WORK // work)
