"""The units and crops of a stored pack, as columns: a pack has many documents, and each takes its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from preshard.packer_service.ingest.packed.crops import StoredCrops
from preshard.packer_service.packs.units import Units
from preshard.schemas.codec import HEAD
from preshard.schemas.errors import SampleHeadInvalid
from preshard.schemas.manifest import UNIT_KINDS, SampleHead, StoredImage


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredUnits:
    """All units of a pack. ``document_edges`` cuts them into those of each document, and ``crop_edges`` cuts ``images``
    into those of each unit.
    """

    units: Units
    document_edges: list[int]
    images: Sequence[StoredImage]
    crop_edges: list[int]

    @classmethod
    def of(cls, head: SampleHead, where: str) -> StoredUnits:
        """
        Args:
            head: of the pack.
            where: how errors name the pack.

        Raises:
            SampleHeadInvalid: the units are not in the order of their documents.
        """
        stored, crop_edges = head.units, [0, *head.cum_image_bounds]
        units = Units(
            kinds=np.array([UNIT_KINDS.index(unit.kind) for unit in stored], np.int64),
            edges=np.array([(unit.start, unit.end) for unit in stored], np.int64).reshape(-1, 2),
            grids=np.array([unit.grid for unit in stored], np.int64).reshape(-1, 3),
            patches=np.array([unit.patches for unit in stored], np.int64),
            rows=np.array([unit.rows for unit in stored], np.int64),
            crops=np.diff(np.array(crop_edges, np.int64)),
            loads=np.array([unit.load for unit in stored], np.int64),
            media=np.array([unit.medium for unit in stored], np.int64),
            time_steps=np.array([unit.time_step for unit in stored], np.float64),
            numbers=np.arange(len(stored)),
        )
        documents = np.array([unit.document for unit in stored], np.int64)
        if (np.diff(documents) < 0).any():
            raise SampleHeadInvalid(f"{where}.{HEAD}", "units are not in the order of their documents")
        edges = np.searchsorted(documents, np.arange(len(head.documents) + 1)).tolist()
        return cls(units=units, document_edges=edges, images=head.images, crop_edges=crop_edges)

    def of_document(self, number: int, start: int, shard: str, crops_at: int) -> tuple[Units, tuple[StoredCrops, ...]]:
        """The units of a document, counted from its own first token, and the crops of each.

        Args:
            number: the document's number in the pack.
            start: position of its first token.
            shard: the file that holds the crops.
            crops_at: the byte from which their offsets count.
        """
        first, end = self.document_edges[number : number + 2]
        own = {name: getattr(self.units, name)[first:end] for name in _COLUMNS}
        units = Units(**{**own, "edges": own["edges"] - start, "numbers": np.arange(end - first)})
        crops = tuple(
            StoredCrops(shard=shard, crops_at=crops_at, images=self.images[begin:behind])
            for begin, behind in pairwise(self.crop_edges[first : end + 1])
        )
        return units, crops


_COLUMNS = [field.name for field in fields(Units)]
