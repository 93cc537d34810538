"""An order in which packs that stand together are alike in two costs, each of which ranks wait for by itself.

Packs are the points of a k-d tree (Bentley 1975, "Multidimensional binary search trees used for associative
searching"): they are cut in two by the cost for which a step of them all would wait the longest, and so is each half,
down to single packs. Cuts fall between whole groups, then between parts of a group, so that those are cells of the
tree. Everything is compared in integers: the order is the same on every machine.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from preshard.schemas.dataset.step_order import smallest_prime

_SCALE = 2.0**30
"""The largest cost in integers, so that the sum of a billion packs stays in 64 bits."""


def order_alike(
    costs: Float64[np.ndarray, "packs"], others: Float64[np.ndarray, "packs"], window: int
) -> Int64[np.ndarray, "packs"]:
    """Orders packs so that each group of ``window``, and each part of one, is a set of neighbours in both costs.

    Args:
        costs, others: of each pack, in one unit, finite and not negative.
        window: packs of a group; their number is a multiple of it.

    Returns:
        The packs, each once. Those that are equal in one cost are told apart by the other one, then by index.
    """
    n_packs = len(costs)
    keys, ranks = np.stack([costs, others]), np.empty((2, n_packs), np.int64)
    for number in range(2):
        ranks[number, np.lexsort((keys[1 - number], keys[number]))] = np.arange(n_packs)
    keys = np.rint(keys * (_SCALE / max(keys.max(initial=0.0), 1e-290))).astype(np.int64)
    groups, pending = [], [np.arange(n_packs)]
    while pending:
        packs = pending.pop()
        if len(packs) <= window:
            groups.append(packs)
            continue
        half = len(packs) // window // 2 * window
        packs = packs[np.argpartition(_cut_by(packs[None], keys, ranks)[0], half)]
        pending += [packs[half:], packs[:half]]
    order = np.concatenate(groups)
    for size in _part_sizes(window):
        parts = order.reshape(-1, size)
        order = np.take_along_axis(parts, np.argsort(_cut_by(parts, keys, ranks), axis=1), axis=1)
    return order.reshape(-1)


def _part_sizes(window: int) -> list[int]:
    """Packs of a group, of its parts, of theirs, and so on: last powers of two, as most data-parallel sizes are."""
    sizes = [1]
    while sizes[-1] < window:
        sizes.append(sizes[-1] * smallest_prime(window // sizes[-1]))
    return sizes[:0:-1]


def _cut_by(
    sets: Int64[np.ndarray, "sets packs"],
    keys: Int64[np.ndarray, "2 all_packs"],
    ranks: Int64[np.ndarray, "2 all_packs"],
) -> Int64[np.ndarray, "sets packs"]:
    """Ranks of each set's packs in the cost whose largest value is the furthest above its mean."""
    waits = [values.max(axis=1) * sets.shape[1] - values.sum(axis=1) for values in (key[sets] for key in keys)]
    return np.where((waits[0] >= waits[1])[:, None], ranks[0][sets], ranks[1][sets])
