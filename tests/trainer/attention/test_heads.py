"""Heads that can be dealt to ranks, and how many copies of key heads that takes."""

from __future__ import annotations

import pytest

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.bind import KINDS, check_heads
from preshard.trainer.attention.pieces import list_pieces, repeated_kv_heads


@pytest.mark.parametrize(
    ("kv_heads", "degree", "sent"), [(8, 4, 8), (2, 4, 4), (1, 8, 8), (3, 4, 12), (6, 4, 12), (4, 1, 4)]
)
def test_key_heads_are_copied_no_more_than_needed(kv_heads: int, degree: int, sent: int) -> None:
    # One copy too many is wasted traffic; one too few does not divide.
    assert repeated_kv_heads(kv_heads, degree) == sent


def test_what_divides_is_accepted() -> None:
    for kind in {*KINDS, "hybrid"}:
        check_heads(kind, 8, 2, ulysses_degree=4, ring_degree=2)
    check_heads("ring", 8, 2, ulysses_degree=1, ring_degree=3)
    check_heads("reference", 7, 7, ulysses_degree=1, ring_degree=1)


@pytest.mark.parametrize(
    ("kind", "heads", "kv_heads", "ulysses", "ring", "said"),
    [
        ("none", 8, 2, 1, 1, "attention is 'none'; take one of ulysses, ring, gather"),
        ("reference", 8, 2, 2, 1, "on 2 context-parallel ranks; it runs on 1"),
        ("ring", 8, 3, 1, 1, r"num_kv_heads is 3; it must divide num_heads 8: take one of \[1, 2, 4, 8\]"),
        ("ring", 8, 0, 1, 1, "num_kv_heads is 0"),
        ("gather", 6, 2, 4, 2, r"num_heads 6 over ulysses_degree = 4 ranks.*a degree of \[1, 2, 3, 6\]"),
        ("ulysses", 4, 2, 4, 2, r"over ulysses_degree \* ring_degree = 8 ranks.*, or attention ring, gather or hybrid"),
    ],
)
def test_what_does_not_divide_is_an_error_with_a_remedy(
    kind: str, heads: int, kv_heads: int, ulysses: int, ring: int, said: str
) -> None:
    # Otherwise the first step would end in a collective's shape error, or hang on the other ranks.
    with pytest.raises(ConfigError, match=said):
        check_heads(kind, heads, kv_heads, ulysses_degree=ulysses, ring_degree=ring)


def test_overlap_needs_heads_to_overlap() -> None:
    """Fails when an option has no effect without a word, or the first step finds out that there is one head."""
    check_heads("ulysses", 8, 2, ulysses_degree=4, ring_degree=1, overlap=True)
    check_heads("ulysses", 1, 1, ulysses_degree=1, ring_degree=1, overlap=True)
    check_heads("gather", 8, 4, ulysses_degree=2, ring_degree=2, head_stride=1, overlap=True)
    with pytest.raises(ConfigError, match="--overlap needs attention ulysses or gather, not 'ring'"):
        check_heads("ring", 8, 2, ulysses_degree=1, ring_degree=4, overlap=True)
    with pytest.raises(ConfigError, match="needs keys to gather, and ring is 1: use attention ulysses"):
        check_heads("gather", 8, 2, ulysses_degree=4, ring_degree=1, overlap=True)
    for stride, degree, own in ((2, 2, 2), (0, 4, 1)):
        with pytest.raises(ConfigError, match=f"are {own} on each rank, and --head-stride is {stride}: lower"):
            check_heads("gather", 8, 4, ulysses_degree=degree, ring_degree=2, head_stride=stride, overlap=True)
    with pytest.raises(ConfigError, match="8 heads on 8 ranks are 1 on each: take a Ulysses degree of at most 4"):
        check_heads("ulysses", 8, 2, ulysses_degree=4, ring_degree=2, overlap=True)


@pytest.mark.parametrize(("heads", "kv_heads", "degree"), [(8, 8, 2), (12, 6, 2), (8, 2, 4), (24, 3, 8), (15, 5, 1)])
def test_pieces_are_all_heads_with_the_keys_that_they_read(heads: int, kv_heads: int, degree: int) -> None:
    """Fails when a query head is computed twice, or against another's keys."""
    pieces = list_pieces(heads, kv_heads, degree)
    mine, held = heads // degree, repeated_kv_heads(kv_heads, degree) // degree
    assert [q for piece in pieces for q in range(mine)[piece.queries]] == list(range(mine))
    for piece in pieces:
        reads = {q * held // mine for q in range(mine)[piece.queries]}
        assert reads == set(range(held)[piece.keys])
