"""The token arrays of one packed sequence, the rule of its attention mask, and the blocks of keys that queries see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from jaxtyping import Bool, Float32, Int32

IGNORE_INDEX = -100
"""Label of a token without loss, as in ``torch.nn.functional.cross_entropy``."""

PADDING_DOC = -1
"""``doc_ids`` of a padding token."""

CAUSAL_ONLY = -1
"""``group_ids`` of a token that sees no later token."""

NOT_POOLED = -1
"""``pool_ids`` of a token that no vision feature fills."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskArrays:
    """The three arrays that define the attention mask, in natural order, with one entry per token.

    Query ``q`` may see key ``k`` when ``doc[q] == doc[k] >= 0``, ``branch[k]`` is 0 or ``branch[q]``, and either
    ``k <= q`` or ``group[q] == group[k] >= 0``. A padding token (``doc == -1``) sees nothing and is seen by nothing.
    A layer with a sliding window adds a condition, see :func:`dense_mask`.
    """

    doc_ids: Int32[np.ndarray, "seq"]
    branch_ids: Int32[np.ndarray, "seq"]
    group_ids: Int32[np.ndarray, "seq"]

    @property
    def seq_len(self) -> int:
        return len(self.doc_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSequence:
    """The arrays of ``KEY.sequence.npz``, each of length ``seq_len`` in natural order, positions once for each axis.

    ``columns`` are the configured columns of tokens by their names (:class:`preshard.schemas.columns.TokenColumn`).
    Their values lie where labels do: entry i belongs to the token that follows token i in its document and branch.
    """

    tokens: Int32[np.ndarray, "seq"]
    labels: Int32[np.ndarray, "seq"]
    loss_weights: Float32[np.ndarray, "seq"]
    position_ids: Int32[np.ndarray, "axes seq"]
    doc_ids: Int32[np.ndarray, "seq"]
    branch_ids: Int32[np.ndarray, "seq"]
    group_ids: Int32[np.ndarray, "seq"]
    pool_ids: Int32[np.ndarray, "seq"]
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def seq_len(self) -> int:
        return len(self.tokens)

    @property
    def axes(self) -> int:
        """Axes of the positions: 1, or 3 for time, height and width."""
        return len(self.position_ids)

    @property
    def mask(self) -> MaskArrays:
        return MaskArrays(doc_ids=self.doc_ids, branch_ids=self.branch_ids, group_ids=self.group_ids)


SEQUENCE_DTYPES: dict[str, np.dtype] = {
    f.name: np.dtype(np.float32 if f.name == "loss_weights" else np.int32)
    for f in fields(PackedSequence)
    if f.name != "columns"
}
"""Name and dtype of every array of a packed sequence, in the order in which they are stored; columns follow them."""


def dense_mask(
    mask: MaskArrays,
    queries: np.ndarray | None = None,
    keys: np.ndarray | None = None,
    *,
    window: int | None = None,
) -> Bool[np.ndarray, "queries keys"]:
    """The mask as a matrix, for checks and for short sequences: memory grows with the product of the two sets.

    Args:
        mask: the mask's arrays.
        queries: natural positions of the rows; all positions by default.
        keys: natural positions of the columns; all positions by default.
        window: tokens that a layer with a sliding window sees, the query among them: a key is hidden from it unless
            ``place[q] - place[k] < window``, groups included (see :func:`list_places`). None for the full mask.
    """
    every = np.arange(mask.seq_len)
    q = every if queries is None else np.asarray(queries)
    k = every if keys is None else np.asarray(keys)
    doc_q, doc_k = mask.doc_ids[q][:, None], mask.doc_ids[k][None, :]
    branch_q, branch_k = mask.branch_ids[q][:, None], mask.branch_ids[k][None, :]
    group_q, group_k = mask.group_ids[q][:, None], mask.group_ids[k][None, :]
    same_doc = (doc_q == doc_k) & (doc_q >= 0)
    visible_branch = (branch_k == 0) | (branch_k == branch_q)
    ordered = (k[None, :] <= q[:, None]) | ((group_q == group_k) & (group_q >= 0))
    allowed = same_doc & visible_branch & ordered
    if window is not None:
        places = list_places(mask)
        allowed &= places[q][:, None] - places[k][None, :] < window
    return allowed


def list_places(mask: MaskArrays) -> Int32[np.ndarray, "seq"]:
    """Each token's place in its document as if that stood alone: windows are counted in places.

    A token of the shared prefix (branch 0) has its index there; a token of an annotation has the prefix's length plus
    its index in the annotation, as if the annotation followed the prefix alone. Padding has -1.
    """
    order = np.lexsort((mask.branch_ids, mask.doc_ids))
    doc, branch = mask.doc_ids[order], mask.branch_ids[order]
    in_order = np.arange(mask.seq_len)
    first_of_doc = np.maximum.accumulate(np.where(np.diff(doc, prepend=-2) != 0, in_order, 0))
    is_first = (np.diff(doc, prepend=-2) != 0) | (np.diff(branch, prepend=-1) != 0)
    first_of_branch = np.maximum.accumulate(np.where(is_first, in_order, 0))
    prefix = np.bincount(first_of_doc, weights=branch == 0, minlength=1).astype(np.int64)[first_of_doc]
    places = np.empty(mask.seq_len, np.int32)
    places[order] = in_order - first_of_branch + np.where(branch > 0, prefix, 0)
    places[mask.doc_ids == PADDING_DOC] = -1
    return places


def drop_groups(mask: MaskArrays) -> MaskArrays:
    """The mask without bidirectional groups: that of full layers whose images are bidirectional in windows alone."""
    return MaskArrays(
        doc_ids=mask.doc_ids, branch_ids=mask.branch_ids, group_ids=np.full_like(mask.group_ids, CAUSAL_ONLY)
    )
