"""The numbers that documents give their units, groups and annotations themselves, for all documents of a stored pack.

A pack has dozens of short documents, so what is found at once for all of them takes a third of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.packed.units import StoredUnits
from preshard.schemas.codec import HEAD
from preshard.schemas.errors import SampleHeadInvalid
from preshard.schemas.manifest import SampleHead
from preshard.schemas.sequence import CAUSAL_ONLY, NOT_POOLED, PackedSequence

_NO_GROUP = np.iinfo(np.int32).max
"""Above every group's number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnNumbers:
    """``unit_ids`` and ``group_ids`` as :class:`preshard.packer_service.packs.rendered.RenderedDocument` has them, each
    token's counted in its own document, and the annotations of each document.
    """

    unit_ids: Int32[np.ndarray, "seq"]
    group_ids: Int32[np.ndarray, "seq"]
    n_branches: list[int]

    @classmethod
    def of(cls, head: SampleHead, sequence: PackedSequence, units: StoredUnits, where: str) -> OwnNumbers:
        """
        Args:
            head: of the pack.
            sequence: its arrays.
            units: its units.
            where: how errors name the pack.

        Raises:
            SampleHeadInvalid: the documents are not in the order of their places, or the arrays have other pooled rows.
        """
        starts = np.array([span.start for span in head.documents], np.int64)
        lengths = np.diff(starts, append=sequence.seq_len)  # with the padding behind each
        if (lengths <= 0).any():
            raise SampleHeadInvalid(f"{where}.{HEAD}", "documents are not in the order of their places")
        edges, pooled = np.array(units.document_edges), sequence.pool_ids != NOT_POOLED
        in_document = np.arange(edges[-1]) - np.repeat(edges[:-1], np.diff(edges))
        rows, n_pooled = np.repeat(in_document, units.units.rows), int(np.count_nonzero(pooled))
        if len(rows) != n_pooled:
            what = f"units have {len(rows)} pooled rows, and the pack {n_pooled} tokens of such"
            raise SampleHeadInvalid(f"{where}.{HEAD}", what)
        unit_ids = np.full(sequence.seq_len, NOT_POOLED, np.int32)
        unit_ids[pooled] = rows
        groups, free = sequence.group_ids, sequence.seq_len - int(lengths.sum())  # tokens before the first document
        first = np.minimum.reduceat(np.where(groups >= 0, groups, _NO_GROUP), starts)
        base = np.repeat(np.append(np.int32(0), first), [free, *lengths])
        return cls(
            unit_ids=unit_ids,
            group_ids=np.where(groups >= 0, groups - base, CAUSAL_ONLY).astype(np.int32),
            n_branches=np.maximum.reduceat(sequence.branch_ids, starts).tolist(),
        )
