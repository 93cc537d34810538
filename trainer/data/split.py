"""Whether a dataset was planned for a split of its packs over ranks."""

from __future__ import annotations

from schemas.config import PackConfig
from schemas.errors import ReaderError


def check_split(config: PackConfig, *, layout: str, ring_degree: int, ulysses_degree: int) -> None:
    """Whether every sample holds what a rank of this split needs.

    A configuration is legal only where every slice divides among the ranks of every CP size, so that needs no check.

    Raises:
        ReaderError: it does not; names what there is.
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
