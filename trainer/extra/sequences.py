"""Sequences of a pack, for kernels of variable length: whether causal attention inside them is the pack's mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32, Int64

from preshard.schemas.sequence import CAUSAL_ONLY, PADDING_DOC, MaskArrays


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """The sequences of a pack in natural order: documents (of those without a shared prefix the branches), and the
    padding between and after them.

    Attributes:
        edges: sequence i is the tokens ``edges[i]:edges[i + 1]``.
        not_causal: why the mask is not plain causal attention inside these sequences; empty where it is.
    """

    edges: Int32[np.ndarray, "sequences_plus_1"]
    not_causal: str

    @property
    def longest(self) -> int:
        return int(np.diff(self.edges).max(initial=0))


def find_sequences(mask: MaskArrays) -> Sequences:
    """Cuts a pack where the document changes, or the branch of a document without a shared prefix, and tells whether
    causal attention inside the parts is its mask.

    It is if each document is one range of tokens, no token sees a later one of its group, and no token fails to see an
    earlier one of another branch. Ids of branches and groups that have no such effect do no harm.
    """
    doc, branch = mask.doc_ids, mask.branch_ids
    other = doc[1:] != doc[:-1]
    starts = _edges(other, len(doc))
    has_prefix = np.repeat(np.logical_or.reduceat(branch == 0, starts[:-1]), np.diff(starts))
    edges = _edges(other | (~has_prefix[1:] & (branch[1:] != branch[:-1])), len(doc)).astype(np.int32)
    documents = doc[starts[:-1]]
    documents = documents[documents != PADDING_DOC]
    reason = ""
    if _repeats(documents[None]):
        reason = "a document lies in several ranges of tokens"
    elif _hides_earlier_tokens(mask, has_prefix):
        reason = "some documents have branches (annotations), which do not see each other"
    elif _sees_later_tokens(mask):
        reason = "tokens of a group (those of an image) see each other in both directions"
    return Sequences(edges=edges, not_causal=reason)


def _hides_earlier_tokens(mask: MaskArrays, has_prefix: Bool[np.ndarray, "seq"]) -> bool:
    """Whether a token does not see all earlier ones of its document, or of its branch if there is no shared prefix.

    Branch 0 and then one other hides nothing. Nor do branches that are each one range, where no token is of branch 0.
    """
    doc, branch = mask.doc_ids, mask.branch_ids
    heads = _edges((doc[1:] != doc[:-1]) | (branch[1:] != branch[:-1]), len(doc))[:-1]
    doc, branch, has_prefix = doc[heads], branch[heads], has_prefix[heads]
    same = (doc[1:] == doc[:-1]) & (doc[1:] != PADDING_DOC)
    parted = np.stack([doc, branch])[:, ~has_prefix & (doc != PADDING_DOC)]
    return _repeats(parted) or bool((same & has_prefix[1:] & (branch[:-1] != 0)).any())


def _sees_later_tokens(mask: MaskArrays) -> bool:
    """Whether two tokens of a document and a branch are of one group."""
    grouped = np.flatnonzero((mask.group_ids != CAUSAL_ONLY) & (mask.doc_ids != PADDING_DOC))
    members = np.stack([mask.doc_ids[grouped], mask.branch_ids[grouped], mask.group_ids[grouped]])
    if (members[:, 1:] == members[:, :-1]).all(axis=0).any():  # the usual case, found without sorting
        return True
    return _repeats(members)


def _repeats(columns: Int32[np.ndarray, "rows columns"]) -> bool:
    """Whether two columns are equal. ``np.unique`` would import masked arrays, for 12 ms of each process."""
    ordered = columns[:, np.lexsort(columns)]
    return bool((ordered[:, 1:] == ordered[:, :-1]).all(axis=0).any())


def _edges(changes: Bool[np.ndarray, "seq_minus_1"], seq_len: int) -> Int64[np.ndarray, "parts_plus_1"]:
    return np.concatenate([[0], np.flatnonzero(changes) + 1, [seq_len]])
