"""Rows of one id: those that differ get numbers behind it, and of equal ones a single one is left.

Nothing here depends on the order of the source's files: rows of one id are ordered by a hash of their content.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import pyarrow as pa

from preshard.schemas.dataset.document_ids import MAX_NUMBER, id_stems
from preshard.schemas.errors import ConfigError


class Row(NamedTuple):
    """A row among those whose ids have one stem, in the order in which they are looked at.

    Documents of packed datasets come first, so that they keep their ids; then rows that could be read.
    """

    is_fresh: bool
    is_unread: bool
    content: int
    label: str
    line: int
    doc_id: str
    number: int
    rendered: int | None
    file: int = 0

    @property
    def location(self) -> str:
        """How results name the row."""
        return f"{self.label}:{self.line}"


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of rows whose id others have as well, by the number of the row.

    Attributes:
        ids: the new ids.
        twins: for rows that are not packed the equal row that is.
    """

    ids: dict[int, str] = field(default_factory=dict)
    twins: dict[int, int] = field(default_factory=dict)


def settle(rows: list[Row]) -> Settled:
    """Gives rows that differ ids of their own, and finds equal rows.

    Two rows of one id are equal if their contents are. A document of a packed dataset has no row any more: it is equal
    to a row that renders as it does, and to a document of another dataset with the same content, whatever numbers
    their ids have. A row without any other of its id keeps it, whatever it looks like.

    Args:
        rows: of some stems, each with all of its rows.

    Raises:
        ConfigError: more rows have one id than there are numbers.
    """
    found = Settled()
    stems = id_stems(pa.array([row.doc_id for row in rows], pa.string())).to_pylist()
    by_stem = defaultdict[str, list[Row]](list)
    for row, stem in zip(rows, stems, strict=True):
        by_stem[stem].append(row)
    for stem, of_stem in by_stem.items():
        _settle_stem(stem, sorted(of_stem), found)
    return found


def _settle_stem(stem: str, rows: list[Row], found: Settled) -> None:
    taken = {row.doc_id for row in rows}
    numbers = (number for number in count(2) if f"{stem}#{number}" not in taken)
    kept = set[str]()
    same_id = dict[tuple[str, int], int]()
    stored, looks = dict[int, int](), dict[int | None, int]()
    for row in rows:
        if row.doc_id in kept:
            twin = None
            if not row.is_unread:
                across = looks.get(row.rendered) if row.is_fresh else stored.get(row.content)
                twin = same_id.get((row.doc_id, row.content), across)
            if twin is not None:
                found.twins[row.number] = twin
                continue
            number = next(numbers)
            if number > MAX_NUMBER:
                raise ConfigError(
                    f"id {row.doc_id!r:.80}: more than {MAX_NUMBER:,} different rows have it; leave ids out with "
                    "--set 'ignore_columns=[id]'"
                )
            found.ids[row.number] = f"{stem}#{number}"
        kept.add(row.doc_id)
        if not row.is_unread:
            same_id[row.doc_id, row.content] = row.number
            if not row.is_fresh:
                stored[row.content] = row.number
                looks[row.rendered] = row.number
