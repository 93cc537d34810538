"""The index of a mask."""

from __future__ import annotations

import numpy as np

from preshard.packer_service.layout.mask import MaskIndex
from preshard.schemas.sequence import MaskArrays


def test_classes_and_groups_written_out():
    # Fails when the same group id in two branches or documents becomes one group, or when a branch's root is missed.
    columns = np.array([
        # document, branch, group
        [0, 0, 1], [0, 0, 1], [0, 1, 1], [0, 2, -1], [1, 2, 1], [-1, 0, 1], [0, 0, -1], [-1, -1, -1],
    ], np.int32).T  # fmt: skip
    doc, branch, group = (np.ascontiguousarray(c) for c in columns)
    index = MaskIndex.of(MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=group))
    assert index.run_edges.tolist() == [0, 2, 3, 4, 5, 6, 7, 8]
    assert index.run_class.tolist() == [0, 1, 2, 3, -1, 0, -1]
    assert index.class_root.tolist() == [-1, 0, 0, -1]
    assert index.run_group.tolist() == [0, 1, -1, 2, -1, -1, -1]
    assert index.group_root.tolist() == [-1, 0, -1]
    assert MaskIndex.of(index) is index


def test_a_sequence_of_one_run_has_one_entry():
    # Fails when the index grows with the tokens: a million tokens of padding and one document are two runs.
    doc = np.repeat(np.array([3, -1], np.int32), 1 << 19)
    index = MaskIndex.of(MaskArrays(doc_ids=doc, branch_ids=np.zeros_like(doc), group_ids=np.full_like(doc, -1)))
    assert (len(index.run_class), len(index.class_root), len(index.group_root)) == (2, 1, 0)


def test_branches_at_the_ends_of_their_type_stay_in_their_document():
    # Fails when shifted branches reach into the bits of the document, so that another document's branch is the root.
    doc = np.array([0, 1, 1, 1], np.int32)
    branch = np.array([0, -(2**31), 0, 2**31 - 1], np.int32)
    index = MaskIndex.of(MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=np.full(4, -1, np.int32)))
    assert index.run_class.tolist() == [0, 1, 2, 3]
    assert index.class_root.tolist() == [-1, 2, -1, 2]
