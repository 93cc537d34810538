"""Shuffles inside a group of packs sorted by cost, such that steps stay even whatever their size.

A step takes as many packs in a row as there are data-parallel ranks, and that number divides the group. So a shuffle
has to keep every aligned run of such a size a run of neighbours in cost. Where the group's size is a power of a prime
p, its p parts may change places, and the p parts of each of these. Sizes of a group with several primes overlap (runs
of 8 and of 12 in one of 24): it can only be turned round.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64, UInt64


def part_size(window: int) -> int | None:
    """Packs of the largest parts of a group that may change places; None where it can only be turned round."""
    power = prime = smallest_prime(window)
    while power < window:
        power *= prime
    return window // prime if power == window else None


def smallest_prime(number: int) -> int:
    """The smallest prime that divides a number; 1 for 1."""
    return next((divisor for divisor in range(2, int(number**0.5) + 1) if number % divisor == 0), number)


def places_in_group(
    places: Int64[np.ndarray, "packs"], window: int, drawn: UInt64[np.ndarray, "packs"]
) -> Int64[np.ndarray, "packs"]:
    """Index in its sorted group of the pack at each place: a permutation for each hash.

    Args:
        places: in their groups, from 0.
        window: packs of a group.
        drawn: a hash for each place, the same for all places of a group.
    """
    part = part_size(window)
    if part is None:
        return np.where((drawn >> np.uint64(63)).astype(bool), window - 1 - places, places)
    found, here = np.zeros_like(places), drawn
    while window > 1:
        n_parts = window // part
        number, places = np.divmod(places, part)
        here = mix64(here)
        turned = np.where((here >> np.uint64(63)).astype(bool), n_parts - 1 - number, number)
        found += (turned + (here % np.uint64(n_parts)).astype(np.int64)) % n_parts * part
        here = here + number.astype(np.uint64)
        window, part = part, max(1, part // n_parts)
    return found


def rest_order(n_packs: int, window: int, drawn: int) -> Int64[np.ndarray, "packs"]:
    """The order of sorted packs that are too few for a group: whole parts of one first, then of those, and so on.

    Args:
        n_packs: fewer than ``window``.
        window: packs of a group.
        drawn: a hash.
    """
    part = part_size(window)
    if part is None or not n_packs:
        return np.arange(n_packs)[:: -1 if drawn >> 63 else 1]
    n_parts = n_packs // part
    hashes = mix64(mix64(np.arange(n_parts + 1, dtype=np.uint64)) + np.uint64(drawn))
    number = np.repeat(np.argsort(hashes[:-1], kind="stable"), part)
    inside = places_in_group(np.tile(np.arange(part), n_parts), part, hashes[number])
    rest = rest_order(n_packs - n_parts * part, part, int(hashes[-1]))
    return np.concatenate([number * part + inside, n_parts * part + rest])


def mix64(values: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """A bijection in which every bit depends on all bits: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
