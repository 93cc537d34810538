"""The generator from which the searches draw."""

from __future__ import annotations

import numpy as np

from packer_service.compiled import compiled


@compiled
def next_random(state: np.uint64) -> np.uint64:
    """The next value of Marsaglia's 64-bit xorshift generator ("Xorshift RNGs", 2003); ``state`` is never 0.

    A search draws from it so that its result depends on its arguments alone, on every machine.
    """
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    return state
