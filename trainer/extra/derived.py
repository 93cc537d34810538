"""Layouts at degrees, and image boundaries of sizes, that a dataset was not packed for: derived while it is read."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from preshard.schemas.boundaries import image_edges
from preshard.schemas.errors import (
    LayoutError,
    LayoutsInvalid,
    ReaderError,
)
from preshard.schemas.header import SampleHeader
from preshard.schemas.layout import (
    BLOCK_SCHEMES,
    TokenLayout,
    layout_name,
)
from preshard.schemas.mask import needed_blocks
from preshard.schemas.members import HEAD
from preshard.schemas.read_config import ReadConfig
from preshard.schemas.schemes import alignment_of, define_runs
from preshard.trainer.data.split import Split, listed, padded_seq_edges


def check_derivable(config: ReadConfig, layout: str, ring_degree: int) -> None:
    """Checks that a layout has a definition, and that the dataset's lengths divide by it.

    Raises:
        ReaderError: it has not, or they do not; names what would do.
    """
    if layout in BLOCK_SCHEMES:
        if layout not in config.layouts:
            raise ReaderError(
                f"layout is {layout!r}, and the dataset was packed with {listed(config.layouts)}: take one of these, "
                f"or pack with {layout} among layouts"
            )
        raise ReaderError(
            f"ring_degree is {ring_degree}, and {layout} was packed for {listed(config.ring_degrees)}: take one of "
            f"these, or contiguous, which is derived at any degree, or pack with {ring_degree} among ring_degrees"
        )
    if config.seq_len % ring_degree:
        raise ReaderError(
            f"ring_degree is {ring_degree}, which does not divide the dataset's seq_len {config.seq_len}; it was "
            f"packed for {listed(config.ring_degrees)}: take one of these, or another divisor"
        )
    alignment = alignment_of(config.layouts, config.ring_degrees)
    if layout == "zigzag" and alignment % (2 * ring_degree):
        raise ReaderError(
            f"ring_degree is {ring_degree}, at which zigzag cuts each document into {2 * ring_degree} equal chunks, "
            f"and the dataset's documents begin at multiples of {alignment}: take layout contiguous, or pack "
            f"with zigzag among layouts and {ring_degree} among ring_degrees"
        )


def derive_layout(header: SampleHeader, split: Split, config: ReadConfig, where: str) -> TokenLayout:
    """The layout that a scheme's definition gives, with the blocks of keys that its ranks see.

    Raises:
        LayoutsInvalid: spans overlap, or are of lengths that the definition cannot divide.
    """
    try:
        runs = define_runs(split.scheme, padded_seq_edges(header.head, config.seq_len, where), split.ring_degree)
    except LayoutError as error:
        raise LayoutsInvalid(f"{where}.{HEAD}", f"its documents give no layout {split.layout}: {error}") from None
    return TokenLayout(
        scheme=split.scheme,
        ring_degree=split.ring_degree,
        block_size=config.block_size,
        runs=runs,
        needs=needed_blocks(header.sequence.mask, runs, split.ring_degree, config.block_size),
    )


def advise(config: ReadConfig, layout: str, ring_degree: int, cp_size: int) -> str:
    """Gains of packing for a split, in one line."""
    advice = []
    if layout not in config.layouts or ring_degree not in config.ring_degrees:
        balanced = [scheme for scheme in config.layouts if scheme in BLOCK_SCHEMES] or BLOCK_SCHEMES
        advice.append(
            f"{layout_name(layout, ring_degree)} is not stored, so it is derived for every pack; packing with "
            f"{ring_degree} among ring_degrees would add {' and '.join(balanced)}, whose slowest rank computes less"
        )
    if cp_size not in config.cp_sizes:
        advice.append(
            f"image boundaries of cp_size {cp_size} are not stored, so they are derived for every pack; packing with "
            f"{cp_size} among cp_sizes would spare that and show their balance in the report"
        )
    return "; ".join(advice)


def derive_edges(loads: Int64[np.ndarray, "parts"], cp_size: int) -> Int64[np.ndarray, "ranks_plus_1"]:
    """The best boundaries of a size: rank r holds the parts ``edges[r]:edges[r + 1]``."""
    return image_edges(loads, cp_size)
