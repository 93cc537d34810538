"""The arrays of a pack, from documents made by hand: numbering through the pack, groups, padding."""

from __future__ import annotations

import numpy as np
import pytest
from made_units import made_units

from preshard.packer_service.packs.pack import build_sequence
from preshard.packer_service.packs.rendered import RenderedDocument, branch_positions, groups_of_units, shifted_labels
from preshard.schemas.errors import PlanError

PAD = 0
X = -100  # no label


def document(length: int, units: list[tuple[int, int]], bidirectional: str = "within_image") -> RenderedDocument:
    """Tokens 1, 2, 3, ... with loss outside of units, which are half-open ranges of pooled tokens, one crop each."""
    tokens = np.arange(1, length + 1, dtype=np.int32)
    unit_ids = np.full(length, -1, np.int32)
    for number, (start, end) in enumerate(units):
        unit_ids[start:end] = number
    branch_ids = np.zeros(length, np.int32)
    labels = shifted_labels(tokens, unit_ids < 0, branch_ids)
    return RenderedDocument(
        tokens=tokens,
        labels=labels,
        loss_weights=(labels != X).astype(np.float32),
        position_ids=branch_positions(branch_ids)[None],
        branch_ids=branch_ids,
        group_ids=groups_of_units(unit_ids, bidirectional),
        unit_ids=unit_ids,
        units=made_units(units),
        n_shared=0,
        n_branches=0,
    )


TEXT = document(4, [])
IMAGE = document(15, [(2, 4)])


def test_a_pack_numbers_documents_groups_and_pooled_rows_throughout() -> None:
    """Fails when a group or a pooled row of one document is given to another, or padding is not inert."""
    pack = build_sequence([IMAGE, TEXT, IMAGE], [0, 16, 24], seq_len=40, pad_id=PAD)
    np.testing.assert_array_equal(pack.doc_ids, [*[0] * 15, -1, *[1] * 4, *[-1] * 4, *[2] * 15, -1])
    np.testing.assert_array_equal(np.flatnonzero(pack.pool_ids >= 0), [2, 3, 26, 27])
    np.testing.assert_array_equal(pack.pool_ids[[2, 3, 26, 27]], [0, 1, 2, 3])
    np.testing.assert_array_equal(pack.group_ids[[2, 3, 26, 27]], [0, 0, 1, 1])
    assert (pack.group_ids >= 0).sum() == 4
    np.testing.assert_array_equal(pack.labels[:16], [*IMAGE.labels, X])
    np.testing.assert_array_equal(pack.position_ids[0, 14:22], [14, 0, 0, 1, 2, 3, 0, 0])
    padding = pack.doc_ids < 0
    for array, inert in (
        (pack.tokens, PAD),
        (pack.labels, X),
        (pack.loss_weights, 0),
        (pack.branch_ids, 0),
        (pack.group_ids, -1),
        (pack.pool_ids, -1),
    ):
        assert (array[padding] == inert).all()


@pytest.mark.parametrize(
    ("bidirectional", "groups"),
    [("within_image", [0, 0, 1, 1, 2, 2]), ("image_tokens", [0, 0, 0, 0, 1, 1]), ("none", [-1] * 6)],
)
def test_groups_follow_the_bidirectional_rule(bidirectional: str, groups: list[int]) -> None:
    """Fails when frames of a video see each other where only tokens within an image may, or vice versa."""
    documents = [document(26, [(5, 7), (12, 14)], bidirectional), document(15, [(2, 4)], bidirectional)]
    pack = build_sequence(documents, [0, 26], seq_len=41, pad_id=PAD)
    np.testing.assert_array_equal(pack.group_ids[pack.pool_ids >= 0], groups)


def test_overlapping_documents_are_refused() -> None:
    """Fails when a wrong plan writes one document over another."""
    with pytest.raises(PlanError, match="document 1 lies at 3:7"):
        build_sequence([TEXT, TEXT], [0, 3], seq_len=8, pad_id=PAD)
    with pytest.raises(PlanError, match="free is 0:3"):
        build_sequence([TEXT], [0], seq_len=3, pad_id=PAD)
