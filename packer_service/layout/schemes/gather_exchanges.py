"""The exchanges of ``balanced_gather``: two blocks of two ranks change places where that does not raise the cost.

The cost is the keys fetched plus a penalty for each tile above the limit. Early on also what raises it by less than a
falling random threshold is taken ("threshold accepting", Dueck and Scheuer 1990: annealing without exponentials, so
that all machines take the same way). A step waits for the rank that fetches most, so half of the cost counts all keys
alike, and half counts them by the square of what a rank fetches.
"""

from __future__ import annotations

import numpy as np

from preshard.packer_service.layout.blocks import BlockMap
from preshard.packer_service.layout.deals import draw_pair, next_random
from preshard.packer_service.numerics import ONE, compiled


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
    """Change in the keys that a rank needs when ``sign`` times the spans are added to its rows that see each block.

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
def _begin(blocks: BlockMap, owners: np.ndarray, seen: np.ndarray, loads: np.ndarray, need: np.ndarray) -> None:
    """Adds values of each rank: rows that see each block, its tiles, and the keys that it needs, held ones included."""
    for row in range(len(owners)):
        loads[owners[row]] += blocks.loads[row]
        for span in range(blocks.row_edges[row], blocks.row_edges[row + 1]):
            for column in range(blocks.row_spans[span, 0], blocks.row_spans[span, 1]):
                need[owners[row]] += blocks.real[column] if seen[owners[row], column] == 0 else 0
                seen[owners[row], column] += 1


@compiled
def _excess(loads: np.ndarray, limits: np.ndarray, weights: np.ndarray, rank: int) -> np.int64:
    """A rank's tiles above the limit of each mask, times its weight."""
    excess = np.int64(0)
    for mask in range(len(limits)):
        excess += weights[mask] * max(np.int64(0), loads[mask, rank] - limits[mask])
    return excess


@compiled
def exchange_blocks(
    maps: tuple[BlockMap, BlockMap],
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
    There are as many masks as ``weights``.
    """
    owners, count, masks, most_spans = start.copy(), len(start), len(weights), 0
    seen, loads = np.zeros((masks, ring, count), np.int32), np.zeros((masks, ring), np.int64)
    fetched, total, squares = np.zeros(ring, np.int64), np.int64(0), np.int64(0)
    row_keys, gains, differing = np.zeros(count, np.int64), np.empty(masks, np.int64), np.empty(masks, np.int64)
    for mask in range(masks):
        needed, held = np.zeros(ring, np.int64), np.int64(0)
        _begin(maps[mask], owners, seen[mask], loads[mask], needed)
        for row in range(count):
            held += maps[mask].real[row]
        for rank in range(ring):
            fetched[rank] += weights[mask] * (needed[rank] - held // ring)
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
