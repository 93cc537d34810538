"""Packs in memory, read as a dataset's are: bytes in place of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from preshard.schemas.errors import ReaderError
from preshard.schemas.files.printed import several
from preshard.schemas.manifest import ManifestHead, ModelEntry
from preshard.schemas.read_config import read_config
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.pack_index import RECORD, PackIndex
from preshard.trainer.data.reader import PackReader, RankPart, check_rank


class HeldFiles(DatasetFiles):
    """The bytes of packs, as :class:`DatasetFiles` gives those of a dataset's shards.

    Of the manifest it has what a pack is read by: the configuration and the model.
    """

    def __init__(
        self, samples: bytes, places: Sequence[Mapping[str, int]], config: Mapping[str, Any], model: ModelEntry | None
    ) -> None:
        self.location, self.store, self.bytes_read = "documents in memory", None, 0
        known: dict[str, Any] = {"config": dict(config), "model": model}
        self.manifest = ManifestHead.model_construct(**known)
        self.config = read_config(self.manifest)
        self._samples = samples
        self._records = np.array([tuple(place[name] for name in RECORD.names or ()) for place in places], RECORD)

    @property
    def nbytes(self) -> int:
        """Bytes of all packs."""
        return len(self._samples)

    def packs(self) -> PackIndex:
        """The place of every pack in the bytes."""
        return PackIndex(self._records, packs_per_shard=self.config.packs_per_shard)

    def read_range(self, shard: str, offset: int, size: int) -> bytes:  # noqa: ARG002 (all lie one behind the other)
        """Exactly ``size`` bytes from ``offset``."""
        self.bytes_read += size
        return self._samples[offset : offset + size]

    def close(self) -> None:
        """Nothing is open."""


class PackedBatch:
    """Packs of one step, made of documents in memory. It can be pickled, and sent to other ranks.

    ``len(batch)`` is the number of packs.

    Attributes:
        rejects: documents that are in no pack, each as ``rejects.parquet`` has it: ``doc_id``, ``source``,
            ``location`` (``documents:3`` is the third), ``stage``, ``code`` and ``message``.
    """

    def __init__(self, files: HeldFiles, rejects: Sequence[Mapping[str, str]]) -> None:
        self._files, self.rejects = files, list(rejects)

    def __len__(self) -> int:
        return len(self._files.packs())

    @property
    def nbytes(self) -> int:
        """Bytes of all packs, which is what sending it to another rank sends."""
        return self._files.nbytes

    def batches(
        self,
        *,
        dp_rank: int = 0,
        dp_size: int = 1,
        ulysses_degree: int = 1,
        ring_degree: int = 1,
        cp_rank: int = 0,
        layout: str = "contiguous",
    ) -> list[RankBatch]:
        """The part of one rank: of every ``dp_size``-th pack from its ``dp_rank`` on, as ``PackedDataset`` reads it.

        Arguments are those of :class:`preshard.data.PackedDataset`.

        Raises:
            ReaderError: a rank is out of range, the packs have no such layout and do not let it be derived, or
                ``dp_size`` does not divide their number.
        """
        part = RankPart(scheme=layout, ulysses_degree=ulysses_degree, ring_degree=ring_degree, cp_rank=cp_rank)
        reader = PackReader(self._files, part)
        check_rank("dp_rank", dp_rank, "dp_size", dp_size)
        if len(self) % dp_size:
            raise ReaderError(
                f"dp_size is {dp_size}; it does not divide the {several(len(self), 'pack')} of the step: pack with "
                f"multiple_of={dp_size}"
            )
        return [reader.read(pack, dataset=0, step=0, state={}) for pack in range(dp_rank, len(self), dp_size)]
