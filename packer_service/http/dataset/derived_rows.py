"""Rows of documents as they are kept for a large dataset: found by place, by id and by source without decoding."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.http.dataset.derived import Derived
from preshard.packer_service.http.dataset.id_search import rows_beginning_with, rows_with

HASHES, ROWS = "id-hashes", "id-rows"
"""The hashes of all ids, ascending, and the row of each."""

IDS, EDGES = "ids.bytes", "id-edges"
"""All ids one after the other in UTF-8, and where each begins."""

CODES = "document-source"
"""The place of each document's source among the ``sources``."""

NUMBERS = (
    "piece", "copy_number", "epoch", "pack_id", "start", "length", "aligned_length", "n_units", "n_images", "n_patches",
    "load", "truncated_tokens",
)  # fmt: skip
"""Columns of numbers that are kept, each in as few bytes as its largest takes."""

KEPT = frozenset({"doc_id", "source", *NUMBERS})


class DerivedRows:
    """The documents of one dataset.

    Args:
        derived: what was derived of it.
    """

    def __init__(self, derived: Derived) -> None:
        self.sources: list[str] = derived.figures("sources") or []
        self.hashes, self.places = derived.values(HASHES), derived.values(ROWS)
        self._edges, self._codes = derived.values(EDGES), derived.values(CODES)
        self._numbers: dict[str, Any] = {name: derived.values(f"document-{name}") for name in NUMBERS}
        self._ids = derived.bytes(IDS)

    @property
    def is_there(self) -> bool:
        """Whether anything was kept: the documents may have been too many."""
        kept = (self.hashes, self.places, self._edges, self._codes, self._ids, *self._numbers.values())
        return bool(self.sources) and all(values is not None for values in kept)

    def rows(self, places: Int64[np.ndarray, "some"], names: list[str]) -> list[dict[str, Any]]:
        """Columns of :data:`KEPT` of some rows."""
        assert self._codes is not None
        columns: dict[str, list[Any]] = {
            name: self._numbers[name][places].tolist() for name in names if name in NUMBERS
        }
        if "doc_id" in names:
            columns["doc_id"] = [self._id(place) for place in places.tolist()]
        if "source" in names:
            columns["source"] = [self.sources[code] for code in self._codes[places].tolist()]
        return [{name: columns[name][row] for name in names} for row in range(len(places))]

    def _id(self, place: int) -> str:
        assert self._ids is not None
        assert self._edges is not None
        return bytes(self._ids[self._edges[place] : self._edges[place + 1]]).decode()

    def __len__(self) -> int:
        return 0 if self._edges is None else len(self._edges) - 1

    def with_ids(self, prefix: str | None, contains: str | None) -> Int64[np.ndarray, "some"] | None:
        """The rows whose id begins with one part and contains another; None where neither is asked for."""
        assert self._ids is not None
        assert self._edges is not None
        found = [rows_with(self._ids, self._edges, contains.encode())] if contains else []
        if prefix:
            found.append(rows_beginning_with(self._ids, self._edges, prefix.encode()))
        if not found:
            return None
        return found[0] if len(found) == 1 else np.intersect1d(found[0], found[1], assume_unique=True)

    def of_source(self, source: str, among: Int64[np.ndarray, "some"] | None) -> Int64[np.ndarray, "fewer"]:
        """The rows that are of a source, of all or of some."""
        assert self._codes is not None
        number = self.sources.index(source) if source in self.sources else -1
        if among is None:
            return np.flatnonzero(self._codes == number)
        return among[self._codes[among] == number]
