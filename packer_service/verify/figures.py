"""What follows from a pack's mask: by the sparse functions that packing uses, or independently of them.

The sparse functions check every pack quickly. Since the writer calls the same ones, a bug in them would pass here as it
passed there; :class:`IndependentFigures`, a few times slower, is what finds it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

from preshard.packer_service.layout.area import attention_area
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import measure_layout
from preshard.packer_service.layout.needs import key_blocks_needed
from preshard.packer_service.layout.tiles import whole_tiles
from preshard.packer_service.verify.independent.attention import LayoutLoads, layout_loads, whole_mask
from preshard.schemas.layout import TokenLayout
from preshard.schemas.sequence import MaskArrays


class MaskFigures(Protocol):
    """Figures of one pack's mask."""

    @property
    def whole(self) -> tuple[int, int]:
        """Allowed pairs of the mask, and its tiles in natural order."""

    def of_layout(self, layout: TokenLayout) -> LayoutLoads:
        """Loads and needs of a layout that is a partition into equal slices."""


class SparseFigures:
    """By the functions that packing uses."""

    def __init__(self, mask: MaskArrays) -> None:
        self._index = MaskIndex.of(mask)

    @cached_property
    def whole(self) -> tuple[int, int]:
        return attention_area(self._index), whole_tiles(self._index)

    def of_layout(self, layout: TokenLayout) -> LayoutLoads:
        measures = measure_layout(self._index, layout)
        return LayoutLoads(
            attention=measures.area.tolist(),
            tiles=measures.tiles.sum(axis=1).tolist(),
            ring_steps=measures.ring_steps.tolist(),
            keys_fetched=measures.keys_fetched.tolist(),
            needs=key_blocks_needed(self._index, layout.runs, layout.ring_degree, layout.block_size),
        )


class IndependentFigures:
    """By :mod:`preshard.packer_service.verify.independent`."""

    def __init__(self, mask: MaskArrays) -> None:
        self._mask = mask

    @cached_property
    def whole(self) -> tuple[int, int]:
        return whole_mask(self._mask)

    def of_layout(self, layout: TokenLayout) -> LayoutLoads:
        return layout_loads(self._mask, layout.runs, layout.ring_degree, layout.block_size)
