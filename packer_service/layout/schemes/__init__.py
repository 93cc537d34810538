"""The schemes that are searched for, by name. Those that have a definition are in :mod:`preshard.schemas.layout`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from preshard.packer_service.layout.measures import gather_path, ring_path
from preshard.packer_service.layout.schemes.balanced_gather import gather_owners
from preshard.packer_service.layout.schemes.balanced_ring import ring_owners


class Search(NamedTuple):
    """A search, and what it makes short.

    Attributes:
        deal: the rank of each block of a map, at a ring degree.
        path: the scheme's critical path, from the tiles of each rank's queries by rank of the keys.
    """

    deal: Callable[..., Int32[np.ndarray, "blocks"]]
    path: Callable[[Int64[np.ndarray, "ring ring"]], int]


SEARCHED = {
    "balanced_ring": Search(ring_owners, ring_path),
    "balanced_gather": Search(gather_owners, gather_path),
}
