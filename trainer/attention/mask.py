"""The mask's arrays as tensors, and the rule of the mask between any two sets of tokens.

Shapes: S tokens of the pack, N tokens of a set, Q queries, T keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

from schemas.sequence import MaskArrays
from trainer.data.batch import RankBatch


@dataclass(frozen=True, kw_only=True)
class MaskTensors:
    """The arrays that define the mask of one pack, in natural order (see ``schemas.sequence.MaskArrays``).

    Attributes:
        doc_ids, branch_ids, group_ids: on the device of the attention.
        host: the same on the CPU, from which tiles are listed without waiting for the device. Made when not given.
    """

    doc_ids: Int32[Tensor, "S"]
    branch_ids: Int32[Tensor, "S"]
    group_ids: Int32[Tensor, "S"]
    host: MaskArrays | None = None

    @classmethod
    def of(cls, batch: RankBatch) -> MaskTensors:
        """The mask of a batch, on the CPU."""
        return cls(doc_ids=batch.doc_ids, branch_ids=batch.branch_ids, group_ids=batch.group_ids)

    @classmethod
    def from_arrays(cls, arrays: MaskArrays) -> MaskTensors:
        """The mask of a sequence, on the CPU."""
        tensors = (torch.from_numpy(a) for a in (arrays.doc_ids, arrays.branch_ids, arrays.group_ids))
        doc, branch, group = tensors
        return cls(doc_ids=doc, branch_ids=branch, group_ids=group, host=arrays)

    def to(self, device: torch.device | str) -> MaskTensors:
        """The mask on another device; the host's copy goes with it."""
        doc, branch, group = (a.to(device, non_blocking=True) for a in (self.doc_ids, self.branch_ids, self.group_ids))
        return MaskTensors(doc_ids=doc, branch_ids=branch, group_ids=group, host=self.arrays)

    @cached_property
    def arrays(self) -> MaskArrays:
        """The mask on the host."""
        if self.host is not None:
            return self.host
        doc, branch, group = (a.cpu().numpy() for a in (self.doc_ids, self.branch_ids, self.group_ids))
        return MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=group)

    @property
    def seq_len(self) -> int:
        return len(self.doc_ids)

    def at(self, positions: Int64[np.ndarray, "N"]) -> MaskedTokens:
        """The tokens at these natural positions, in this order."""
        arrays = self.arrays
        index = torch.from_numpy(positions).to(self.doc_ids.device)
        return MaskedTokens(
            host_positions=positions,
            host=MaskArrays(
                doc_ids=arrays.doc_ids[positions],
                branch_ids=arrays.branch_ids[positions],
                group_ids=arrays.group_ids[positions],
            ),
            positions=index.to(torch.int32),
            doc_ids=self.doc_ids[index],
            branch_ids=self.branch_ids[index],
            group_ids=self.group_ids[index],
        )


@dataclass(frozen=True, kw_only=True)
class MaskedTokens:
    """What the mask must know of some tokens: of a slice's queries, or of the keys that they meet.

    Attributes:
        positions: natural positions.
        doc_ids, branch_ids, group_ids: the mask's arrays there.
        host_positions, host: the same on the CPU.
    """

    positions: Int32[Tensor, "N"]
    doc_ids: Int32[Tensor, "N"]
    branch_ids: Int32[Tensor, "N"]
    group_ids: Int32[Tensor, "N"]
    host_positions: Int64[np.ndarray, "N"]
    host: MaskArrays

    def __len__(self) -> int:
        return len(self.host_positions)


def visible(queries: MaskedTokens, keys: MaskedTokens, q: Tensor, k: Tensor) -> Bool[Tensor, "..."]:
    """Whether query ``q`` may see key ``k``; ``q`` and ``k`` index the two sets and broadcast.

    The rule is that of ``schemas.sequence.MaskArrays``. Padding sees nothing and is seen by nothing.
    """
    doc_q, branch_k = queries.doc_ids[q], keys.branch_ids[k]
    same_doc = (doc_q == keys.doc_ids[k]) & (doc_q >= 0)
    branch = (branch_k == 0) | (branch_k == queries.branch_ids[q])
    group_q = queries.group_ids[q]
    together = (group_q == keys.group_ids[k]) & (group_q >= 0)
    return same_doc & branch & ((keys.positions[k] <= queries.positions[q]) | together)


def visible_block(queries: MaskedTokens, keys: MaskedTokens, rows: slice, columns: Tensor) -> Bool[Tensor, "Q T"]:
    """``visible`` for the queries of a range and some keys, as a matrix."""
    q = torch.arange(rows.start, rows.stop, device=columns.device)
    return visible(queries, keys, q[:, None], columns[None, :])
