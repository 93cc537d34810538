"""How often each document is taken, and in which pass over the documents: weights of sources, and epochs.

The documents of a pass are packed together, and no two of a pass are the same, so copies never share a pack. Every pass
has its own salt: documents of one size change places, and where that costs no pack, others do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from preshard.schemas.document_ids import mix64

_FRACTION_BITS = 53
"""A weight's fraction is compared with so many bits of a document's hash: as many as it has itself."""


class Taken(NamedTuple):
    """Documents as often as they are taken, by epoch, pass and document.

    Attributes:
        document: index of the document.
        copy_number: which copy of the document it is in its epoch, from 0.
        epoch: from 0.
        pass_number: from 0, through all epochs.
    """

    document: Int64[np.ndarray, "taken"]
    copy_number: Int64[np.ndarray, "taken"]
    epoch: Int64[np.ndarray, "taken"]
    pass_number: Int64[np.ndarray, "taken"]


def count_copies(
    hashes: UInt64[np.ndarray, "docs"], weights: Float64[np.ndarray, "docs"], seed: int
) -> Int64[np.ndarray, "docs"]:
    """How often each document is taken in an epoch: the whole part of its weight, and one more for a fraction of them.

    A document is among those by its hash and the seed, whatever the other documents are; those of a smaller fraction
    are among those of a larger one.

    Args:
        hashes: of each document's id; all pieces of a document have the same, so they stay together.
        weights: of each document's source, finite and not negative.
        seed: chooses which documents are taken once more.
    """
    whole = np.floor(weights)
    drawn = _salt(hashes, seed, 0) >> np.uint64(64 - _FRACTION_BITS)
    limit = np.ldexp(weights - whole, _FRACTION_BITS).astype(np.uint64)
    return whole.astype(np.int64) + (drawn < limit)


def take(hashes: UInt64[np.ndarray, "docs"], copies: Int64[np.ndarray, "docs"], *, epochs: int, seed: int) -> Taken:
    """Lists documents as often as they are taken.

    An epoch has as many passes as the document that is taken most often has copies. The copies of a document are spread
    over them, from a pass on that its hash names, so every pass has its share of every source.

    Args:
        hashes: of each document's id.
        copies: how often each is taken in an epoch.
        epochs: number of epochs.
        seed: chooses the passes.
    """
    n_passes = int(copies.max(initial=1))
    document = np.repeat(np.arange(len(copies)), copies)
    copy_number = np.arange(len(document)) - np.repeat(np.cumsum(copies) - copies, copies)
    found = []
    for epoch in range(epochs):
        first = (_salt(hashes, seed, epoch + 1) % np.uint64(n_passes)).astype(np.int64)
        pass_number = (first[document] + copy_number * n_passes // copies[document]) % n_passes
        order = np.argsort(pass_number, kind="stable")
        found.append((document[order], copy_number[order], epoch, epoch * n_passes + pass_number[order]))
    return Taken(
        document=np.concatenate([part[0] for part in found]),
        copy_number=np.concatenate([part[1] for part in found]),
        epoch=np.repeat(np.arange(epochs), len(document)),
        pass_number=np.concatenate([part[3] for part in found]),
    )


def _salt(hashes: UInt64[np.ndarray, "docs"], seed: int, salt: int) -> UInt64[np.ndarray, "docs"]:
    """Bits of a document that say nothing of its place in canonical order."""
    salts = mix64(np.array([seed % 2**64, salt], np.uint64))
    return mix64(mix64(hashes ^ salts[0]) ^ salts[1])
