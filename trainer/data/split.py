"""Whether a dataset was packed for a given split of its packs over ranks."""

from __future__ import annotations

from schemas.config import PackConfig
from schemas.errors import ReaderError


def check_split(config: PackConfig, *, layout: str, ring_degree: int, ulysses_degree: int) -> None:
    """Checks that every sample holds what a rank of this split needs.

    That slices divide among the ranks of every CP size needs no check: no other configuration is legal.

    Raises:
        ReaderError: the dataset was not packed for it; names what it was packed for.
    """
    cp_size = ulysses_degree * ring_degree
    for what, value, planned, key in (
        ("layout", layout, config.layouts, "layouts"),
        ("ring_degree", ring_degree, config.ring_degrees, "ring_degrees"),
        ("ulysses_degree * ring_degree", cp_size, config.cp_sizes, "cp_sizes"),
    ):
        if value not in planned:
            raise ReaderError(
                f"{what} is {value!r}; the dataset was packed for {', '.join(map(str, planned))}: "
                f"take one of these, or pack with {value!r} among {key}"
            )
