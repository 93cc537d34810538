"""Packs in Megatron Energon, which chooses what comes next and keeps the state; our reader reads a rank's part.

``preshard energon DATASET`` writes what Energon needs to open the dataset. Of a sample it reads only the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron.energon import Cooker, CrudeSample, Sample, basic_sample_keys, edataclass

from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.reader import PackReader, RankPart


@edataclass
class PackSample(Sample):
    """A sample of Energon that is a rank's part of a pack."""

    pack: RankBatch


def pack_cooker(
    *,
    layout: str = "zigzag",
    ulysses_degree: int = 1,
    ring_degree: int = 1,
    cp_rank: int = 0,
    locations: Mapping[str, str] | None = None,
    has_subflavors: dict[str, Any] | None = None,
) -> Cooker:
    """A cooker that makes :class:`PackSample` of the samples of packed datasets, whichever of a blend they are from.

    All ranks of a pack give Energon the same ``WorkerConfig``, whose rank is the data-parallel one. ``step`` and
    ``state`` of the batches are empty, as the position is Energon's to save.

    Args:
        layout: see :class:`preshard.data.PackedDataset`, as the next three.
        ulysses_degree: the same.
        ring_degree: the same.
        cp_rank: the same.
        locations: where a dataset lies for our reader, by the path that Energon opens it with; needed of those that
            Energon reads from a store (``msc://...``).
        has_subflavors: see Energon's ``Cooker``.

    Raises:
        ReaderError, FormatError: as of :class:`preshard.data.PackedDataset`, with the first sample of a dataset.
    """
    part = RankPart(scheme=layout, ulysses_degree=ulysses_degree, ring_degree=ring_degree, cp_rank=cp_rank)
    return Cooker(_Cook(part, dict(locations or {})), has_subflavors=has_subflavors)


class _Cook:
    """Cooks, with one reader for each dataset; copies in workers open their own files."""

    __stateless__ = True

    def __init__(self, part: RankPart, locations: dict[str, str]) -> None:
        self.part, self.locations = part, locations
        self.readers: dict[str, PackReader] = {}

    def __call__(self, sample: CrudeSample) -> PackSample:
        path = sample["__sources__"][0].dataset_path
        name = str(path)
        if name not in self.readers:
            self.readers[name] = PackReader(DatasetFiles(self.locations.get(name, name)), self.part)
        pack = self.readers[name].read(int(sample["__key__"]), dataset=0, step=0, state={})
        return PackSample(**basic_sample_keys(sample), pack=pack)
