"""What the measures of a report mean, for a person who reads its tables."""

from __future__ import annotations

from preshard.schemas.layout import TILE

BALANCE_LEGEND = (
    f"tile: {TILE} x {TILE} queries and keys, computed or skipped as a whole; tile floor: an even share of the pack's "
    "tiles, less than which no layout of whole tiles leaves to its slowest rank",
    "gather path: tiles of the slowest rank once it has its keys; ring path: over the steps of a ring, the sum of each "
    "step's slowest rank; both 1.000 at the floor",
    "KV traffic: keys that ranks need and do not hold, over those that gathering everything moves; imbalance: allowed "
    "pairs of the busiest rank over the mean",
)
"""Lines below the table of layouts."""

IMAGE_LEGEND = (
    "imbalance by work: the vision encoder's work on the busiest rank over the mean; over the best possible: over the "
    "least that whole frames and stills allow",
)
"""Lines below the table of image boundaries."""
