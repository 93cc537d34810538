"""``balanced_ring``: whole blocks dealt so that no ring step waits for one rank.

In step t of ring attention rank r computes the tiles between its queries and the keys of rank ``(r - t) mod R``, and
all ranks wait for the slowest. The search starts from blocks dealt in turn, whose tiles are already spread evenly over
ranks and steps, and exchanges two blocks of two ranks where that shortens the sum of the steps' maxima. Half of the
exchanges tried are between near blocks: they see almost the same keys, so they change few tiles, which is what the last
per cent needs. Among layouts of equal path the search prefers less variance inside the steps, and where nothing has
helped for long, it makes one exchange that does not help (iterated local search).

A model with sliding windows has two masks, so one layout has two paths. Each counts as often as it has layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.layout.blocks import BlockMap, WeighedMap, pair_maps
from preshard.packer_service.layout.deals import draw_pair, head_tail, next_random, round_robin
from preshard.packer_service.numerics import ONE, compiled

PATH_WEIGHT = 1000
"""Weight of one tile of the ring path in units of variance: so much that the path comes first, and the variance mostly
decides between equal paths."""

PATIENCE = 20
"""Exchanges tried for each block without gain, after which one is made all the same."""

EXCHANGES = 100
"""Exchanges tried for each block, times a quarter of the degree: more ranks have more steps to even out. On packs of
the demo at R = 8, half as many give a path of 1.019 of the floor where these give 1.012, and twice as many 1.011."""

MOST_FACTOR = 4
"""The factor stops growing at 16 ranks."""

MOST_WORK = 4_000_000_000
"""Bound of a search's work in steps of its inner loops: judging an exchange takes the square of the degree, making it
the tiles of two blocks. It keeps packs of a million tokens below two seconds (docs/layouts.md)."""


@compiled
def _tables(blocks: BlockMap, owners: np.ndarray, by_key: np.ndarray, by_query: np.ndarray, steps: np.ndarray) -> None:
    """Adds the tiles of each row by rank of the keys, of each column by rank of the queries, of each step by rank."""
    ring = len(steps)
    for row in range(len(owners)):
        rank = owners[row]
        for span in range(blocks.row_edges[row], blocks.row_edges[row + 1]):
            tiles = blocks.row_spans[span, 2]
            for column in range(blocks.row_spans[span, 0], blocks.row_spans[span, 1]):
                by_key[row, owners[column]] += tiles
                by_query[column, rank] += tiles
        for other in range(ring):
            steps[(rank - other) % ring, rank] += by_key[row, other]


@compiled
def _path(steps: np.ndarray) -> np.int64:
    """Ring path: the sum of the steps' maxima."""
    path = np.int64(0)
    for step in range(len(steps)):
        largest = np.int32(0)
        for rank in range(len(steps)):
            largest = max(largest, steps[step, rank])
        path += largest
    return path


@compiled
def _variance(steps: np.ndarray) -> np.int64:
    """Sum over all steps of the squared distances from the step's mean, rounded down."""
    ring, variance = len(steps), np.int64(0)
    for step in range(ring):
        total, squares = np.int64(0), np.int64(0)
        for rank in range(ring):
            tiles = np.int64(steps[step, rank])
            total += tiles
            squares += tiles * tiles
        variance += squares * ring - total * total
    return variance // ring


@compiled
def _between(blocks: BlockMap, row: int, column: int) -> np.int32:
    """Tiles between one block of queries and one of keys.

    Without a branch for each span: whether a random block lies in one cannot be predicted, and this is asked twice for
    each exchange.
    """
    tiles = np.int32(0)
    for span in range(blocks.row_edges[row], blocks.row_edges[row + 1]):
        holds = np.int32(blocks.row_spans[span, 0] <= column) & np.int32(column < blocks.row_spans[span, 1])
        tiles += holds * blocks.row_spans[span, 2]
    return tiles


@compiled
def _exchange(
    steps: np.ndarray, rows: np.ndarray, columns: np.ndarray, first: int, second: int, both: int, sign: int
) -> None:
    """Add ``sign`` times the change of an exchange between two ranks to the tiles of each step and rank.

    ``rows`` and ``columns`` are what the first rank gains: the difference of the blocks' rows by rank of the keys, and
    of their columns by rank of the queries. ``both`` puts right the tiles between the two blocks themselves.
    """
    ring = len(steps)
    # Steps (first - other) mod R, (second - other), (other - first), (other - second), counted along: a remainder here
    # would take most of the search's time.
    here, there = first, second
    back_here, back_there = (ring - first) % ring, (ring - second) % ring
    for other in range(ring):
        gain = rows[other] * sign
        steps[here, first] += gain
        steps[there, second] -= gain
        gain = columns[other] * sign
        steps[back_here, other] += gain
        steps[back_there, other] -= gain
        here = here - 1 if here > 0 else ring - 1
        there = there - 1 if there > 0 else ring - 1
        back_here = back_here + 1 if back_here < ring - 1 else 0
        back_there = back_there + 1 if back_there < ring - 1 else 0
    steps[0, first] += both * sign
    steps[0, second] += both * sign
    steps[(first - second + ring) % ring, first] -= both * sign
    steps[(second - first + ring) % ring, second] -= both * sign


@compiled
def _path_after(
    steps: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    first: int,
    second: int,
    both: int,
    most: int,
    total: int,
    changed: np.ndarray,
) -> np.int64:
    """The ring path after an exchange, as :func:`_exchange` takes it; ``most + 1`` if it is longer; ``steps`` stay.

    It looks at one step after the other, in ``changed``. Those that are left take at least the mean of their tiles, and
    ``total`` is the sum of all; searches come near that floor, and most exchanges are refused after half of the steps.
    """
    ring = len(steps)
    here, there, along_here, along_there = first, second, first, second
    path, left = np.int64(0), np.int64(total)
    for step in range(ring):
        for rank in range(ring):
            changed[rank] = steps[step, rank]
        changed[first] += rows[here]
        changed[second] -= rows[there]
        changed[along_here] += columns[along_here]
        changed[along_there] -= columns[along_there]
        if step == 0:
            changed[first] += both
            changed[second] += both
        if along_here == second:
            changed[second] -= both
        if along_there == first:
            changed[first] -= both
        largest = np.int64(0)
        for rank in range(ring):
            largest = max(largest, changed[rank])
            left -= changed[rank]
        path += largest
        if path * ring + left > most * ring:
            return np.int64(most + 1)
        here = here - 1 if here > 0 else ring - 1
        there = there - 1 if there > 0 else ring - 1
        along_here = along_here + 1 if along_here < ring - 1 else 0
        along_there = along_there + 1 if along_there < ring - 1 else 0
    return path


@compiled
def _move(blocks: BlockMap, by_key: np.ndarray, by_query: np.ndarray, block: int, old: int, new: int) -> None:
    """Account for a block that goes from rank ``old`` to rank ``new``."""
    for span in range(blocks.column_edges[block], blocks.column_edges[block + 1]):
        tiles = blocks.column_spans[span, 2]
        for row in range(blocks.column_spans[span, 0], blocks.column_spans[span, 1]):
            by_key[row, old] -= tiles
            by_key[row, new] += tiles
    for span in range(blocks.row_edges[block], blocks.row_edges[block + 1]):
        tiles = blocks.row_spans[span, 2]
        for column in range(blocks.row_spans[span, 0], blocks.row_spans[span, 1]):
            by_query[column, old] -= tiles
            by_query[column, new] += tiles


@compiled
def _search(
    maps: tuple[BlockMap, BlockMap],
    weights: np.ndarray,
    start: np.ndarray,
    ring: int,
    tries: int,
    enough: int,
    seed: int,
) -> tuple[np.ndarray, np.int64]:
    """The best owners met in ``tries`` exchanges, and their path; stops at a path of ``enough``.

    Paths are sums over the masks, as many as ``weights``, each times its weight.
    """
    owners, count, masks = start.copy(), len(start), len(weights)
    by_key, by_query = np.zeros((masks, count, ring), np.int32), np.zeros((masks, count, ring), np.int32)
    steps, own = np.zeros((masks, ring, ring), np.int32), np.zeros((masks, count), np.int32)
    totals, least, best_path, variance = np.zeros(masks, np.int64), np.zeros(masks, np.int64), np.int64(0), np.int64(0)
    for mask in range(masks):
        _tables(maps[mask], owners, by_key[mask], by_query[mask], steps[mask])
        for block in range(count):
            own[mask, block] = _between(maps[mask], block, block)
            totals[mask] += maps[mask].loads[block]
        best_path += weights[mask] * _path(steps[mask])
        variance += weights[mask] * _variance(steps[mask])
    for mask in range(masks - 1):  # of the masks behind it: no path is shorter than the mean of its tiles
        for other in range(mask + 1, masks):
            least[mask] += weights[other] * (totals[other] // ring)
    best, cost, changed = owners.copy(), PATH_WEIGHT * best_path + variance, np.empty(ring, np.int64)
    rows, columns = np.empty((masks, ring), np.int32), np.empty((masks, ring), np.int32)
    both = np.empty(masks, np.int32)
    state, idle = np.uint64(seed), 0
    for _ in range(tries):
        if best_path <= enough:
            break
        state = next_random(state)
        i, j = draw_pair(state, count)
        if j < 0 or j >= count or owners[i] == owners[j]:
            continue
        first, second, differing = np.int64(owners[i]), np.int64(owners[j]), np.int32(0)
        for mask in range(masks):
            for rank in range(ring):
                rows[mask, rank] = by_key[mask, j, rank] - by_key[mask, i, rank]
                columns[mask, rank] = by_query[mask, j, rank] - by_query[mask, i, rank]
                differing |= rows[mask, rank] | columns[mask, rank]
        if differing == 0:
            continue  # both blocks see, and are seen by, the same ranks: the exchange would change nothing
        for mask in range(masks):
            both[mask] = own[mask, i] + own[mask, j] - _between(maps[mask], i, j) - _between(maps[mask], j, i)
        idle += 1
        is_patient, left = idle <= PATIENCE * count, cost // PATH_WEIGHT
        is_longer = False
        if is_patient:
            for mask in range(masks):
                most = (left - least[mask]) // weights[mask]
                left -= weights[mask] * _path_after(
                    steps[mask], rows[mask], columns[mask], first, second, both[mask], most, totals[mask], changed
                )
                if left < least[mask]:
                    is_longer = True
                    break
        if is_longer:
            continue
        new_path = variance = np.int64(0)
        for mask in range(masks):
            _exchange(steps[mask], rows[mask], columns[mask], first, second, both[mask], ONE)
            new_path += weights[mask] * _path(steps[mask])
            variance += weights[mask] * _variance(steps[mask])
        new_cost = PATH_WEIGHT * new_path + variance
        if new_cost > cost and is_patient:
            for mask in range(masks):
                _exchange(steps[mask], rows[mask], columns[mask], first, second, both[mask], -ONE)
            continue
        idle = 0 if new_cost != cost else idle
        cost = new_cost
        for mask in range(masks):
            _move(maps[mask], by_key[mask], by_query[mask], i, first, second)
            _move(maps[mask], by_key[mask], by_query[mask], j, second, first)
        owners[i], owners[j] = second, first
        if new_path < best_path:
            best_path = new_path
            for block in range(count):
                best[block] = owners[block]
    return best, best_path


def ring_owners(
    masks: Sequence[WeighedMap],
    ring_degree: int,
    *,
    tries: int | None = None,
    rivals: Sequence[Int32[np.ndarray, "blocks"]] = (),
    at_most: int | None = None,
) -> Int32[np.ndarray, "blocks"]:
    """Ring rank of each block, the same number of blocks on every rank, with the least ring path found.

    Args:
        masks: the map of each mask, of a number of blocks that ``ring_degree`` divides, and the weight of its path.
        ring_degree: number of ring ranks.
        tries: exchanges to try; by default a number that grows with the blocks and the degree, and never with time.
        rivals: other deals of the blocks; the result is never worse than any of them.
        at_most: the least ring path of other layouts, of any form. While the result is longer, the search starts again,
            from each rival and from other deals.
    """
    count = len(masks[0].blocks.loads)
    if ring_degree == 1:
        return np.zeros(count, np.int32)
    maps, weights = pair_maps(masks), np.array([each.weight for each in masks], np.int64)
    tries = _default_tries(masks, ring_degree) if tries is None else tries
    enough = sum(each.weight * -(-int(each.blocks.loads.sum()) // ring_degree) for each in masks)

    def search(start: Int32[np.ndarray, "blocks"], most_tries: int, stop_at: int, seed: int) -> tuple[np.ndarray, int]:
        found: tuple[np.ndarray, int] = _search(maps, weights, start, ring_degree, most_tries, stop_at, seed)
        return found

    found = [search(rival, 0, enough, 1) for rival in rivals]
    found.append(search(round_robin(count, ring_degree), tries, enough, 1))
    best, path = min(found, key=lambda each: each[1])
    again = [*rivals, best, head_tail(count, ring_degree), round_robin(count, ring_degree), best]
    for seed, start in enumerate(again, 2):  # each search has a seed of its own
        if at_most is None or path <= at_most:
            break
        owners, length = search(start, tries, max(enough, at_most), seed)
        best, path = (owners, length) if length < path else (best, path)
    return best


def _default_tries(masks: Sequence[WeighedMap], ring_degree: int) -> int:
    """:data:`EXCHANGES` for each block, more at larger degrees; fewer where that would take :data:`MOST_WORK`."""
    count = len(masks[0].blocks.loads)
    tries = EXCHANGES * count * min(MOST_FACTOR, max(1, ring_degree // 4))
    # Of one exchange.
    work = sum(4 * ring_degree**2 + 4 * int(each.blocks.loads.sum()) // max(count, 1) for each in masks)
    return min(tries, MOST_WORK // work)
