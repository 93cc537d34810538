"""The arrays of one packed sequence, with columns of numbers for each token, and the rule of its attention mask."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from jaxtyping import Float32, Int32

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
    A layer with a sliding window adds a condition, see :func:`preshard.schemas.mask.dense_mask`.
    """

    doc_ids: Int32[np.ndarray, "seq"]
    branch_ids: Int32[np.ndarray, "seq"]
    group_ids: Int32[np.ndarray, "seq"]

    @property
    def seq_len(self) -> int:
        return len(self.doc_ids)


TOKEN_DTYPES = ("float32", "int32", "bool")

TOKEN_TYPE = re.compile(rf"({'|'.join(TOKEN_DTYPES)})(?: x ([1-9][0-9]{{0,3}}))?( or 0)?", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenColumn:
    """Numbers for each token of a pack: one, or ``width`` of them. Padding has 0 (false).

    ``optional`` says that rows may lack it, whose tokens have 0 then.
    """

    name: str
    dtype: np.dtype
    width: int | None = None
    optional: bool = False

    @property
    def member(self) -> str:
        """Name of its array in ``KEY.sequence.npz``."""
        return f"columns.{self.name}"

    def shape(self, tokens: int) -> tuple[int, ...]:
        """Shape of its array for so many tokens."""
        return (tokens,) if self.width is None else (tokens, self.width)

    def zeros(self, tokens: int) -> np.ndarray:
        """Its array for tokens that have no value."""
        return np.zeros(self.shape(tokens), self.dtype)

    @classmethod
    def of(cls, name: str, spelled: str) -> TokenColumn:
        """A column as the configuration spells its type: ``float32``, ``int32 x 8``, ``bool or 0``."""
        found = TOKEN_TYPE.fullmatch(spelled)
        assert found is not None, "checked with the configuration"
        dtype, width, optional = found.groups()
        return cls(
            name=name,
            dtype=np.dtype(dtype),
            width=None if width is None else int(width),
            optional=optional is not None,
        )


Columns = Mapping[str, np.ndarray]
"""Values of token columns, by their names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSequence:
    """The arrays of ``KEY.sequence.npz``, each of length ``seq_len`` in natural order, positions once for each axis.

    ``columns`` are the configured columns of tokens by their names (:class:`TokenColumn`).
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
