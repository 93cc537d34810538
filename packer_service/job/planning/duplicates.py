"""Rows of one id: those that differ get numbers behind it, and of equal ones a single one is left.

Nothing here depends on the order of the source's files: rows of one id are ordered by a hash of their content.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa

from preshard.schemas.dataset.document_ids import MAX_NUMBER, hash_ids, id_stems
from preshard.schemas.errors import ConfigError

SETTLED = pa.schema(
    [
        ("file", pa.int64()),
        ("line", pa.int64()),
        ("new_id", pa.string()),
        ("new_hash", pa.uint64()),
        ("equal", pa.string()),
    ]
)
"""Rows of an id that others have: their new ids, and of those that are not packed what they are equal to."""


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
        """The row's name in results."""
        return f"{self.label}:{self.line}"


@dataclass(frozen=True, slots=True)
class Settled:
    """Outcome for rows whose id others have as well, by the number of the row.

    Attributes:
        ids: the new ids.
        twins: for rows that are not packed the equal row that is.
    """

    ids: dict[int, str] = field(default_factory=dict)
    twins: dict[int, int] = field(default_factory=dict)


def settle_rows(found: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> tuple[pa.Table, int]:
    """Settles rows whose id others have as well. Returns a table with :data:`SETTLED`, and how many get a number.

    Args:
        found: the rows of some stems: ``file``, ``line``, ``doc_id``, ``content``, ``rendered`` and ``is_stored``.
        labels: of files, by their numbers; none where nobody asks where a row lies.

    Raises:
        ConfigError: as of :func:`settle`.
    """
    rows = [
        Row(
            is_fresh=not row["is_stored"],
            is_unread=row["content"] is None,
            content=row["content"] or 0,
            label=labels[row["file"]] if labels else "",
            line=row["line"],
            doc_id=row["doc_id"],
            number=number,
            rendered=row["rendered"],
            file=row["file"],
        )
        for number, row in enumerate(found)
    ]
    results, settled = settle(rows), list[dict[str, object]]()
    for row in rows:
        twin = rows[results.twins[row.number]] if row.number in results.twins else row
        if row.number in results.ids or twin is not row:
            equal = None if twin is row else f"is equal to the row {twin.location!r}" if labels else ""
            new_id = results.ids.get(twin.number, twin.doc_id)
            settled.append({"file": row.file, "line": row.line, "new_id": new_id, "equal": equal})
    table = pa.Table.from_pylist(settled, SETTLED)
    hashes = pa.array(hash_ids(table["new_id"]))
    return table.set_column(SETTLED.get_field_index("new_hash"), "new_hash", hashes), len(results.ids)


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
