"""All token layouts of one pack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32, Int64

from packer_service.layout.contiguous import contiguous_runs
from packer_service.layout.mask import MaskIndex
from packer_service.layout.needs import key_blocks_needed
from packer_service.layout.runs import runs_from_owners
from packer_service.layout.zigzag import zigzag_runs
from schemas.errors import LayoutError
from schemas.layout import BLOCK_SCHEMES, SCHEMES, TokenLayout
from schemas.sequence import MaskArrays


def nearest_multiples(value: int, step: int) -> str:
    """The multiples of ``step`` next to ``value``, for a message."""
    below, above = value // step * step, -(-value // step) * step
    return f"{below} or {above}" if below else f"{above}"


def check_request(*, seq_len: int, schemes: Sequence[str], ring_degrees: Sequence[int], block_size: int) -> None:
    """Raise unless every scheme exists at every degree.

    Raises:
        LayoutError: unknown scheme, degree or block below 1, or a length that does not divide; says what would do.
    """
    if unknown := [scheme for scheme in schemes if scheme not in SCHEMES]:
        raise LayoutError(f"unknown layout scheme {unknown[0]!r}; known are {', '.join(SCHEMES)}")
    if block_size < 1:
        raise LayoutError(f"block_size {block_size} is below 1; 128 fits the usual attention kernels")
    for degree in ring_degrees:
        if degree < 1:
            raise LayoutError(f"ring degree {degree} is below 1; the least is 1, which is no ring")
        for scheme in schemes:
            step = block_size * degree if scheme in BLOCK_SCHEMES else 2 * degree if scheme == "zigzag" else degree
            if seq_len % step:
                raise LayoutError(
                    f"{scheme} at ring degree {degree} divides seq_len into multiples of {step} tokens;"
                    f" {seq_len} is none, {nearest_multiples(seq_len, step)} would do"
                )


def solve_layouts(
    mask: MaskArrays | MaskIndex,
    *,
    segment_edges: Int64[np.ndarray, "segments_plus_1"],
    schemes: Sequence[str],
    ring_degrees: Sequence[int],
    block_size: int = 128,
) -> list[TokenLayout]:
    """Layouts of one pack for each scheme and ring degree asked, in the order of ``SCHEMES``, then by degree.

    Args:
        mask: the pack's mask or its index.
        segment_edges: see :func:`packer_service.layout.zigzag.segment_edges`; read by zigzag alone.
        schemes: names from ``SCHEMES``.
        ring_degrees: each at least 1.
        block_size: tokens of a block of the balanced schemes and of the stored needs.

    Raises:
        LayoutError: a scheme or degree that cannot exist, or a length that does not divide; says what would do.
    """
    index = MaskIndex.of(mask)
    check_request(seq_len=index.seq_len, schemes=schemes, ring_degrees=ring_degrees, block_size=block_size)
    layouts = []
    for scheme in (s for s in SCHEMES if s in schemes):
        for degree in sorted(set(ring_degrees)):
            runs = _runs(scheme, index, segment_edges, degree, block_size)
            needs = key_blocks_needed(index, runs, degree, block_size)
            layouts.append(TokenLayout(scheme=scheme, ring_degree=degree, runs=runs, needs=needs))
    return layouts


def _runs(
    scheme: str, index: MaskIndex, edges: Int64[np.ndarray, "segments_plus_1"], degree: int, block_size: int
) -> Int32[np.ndarray, "runs 3"]:
    if scheme == "contiguous":
        return contiguous_runs(index.seq_len, degree)
    if scheme == "zigzag":
        return zigzag_runs(edges, degree)
    blocks = index.seq_len // block_size
    return runs_from_owners(np.arange(blocks, dtype=np.int32) % degree, block_size)
