"""Ways of the searches on packs of a few blocks, pinned: what finds an equal layout by another way shows at once."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from preshard.packer_service.layout.blocks import block_map
from preshard.packer_service.layout.deals import consecutive, head_tail, round_to_blocks
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.schemes.balanced_gather import gather_owners
from preshard.packer_service.layout.schemes.balanced_ring import ring_owners
from preshard.packer_service.layout.solve import solve_layouts
from preshard.schemas.layout import SCHEMES
from preshard.schemas.schemes import zigzag_runs
from preshard.schemas.sequence import MaskArrays

TILE = 4


def pack(blocks: int, salt: int) -> MaskArrays:
    """Documents of a few blocks: causal, annotated, or of image groups; then padding."""
    rows = []
    for number in range(blocks):
        length = 1 + (number * 7 + salt * 5) % 23
        branches = [0] * (length // 2) + [1 + at // 5 for at in range(length - length // 2)]
        groups = [at // 6 if number % 3 == 2 else -1 for at in range(length)]
        causal = number % 3 != 1
        rows += [(number, 0 if causal else branch, group) for branch, group in zip(branches, groups, strict=True)]
    rows = [*rows[: blocks * TILE - 3], (-1, 0, -1), (-1, 0, -1), (-1, 0, -1)]
    doc, branch, group = np.array(rows, np.int32).T.copy()
    return MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=group)


def digest(found: list[np.ndarray]) -> str:
    return hashlib.sha256(np.concatenate(found).astype(np.int64).tobytes()).hexdigest()[:16]


def searched(kind: str) -> list[np.ndarray]:
    found = []
    for salt, (each, degree) in enumerate([(4, 2), (4, 4), (6, 3), (3, 8), (8, 4)]):
        blocks = block_map(MaskIndex.of(pack(each * degree, salt)), TILE, tile=TILE)
        deals = [head_tail(each * degree, degree), consecutive(each * degree, degree)]
        floor = -(-int(blocks.loads.sum()) // degree)
        if kind == "gather":
            found.append(gather_owners(blocks, degree, tries=120))
            found.append(gather_owners(blocks, degree, tries=60, rivals=deals, at_most=floor))
        if kind == "ring":
            found.append(ring_owners(blocks, degree, tries=150, rivals=deals))
            found.append(ring_owners(blocks, degree, tries=60, at_most=floor))
        if kind == "rounded":
            edges = np.array([0, 2 * degree * (each - 1), each * degree * TILE])
            found.append(round_to_blocks(zigzag_runs(edges, degree), TILE, blocks.loads, degree))
    return found


def solved() -> list[np.ndarray]:
    zero = np.zeros(1024, np.int32)
    mask = MaskArrays(doc_ids=np.arange(1024, dtype=np.int32) // 300, branch_ids=zero, group_ids=zero - 1)
    edges = np.array([0, 300, 600, 900, 1024])
    layouts = solve_layouts(mask, segment_edges=edges, schemes=SCHEMES, ring_degrees=(1, 2), block_size=32)
    return [layout.runs.ravel() for layout in layouts]


PINNED = {
    "gather": "690d0769813de582",
    "ring": "264fc10298860aba",
    "rounded": "4f758f264df1e669",
    "solved": "f26296e33e8f3790",
}


@pytest.mark.parametrize("kind", PINNED)
def test_a_search_takes_the_same_way(kind: str) -> None:
    # Fails when an exchange is judged by another cost, or a random number is drawn in another way. When that is meant,
    # raise the version as for tests/golden, and write down what this test prints.
    found = digest(solved() if kind == "solved" else searched(kind))
    assert found == PINNED[kind], found
