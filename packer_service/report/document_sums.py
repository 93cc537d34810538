"""Sums over ``documents.parquet``, whose rows pass in parts: what figures of a dataset need of its documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.packer_service.report.fill import PlanTotals

SUMMED = ("length", "aligned_length", "n_images", "n_patches", "truncated_tokens")
"""Columns of ``documents.parquet`` that are summed, beside ``source``."""


class DocumentSums:
    """Sums over documents, and over those of each source.

    Attributes:
        documents, tokens, truncated: rows, real tokens and lost tokens by source.
    """

    def __init__(self) -> None:
        self.documents, self.tokens, self.truncated = Counter[str](), Counter[str](), Counter[str]()
        self._sums = Counter[str]()

    @classmethod
    def of(cls, parts: Iterable[pa.Table]) -> DocumentSums:
        """The sums of parts with ``source`` and :data:`SUMMED`."""
        sums = cls()
        for part in parts:
            sums.add(part)
        return sums

    def add(self, part: pa.Table) -> None:
        """Adds some rows."""
        wanted = [([], "count_all"), *((name, "sum") for name in SUMMED)]
        for row in part.group_by("source", use_threads=False).aggregate(wanted).to_pylist():
            source = row["source"]
            self.documents[source] += row["count_all"]
            self.tokens[source] += row["length_sum"]
            self.truncated[source] += row["truncated_tokens_sum"]
            self._sums.update({name: row[f"{name}_sum"] for name in SUMMED})

    @property
    def totals(self) -> PlanTotals:
        """What the fill of packs needs."""
        return PlanTotals(
            documents=self.documents.total(),
            tokens=self._sums["length"],
            aligned=self._sums["aligned_length"],
            images=self._sums["n_images"],
            patches=self._sums["n_patches"],
        )

    @property
    def lost_tokens(self) -> dict[str, int]:
        """Truncated tokens of each source that lost any."""
        return {source: tokens for source, tokens in self.truncated.items() if tokens}


class LengthCounts:
    """How many documents have each length: as many numbers as there are lengths, however many documents."""

    def __init__(self) -> None:
        self.lengths: Int64[np.ndarray, "lengths"] = np.zeros(0, np.int64)
        self.counts: Int64[np.ndarray, "lengths"] = np.zeros(0, np.int64)

    @classmethod
    def of(cls, parts: Iterable[Int64[np.ndarray, "some"]]) -> LengthCounts:
        """The counts of lengths that come in parts."""
        found = cls()
        for part in parts:
            found.add(part)
        return found

    def add(self, lengths: Int64[np.ndarray, "some"]) -> None:
        """Adds the lengths of some documents."""
        values, counts = np.unique(lengths, return_counts=True)
        both, place = np.unique(np.concatenate([self.lengths, values]), return_inverse=True)
        summed = np.zeros(len(both), np.int64)
        np.add.at(summed, place, np.concatenate([self.counts, counts]))
        self.lengths, self.counts = both, summed

    def __len__(self) -> int:
        """How many documents there are."""
        return int(self.counts.sum())

    def mean(self) -> float:
        return float(np.dot(self.lengths.astype(object), self.counts.astype(object)) / len(self))

    def percentile(self, percent: int) -> int:
        """The percentile of documents' lengths: that of the document at this place in ascending order."""
        place = (len(self) - 1) * percent // 100
        return int(self.lengths[np.searchsorted(np.cumsum(self.counts), place, side="right")])
