"""All token layouts of one pack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Int32, Int64

from preshard.packer_service.layout.blocks import WeighedMap, block_map, sum_loads
from preshard.packer_service.layout.deals import round_to_blocks
from preshard.packer_service.layout.mask import MaskIndex, WeighedMask, full_and_window, weigh_masks
from preshard.packer_service.layout.needs import key_blocks_needed
from preshard.packer_service.layout.schemes import SEARCHED
from preshard.packer_service.layout.tiles import tiles_by_rank
from preshard.schemas.errors import LayoutError
from preshard.schemas.layout import BLOCK_SCHEMES, SCHEMES, TILE, TokenLayout, layout_name
from preshard.schemas.manifest import LayerMasks
from preshard.schemas.schemes import DEFINED, define_runs, merge_adjacent, zigzag_runs
from preshard.schemas.sections import nearest_multiples
from preshard.schemas.sequence import MaskArrays


def runs_from_owners(owners: Int32[np.ndarray, "blocks"], block_size: int) -> Int32[np.ndarray, "runs 3"]:
    """The layout in which block b of ``block_size`` tokens is on rank ``owners[b]``, in natural order on each rank."""
    blocks = np.argsort(owners, kind="stable").astype(np.int64)
    sizes = np.full(len(blocks), block_size, np.int64)
    return merge_adjacent(np.stack([owners[blocks].astype(np.int64), blocks * block_size, sizes], axis=1))


def check_request(*, seq_len: int, schemes: Sequence[str], ring_degrees: Sequence[int], block_size: int) -> None:
    """Raise unless every scheme exists at every degree.

    Raises:
        LayoutError: a scheme is unknown, a degree or block below 1, or the length does not divide; says what would do.
    """
    if unknown := [scheme for scheme in schemes if scheme not in SCHEMES]:
        raise LayoutError(f"unknown layout scheme {unknown[0]!r}; known are {', '.join(SCHEMES)}")
    if seq_len < 1:
        raise LayoutError("an empty sequence has no layout; give at least one token")
    if block_size < 1:
        raise LayoutError(f"block_size {block_size} is below 1; 128 fits the usual attention kernels")
    for degree in ring_degrees:
        if degree < 1:
            raise LayoutError(f"ring degree {degree} is below 1; give 1 for no ring")
        for scheme in schemes:
            step = block_size * degree if scheme in BLOCK_SCHEMES else 2 * degree if scheme == "zigzag" else degree
            if seq_len % step:
                raise LayoutError(
                    f"{scheme} at ring degree {degree} needs a seq_len that is a multiple of {step}; {seq_len} is not, "
                    f"nearest that are: {nearest_multiples(seq_len, step)}"
                )


def solve_layouts(
    mask: MaskArrays | MaskIndex,
    *,
    segment_edges: Int64[np.ndarray, "segments_plus_1"],
    schemes: Sequence[str],
    ring_degrees: Sequence[int],
    block_size: int = 128,
    known: Mapping[str, TokenLayout] | None = None,
    layers: LayerMasks | None = None,
) -> list[TokenLayout]:
    """Layouts of one pack for each scheme and ring degree asked, in the order of ``SCHEMES``, then by degree.

    Args:
        mask: the pack's mask or its index.
        segment_edges: see :func:`preshard.schemas.layout.segment_edges`; read by zigzag alone.
        schemes: names from ``SCHEMES``.
        ring_degrees: each at least 1.
        block_size: tokens of a block of the balanced schemes and of the stored needs.
        known: layouts of this very mask, segments and block size by name, which are not searched for again.
        layers: the model's layers, where some have a window that is shorter than packs. Balanced layouts are then those
            of the sum of both masks' paths, and layouts hold the needs of both.

    Raises:
        LayoutError: as of :func:`check_request`.
    """
    index = MaskIndex.of(mask)
    check_request(seq_len=index.seq_len, schemes=schemes, ring_degrees=ring_degrees, block_size=block_size)
    full, window = full_and_window(index, layers)
    solver = _Solver(weigh_masks(index, layers), np.asarray(segment_edges, np.int64), block_size)
    layouts = []
    for scheme in (s for s in SCHEMES if s in schemes):
        for degree in sorted(set(ring_degrees)):
            found = known.get(layout_name(scheme, degree)) if known else None
            if found is not None:
                layouts.append(found)
                continue
            runs = solver.runs(scheme, degree)
            layouts.append(
                TokenLayout(
                    scheme=scheme,
                    ring_degree=degree,
                    block_size=block_size,
                    runs=runs,
                    needs=key_blocks_needed(full, runs, degree, block_size),
                    window_needs=None if window is None else key_blocks_needed(window, runs, degree, block_size),
                )
            )
    return layouts


class _Solver:
    """State that layouts of a pack share: block maps, and the layouts that must not be better, with their tiles."""

    def __init__(
        self, masks: Sequence[WeighedMask], edges: Int64[np.ndarray, "segments_plus_1"], block_size: int
    ) -> None:
        self._masks, self._edges, self._block_size = masks, edges, block_size
        self._seq_len = masks[0].mask.seq_len
        self._maps: dict[int, list[WeighedMap]] = {}
        self._rivals: dict[int, tuple[list[np.ndarray], list[list[np.ndarray]]]] = {}

    def runs(self, scheme: str, degree: int) -> Int32[np.ndarray, "runs 3"]:
        if scheme in DEFINED:
            return define_runs(scheme, self._edges, degree)
        search, unit = SEARCHED[scheme], self._unit(degree)
        deals, tiles = self._rivals_of(degree)
        at_most = min((self._path(search.path, each) for each in tiles), default=None)
        owners = search.deal(self._weighed(unit), degree, rivals=deals, at_most=at_most)
        return runs_from_owners(owners, unit)

    def _unit(self, degree: int) -> int:
        """Tokens dealt together: whole kernel tiles where the blocks are smaller and the length allows it."""
        size = self._block_size
        whole_tiles = TILE % size == 0 and self._seq_len % (TILE * degree) == 0
        return TILE if whole_tiles else size

    def _path(self, path: Callable[[np.ndarray], int], tiles: Sequence[np.ndarray]) -> int:
        """The sum of the masks' paths, each times its weight."""
        return sum(each.weight * path(of_mask) for each, of_mask in zip(self._masks, tiles, strict=True))

    def _weighed(self, unit: int) -> list[WeighedMap]:
        if unit not in self._maps:
            self._maps[unit] = [WeighedMap(block_map(each.mask, unit), each.weight) for each in self._masks]
        return self._maps[unit]

    def _rivals_of(self, degree: int) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
        """Head-tail and zigzag, where the lengths allow either: as deals of whole blocks, and their tiles by rank, of
        each mask.
        """
        if degree not in self._rivals:
            seq_len, parts, unit = self._seq_len, 2 * degree, self._unit(degree)
            rivals = [zigzag_runs(np.array([0, seq_len]), degree)] if seq_len % parts == 0 else []
            rivals += [] if (np.diff(self._edges) % parts).any() else [zigzag_runs(self._edges, degree)]
            deals = [round_to_blocks(rival, unit, sum_loads(self._weighed(unit)), degree) for rival in rivals]
            tiles = [[tiles_by_rank(each.mask, runs, degree) for each in self._masks] for runs in rivals]
            self._rivals[degree] = deals, tiles
        return self._rivals[degree]
