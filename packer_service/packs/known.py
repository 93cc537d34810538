"""A pack that was packed before: where the same documents lie as they did, its arrays and layouts are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from preshard.schemas.codec import LAYOUTS, SEQUENCE
from preshard.schemas.layout import TokenLayout
from preshard.schemas.sequence import SEQUENCE_DTYPES, PackedSequence


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownPack:
    """What was written of a pack.

    Attributes:
        sequence: its arrays.
        encoded_sequence: these as they were written.
        segment_edges: see :func:`preshard.schemas.schemes.segment_edges`.
        block_size: of its layouts.
        read_layouts: gives its layouts by name, and these as they were written; nothing where they are damaged.
    """

    sequence: PackedSequence
    encoded_sequence: bytes
    segment_edges: Int64[np.ndarray, "segments_plus_1"]
    block_size: int
    read_layouts: Callable[[], tuple[Mapping[str, TokenLayout], bytes]]

    def has(self, sequence: PackedSequence) -> bool:
        """Whether a pack has these very arrays."""
        return all(np.array_equal(getattr(self.sequence, name), getattr(sequence, name)) for name in SEQUENCE_DTYPES)

    def layouts(
        self, segment_edges: Int64[np.ndarray, "segments_plus_1"], block_size: int
    ) -> tuple[Mapping[str, TokenLayout], bytes]:
        """The layouts of a pack with these arrays, as far as they are known, and all of them as they were written.

        They follow from the mask, the segments and the size of a block, whatever other layouts are asked for.
        """
        if block_size != self.block_size or not np.array_equal(segment_edges, self.segment_edges):
            return {}, b""
        return self.read_layouts()


def encoded_members(
    known: KnownPack, layouts: Mapping[str, TokenLayout], encoded: bytes, asked: list[TokenLayout]
) -> dict[str, bytes]:
    """The members of a pack with known arrays that are as they were written, by their extensions."""
    members = {SEQUENCE: known.encoded_sequence}
    if encoded and [layout.name for layout in asked] == list(layouts):
        members[LAYOUTS] = encoded
    return members
