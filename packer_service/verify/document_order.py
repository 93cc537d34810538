"""Whether rows that come in parts are in order, and which is the first that is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.packer_service.verify.row_reader import PackSpan
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.errors import DocumentRowInvalid

Key = tuple[int, int]
"""Pack and start."""


class DocumentOrder:
    """Rows are sorted by pack and start, and their packs exist.

    Attributes:
        spans: the packs of each part.
    """

    def __init__(self, n_packs: int) -> None:
        self._n_packs, self._rows = n_packs, 0
        self.spans: list[PackSpan] = []
        self._last: Key | None = None
        self._least_behind: Key | None = None
        self._outside: tuple[int, int] | None = None

    def add(self, part: pa.Table) -> None:
        """Looks at the next rows."""
        packs, starts = part["pack_id"].to_numpy(), part["start"].to_numpy()
        if not len(packs):
            return
        self.spans.append(PackSpan(self._rows, self._rows + len(packs), int(packs.min()), int(packs.max())))
        outside = np.flatnonzero((packs < 0) | (packs >= self._n_packs))
        if len(outside) and self._outside is None:
            self._outside = self._rows + int(outside[0]), int(packs[outside[0]])
        behind = self._first_behind(packs, starts)
        if behind < len(packs):
            least = _least(packs[behind:], starts[behind:])
            self._least_behind = least if self._least_behind is None else min(least, self._least_behind)
        self._last = int(packs[-1]), int(starts[-1])
        self._rows += len(packs)

    def _first_behind(self, packs: Int64[np.ndarray, "part"], starts: Int64[np.ndarray, "part"]) -> int:
        """The first row of a part that stands behind a larger one, or behind one that does."""
        if self._least_behind is not None or (self._last is not None and (int(packs[0]), int(starts[0])) < self._last):
            return 0
        falls = (packs[1:] < packs[:-1]) | ((packs[1:] == packs[:-1]) & (starts[1:] < starts[:-1]))
        first = np.flatnonzero(falls)
        return int(first[0]) + 1 if len(first) else len(packs)

    def findings(self, again: Callable[[], Iterable[pa.Table]]) -> Iterator[Finding]:
        """What is wrong with the rows.

        Args:
            again: ``pack_id`` and ``start`` of all rows; read only where they are out of order.
        """
        if self._least_behind is not None:
            moved = _first_above(self._least_behind, again())
            yield DocumentRowInvalid, f"row {moved} is out of order; rows are sorted by pack_id and start"
        if self._outside is not None:
            row, pack = self._outside
            yield DocumentRowInvalid, f"row {row} has pack_id {pack} of {self._n_packs} packs"


def _least(packs: Int64[np.ndarray, "some"], starts: Int64[np.ndarray, "some"]) -> Key:
    pack = packs.min()
    return int(pack), int(starts[packs == pack].min())


def _first_above(key: Key, parts: Iterable[pa.Table]) -> int:
    """The first row that a row with the key, somewhere behind it, should stand before."""
    before = 0
    for part in parts:
        packs, starts = part["pack_id"].to_numpy(), part["start"].to_numpy()
        above = np.flatnonzero((packs > key[0]) | ((packs == key[0]) & (starts > key[1])))
        if len(above):
            return before + int(above[0])
        before += len(part)
    return before
