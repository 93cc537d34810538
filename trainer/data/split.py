"""How a rank's part of a sample comes about: stored by the packer, or derived while reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ReaderError
from preshard.schemas.layout import BLOCK_SCHEMES, SCHEMES, layout_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A split of packs over ranks that a dataset can be read with.

    Attributes:
        scheme: the layout's scheme.
        ring_degree: ranks among which the layout deals the pack.
        cp_size: ranks among which the crops are divided.
        layout_stored: whether every sample holds the layout.
        edges_stored: whether every sample holds the image boundaries.
        advice: what packing for the split would gain, one line; empty where all is stored.
    """

    scheme: str
    ring_degree: int
    cp_size: int
    layout_stored: bool
    edges_stored: bool
    advice: str

    @property
    def layout(self) -> str:
        """Name of the layout, as the samples have it."""
        return layout_name(self.scheme, self.ring_degree)


def plan_split(config: PackConfig, *, layout: str, ring_degree: int, ulysses_degree: int) -> Split:
    """Decides for a split what is read and what is derived.

    Layouts that have a definition (``contiguous``, ``zigzag``) and image boundaries are derived by the packer's own
    functions at degrees that were not planned. Balanced layouts come from a search and exist only where it was made.

    Raises:
        ReaderError: a sample neither holds what the split needs nor lets it be derived; names what would do.
    """
    if layout not in SCHEMES:
        raise ReaderError(f"layout is {layout!r}; the dataset was packed for {_listed(config.layouts)}: take one")
    for name, degree in (("ring_degree", ring_degree), ("ulysses_degree", ulysses_degree)):
        if degree < 1:
            raise ReaderError(f"{name} is {degree}; it must be at least 1")
    cp_size = ulysses_degree * ring_degree
    layout_stored = layout in config.layouts and ring_degree in config.ring_degrees
    if not layout_stored:
        _check_derivable(config, layout, ring_degree)
    if config.seq_len % cp_size:
        raise ReaderError(
            f"ulysses_degree * ring_degree is {cp_size}, which does not divide the dataset's seq_len {config.seq_len}; "
            f"it was packed for {_listed(config.cp_sizes)}: take one of these, or another divisor"
        )
    edges_stored = cp_size in config.cp_sizes
    return Split(
        scheme=layout,
        ring_degree=ring_degree,
        cp_size=cp_size,
        layout_stored=layout_stored,
        edges_stored=edges_stored,
        advice="; ".join(_advice(config, layout, ring_degree, cp_size, layout_stored, edges_stored)),
    )


def _check_derivable(config: PackConfig, layout: str, ring_degree: int) -> None:
    if layout in BLOCK_SCHEMES:
        if layout not in config.layouts:
            raise ReaderError(
                f"layout is {layout!r}, and the dataset was packed with {_listed(config.layouts)}: take one of these, "
                f"or pack with {layout} among layouts"
            )
        raise ReaderError(
            f"ring_degree is {ring_degree}, and {layout} was packed for {_listed(config.ring_degrees)}: take one of "
            f"these, or contiguous, which is derived at any degree, or pack with {ring_degree} among ring_degrees"
        )
    if config.seq_len % ring_degree:
        raise ReaderError(
            f"ring_degree is {ring_degree}, which does not divide the dataset's seq_len {config.seq_len}; it was "
            f"packed for {_listed(config.ring_degrees)}: take one of these, or another divisor"
        )
    if layout == "zigzag" and config.alignment % (2 * ring_degree):
        raise ReaderError(
            f"ring_degree is {ring_degree}, at which zigzag cuts each document into {2 * ring_degree} equal chunks, "
            f"and the dataset's documents begin at multiples of {config.alignment}: take layout contiguous, or pack "
            f"with zigzag among layouts and {ring_degree} among ring_degrees"
        )


def _advice(
    config: PackConfig, layout: str, ring_degree: int, cp_size: int, layout_stored: bool, edges_stored: bool
) -> list[str]:
    found = []
    if not layout_stored:
        balanced = [scheme for scheme in config.layouts if scheme in BLOCK_SCHEMES] or BLOCK_SCHEMES
        found.append(
            f"{layout_name(layout, ring_degree)} is not stored, so it is derived for every pack; packing with "
            f"{ring_degree} among ring_degrees would add {' and '.join(balanced)}, whose slowest rank computes less"
        )
    if not edges_stored:
        found.append(
            f"image boundaries of cp_size {cp_size} are not stored, so they are derived for every pack; packing with "
            f"{cp_size} among cp_sizes would spare that and show their balance in the report"
        )
    return found


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
