"""Other neighbours in the packs of another epoch: the same documents in other packs, for no more packs.

Packing by size alone would put the same documents together every time. So sizes count as somewhat less first, by a
hash, and as much less as takes no more packs; then documents are placed from large to small. Where even a little takes
more packs, as when two budgets bind, only documents of one size change places.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.plan.best_fit import best_fit
from preshard.packer_service.plan.kinds import Kinds
from preshard.schemas.document_ids import mix64

_NEAR_ENOUGH = 4000
"""One pack more in this many is no more packs."""

_LESS = (512, 256, 128, 64, 32, 16)
"""By how much sizes count as less at most, in 1/1024."""


def other_neighbours(kinds: Kinds, packs: Int64[np.ndarray, "docs"], salt: int) -> Int64[np.ndarray, "docs"]:
    """A packing with other neighbours.

    Args:
        kinds: the documents by size.
        packs: a packing of them, kind after kind.
        salt: chooses the neighbours.

    Returns:
        The pack of each document, in the order of ``kinds.documents``. It has no more packs than ``packs``, but for one
        in 4,000.
    """
    n_documents = len(kinds.documents)
    drawn = mix64(mix64(np.arange(n_documents, dtype=np.uint64)) + np.uint64(salt % 2**64))
    kind = np.repeat(np.arange(len(kinds.count)), kinds.count)
    most = int(packs.max()) + 1
    for less in _LESS:
        counted = kinds.tokens[kind] * (1024 - (drawn % np.uint64(less)).astype(np.int64))
        order = np.argsort(-counted, kind="stable")
        sizes = kinds.tokens[kind[order]], kinds.images[kind[order]], np.ones(n_documents, np.int64)
        placed = best_fit(*sizes, kinds.max_tokens, kinds.max_images)
        if int(placed.max()) + 1 <= most + most // _NEAR_ENOUGH:
            found = np.empty(n_documents, np.int64)
            found[order] = placed
            return found
    return packs[np.lexsort((drawn, kind))]
