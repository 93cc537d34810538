"""Several datasets as one stream: which gives the next packs is a pure function of their weights and the position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Int64

from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.errors import ReaderError
from preshard.schemas.manifest import ManifestHead

SAME_TOKENS = ("sha256", "vocab_size", "bos_id", "eos_id", "pad_id", "image_id")
"""Fields of a tokenizer that must be the same; its name and its chat template may differ."""

SAME_INPUTS = ("axes", "merge", "row_ids", "group_ids", "bidirectional", "settings")
"""Fields of the model that a dataset was packed for that must be the same; the hashes of its files may differ, as of
another chat template."""


def weighed(datasets: Sequence[tuple[str, ManifestHead]], weights: Sequence[float], tail: str) -> tuple[list[int], str]:
    """Whole shares of datasets that can be mixed, and the name of the mixture in a state.

    Raises:
        ReaderError: they cannot be, a weight is none, or the mixture is to have an end.
    """
    if tail == "drop":
        raise ReaderError("tail is 'drop', and a mixture of datasets has no epoch that ends: leave it out")
    check_alike(datasets)
    shares = whole_shares(weights)
    ids = [manifest.dataset_id for _, manifest in datasets]
    return shares, " + ".join(f"{share} x {each}" for share, each in zip(shares, ids, strict=True))


def check_alike(datasets: Sequence[tuple[str, ManifestHead]]) -> None:
    """Checks that datasets, each with its location, hold packs of one length for one model, and that none comes twice.

    Raises:
        ReaderError: they do not; names the first two that differ, and in what.
    """
    first_path, first = datasets[0]
    wanted = _properties(first)
    seen = {first.dataset_id: first_path}
    for path, manifest in datasets[1:]:
        if manifest.dataset_id in seen:
            raise ReaderError(
                f"{path} is the same dataset as {seen[manifest.dataset_id]}; give it once, with the sum of the weights"
            )
        seen[manifest.dataset_id] = path
        for name, value in _properties(manifest).items():
            if value != wanted[name]:
                raise ReaderError(
                    f"{path} cannot be mixed with {first_path}: {name} is {_shown(value)}, not {_shown(wanted[name])}; "
                    "pack one of them again with the settings of the other"
                )


def _properties(manifest: ManifestHead) -> dict[str, Any]:
    """Properties that must be equal, by the name under which errors show it."""
    model, config = manifest.model, stored_config(manifest)
    return {
        "the model's type": None if model is None else model.model_type,
        "images.backend": None if model is None else config.images.backend,
        **{f"the model's {name}": None if model is None else getattr(model, name) for name in SAME_INPUTS},
        **{f"the tokenizer's {name}": getattr(manifest.tokenizer, name) for name in SAME_TOKENS},
        "seq_len": config.seq_len,
        **({"vision": config.vision.model_dump()} if model is None else {}),
    }


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


FINEST = 100_000
"""Shares are whole numbers of this many parts at the finest, so that a turn through all of them stays a small table."""


def whole_shares(weights: Sequence[float]) -> list[int]:
    """Weights as whole numbers in the same proportion, as small as they can be, rounded to :data:`FINEST` parts.

    Raises:
        ReaderError: a weight is not a number above 0, or too small beside the others.
    """
    for weight in weights:
        if not (math.isfinite(weight) and weight > 0):
            raise ReaderError(f"a dataset's weight is {weight}; give a number above 0, or leave the dataset out")
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    shares = [int(weight * scale) for weight in exact]
    if sum(shares) // math.gcd(*shares) > FINEST:
        shares = _rounded(shares)
    if min(shares) == 0:
        raise ReaderError(
            f"a dataset's weight is {weights[shares.index(0)]:g} of {sum(weights):g}; the least share of a mixture is "
            f"one in {FINEST}: give more, or leave the dataset out"
        )
    divisor = math.gcd(*shares)
    return [share // divisor for share in shares]


def _rounded(shares: Sequence[int]) -> list[int]:
    """Shares of :data:`FINEST` parts: rounded down, and what is left to the largest remainders."""
    total = sum(shares)
    parts = [share * FINEST // total for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (-(shares[i] * FINEST % total), i))
    for i in by_remainder[: FINEST - sum(parts)]:
        parts[i] += 1
    return parts


def turns(shares: Sequence[int]) -> Int64[np.ndarray, "period"]:
    """Number of the dataset whose turn it is, over one period of ``sum(shares)`` turns, after which it repeats.

    After any number n of turns, each of k datasets has had its share of n to within 1 - 1/(2k - 2), which is the least
    bound that holds for all shares (Tijdeman, "The chairman assignment problem", 1980). Of the datasets that are far
    enough behind, the one goes next that would first be too far behind.
    """
    period, k = sum(shares), len(shares)
    if k == 1:
        return np.zeros(1, np.int64)
    # all multiplied by the period and by 2k - 2, to stay with whole numbers
    scale, unit = 2 * k - 2, period * (2 * k - 2)
    behind, found = [0] * k, np.empty(period, np.int64)
    for turn in range(period):
        best, best_room = -1, 0
        for i, share in enumerate(shares):
            behind[i] += scale * share
            room = unit - period - behind[i]
            # room / share is the number of turns that the dataset can still wait
            if behind[i] >= period and (best < 0 or room * shares[best] < best_room * share):
                best, best_room = i, room
        behind[best] -= unit
        found[turn] = best
    return found
