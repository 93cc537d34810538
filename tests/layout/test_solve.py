"""All layouts of a pack, and the errors of impossible requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import measure_layout
from preshard.packer_service.layout.solve import solve_layouts
from preshard.schemas.errors import LayoutError
from preshard.schemas.layout import SCHEMES, TokenLayout, check_partition, slice_positions
from preshard.schemas.mask import dense_mask
from preshard.schemas.schemes import zigzag_runs
from preshard.schemas.sequence import MaskArrays


def pack(seq_len: int, seed: int) -> tuple[MaskArrays, np.ndarray]:
    """Documents of random length aligned to 32 tokens, some with image groups, some with annotations, and a tail."""
    rng = np.random.default_rng(seed)
    doc, branch = np.full(seq_len, -1, np.int32), np.zeros(seq_len, np.int32)
    group, edges = np.full(seq_len, -1, np.int32), [0]
    while True:
        length = int(rng.lognormal(6.5, 1.2)) + 1
        aligned = -(-length // 32) * 32
        if edges[-1] + aligned > seq_len:
            break
        here = slice(edges[-1], edges[-1] + length)
        doc[here] = len(edges)
        kind, within = len(edges) % 3, np.arange(length)
        if kind == 1:
            branch[here] = np.maximum(0, within - length // 2) // 40
        if kind == 2:
            group[here] = np.where(within % 85 < 4, -1, within // 85)
        edges.append(edges[-1] + aligned)
    return MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=group), np.unique([*edges, seq_len])


@settings(max_examples=6)
@given(seed=st.integers(0, 2**16), block=st.sampled_from([64, 128, 192, 256]))
def test_every_layout_is_a_partition_into_equal_slices(seed, block):
    # Fails when a scheme loses or repeats a token, or when needs are those of another layout.
    mask, edges = pack(6144, seed)
    layouts = solve_layouts(mask, segment_edges=edges, schemes=SCHEMES, ring_degrees=(4, 1, 2), block_size=block)
    assert [(x.scheme, x.ring_degree) for x in layouts] == [(s, r) for s in SCHEMES for r in (1, 2, 4)]
    dense = dense_mask(mask)
    for layout in layouts:
        check_partition(layout, 6144)
        positions = [slice_positions(layout.runs, rank) for rank in range(layout.ring_degree)]
        assert sorted(np.concatenate(positions).tolist()) == list(range(6144))
        seen = np.stack([dense[p].any(axis=0) for p in positions])
        assert layout.needs.tolist() == seen.reshape(len(seen), -1, block).any(axis=2).tolist()
        if layout.scheme.startswith("balanced"):
            assert not (layout.runs[:, 1:] % block).any()


def documents(*lengths: int) -> tuple[MaskArrays, np.ndarray]:
    """Causal documents, of which zigzag is an exact deal."""
    doc = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return MaskArrays(doc_ids=doc, branch_ids=np.zeros_like(doc), group_ids=doc * 0 - 1), np.cumsum([0, *lengths])


@pytest.mark.parametrize(
    ("mask", "edges"),
    [*(pack(seq_len, seed) for seq_len in (8192, 12288) for seed in range(6)), documents(2048, 6144)],
)
def test_balanced_is_never_worse_than_zigzag_or_head_tail_on_its_own_measure(mask, edges):
    # Fails when the rivals' paths do not bound the search, whose own start may be worse on packs like these.
    index = MaskIndex.of(mask)
    for degree in (2, 4, 8):
        ring, gather = solve_layouts(
            index, segment_edges=edges, schemes=("balanced_ring", "balanced_gather"), ring_degrees=(degree,)
        )
        for segments in (edges, edges[[0, -1]]):
            runs = zigzag_runs(segments, degree)
            needs = np.zeros((degree, 1), bool)
            rival = TokenLayout(scheme="zigzag", ring_degree=degree, block_size=128, runs=runs, needs=needs)
            usual = measure_layout(index, rival)
            assert measure_layout(index, ring).ring_path <= usual.ring_path
            assert measure_layout(index, gather).gather_path <= usual.gather_path


def test_the_same_pack_gives_the_same_layouts():
    # Fails when a search draws from the clock or a global generator.
    mask, edges = pack(4096, 1)
    first, second = (solve_layouts(mask, segment_edges=edges, schemes=SCHEMES, ring_degrees=(2, 4)) for _ in range(2))
    assert [x.runs.tolist() for x in first] == [x.runs.tolist() for x in second]
    alone = solve_layouts(mask, segment_edges=edges, schemes=("balanced_gather",), ring_degrees=(4,))
    assert alone[0].runs.tolist() == first[-1].runs.tolist()


@pytest.mark.parametrize(
    ("scheme", "degree", "step"),
    [("contiguous", 3, 3), ("zigzag", 3, 6), ("zigzag", 4, 8), ("balanced_ring", 3, 12), ("balanced_gather", 2, 8)],
)
def test_every_length_that_divides_is_solved_and_no_other(scheme, degree, step):
    # Fails when a scheme asks for a longer multiple than it cuts, or for a shorter one.
    for seq_len in range(1, 3 * step + 1):
        zero = np.zeros(seq_len, np.int32)
        mask = MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1)
        asked = {"schemes": (scheme,), "ring_degrees": (degree,), "block_size": 4}
        if seq_len % step:
            with pytest.raises(LayoutError, match=f"multiple of {step}"):
                solve_layouts(mask, segment_edges=np.array([0, seq_len]), **asked)
        else:
            [layout] = solve_layouts(mask, segment_edges=np.array([0, seq_len]), **asked)
            check_partition(layout, seq_len)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ring_degrees": (0,)}, "ring degree 0 is below 1"),
        ({"ring_degrees": (-2,)}, "ring degree -2 is below 1"),
        (
            {"ring_degrees": (3,), "schemes": ("contiguous",)},
            "multiple of 3; 1024 is not, nearest that are: 1023 and 1026",
        ),
        ({"ring_degrees": (3,), "schemes": ("zigzag",)}, "1024 is not, nearest that are: 1020 and 1026"),
        ({"ring_degrees": (16,)}, "multiple of 2048; 1024 is not, nearest that are: 2048"),
        ({"block_size": 100}, "multiple of 200; 1024 is not, nearest that are: 1000 and 1200"),
        ({"block_size": 0}, "block_size 0 is below 1"),
        ({"schemes": ("striped",)}, "'striped'; known are contiguous, zigzag"),
    ],
)
def test_impossible_requests_say_what_would_do(changed, said):
    # Fails when a remainder is dropped, or the message leaves the user to find the length.
    zero = np.zeros(1024, np.int32)
    mask = MaskArrays(doc_ids=zero, branch_ids=zero, group_ids=zero - 1)
    asked = {"schemes": ("balanced_ring",), "ring_degrees": (2,), "block_size": 128} | changed
    with pytest.raises(LayoutError, match=said):
        solve_layouts(mask, segment_edges=np.array([0, 1024]), **asked)
