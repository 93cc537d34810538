"""Source files to fragments, and fragments to rows. A row is referred to by its place, so that it can be read again."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from preshard.packer_service.ingest.fetch import Range, read_ranges
from preshard.packer_service.ingest.packed.dataset import open_dataset
from preshard.packer_service.ingest.source.containers.arrow_values import TableRows
from preshard.packer_service.ingest.source.containers.compressed import read_content, spooled
from preshard.packer_service.ingest.source.containers.registry import NUMBERED, SCANNED, TABLES
from preshard.packer_service.ingest.source.containers.row_groups import DamagedGroupError
from preshard.packer_service.ingest.source.file import DATASET, Fragment, FragmentRows, RowReference, SourceFile
from preshard.schemas.errors import LOST_ROWS, DocumentError
from preshard.schemas.files.filesystem import locate

MAX_GROUP_ROWS = 2**22
"""Most rows that a damaged row group is believed to have: each becomes a reject."""
SCAN_BUFFER = 2**20
"""Bytes read at a time of a file that is read from its beginning to its end; each read of a store is a request."""
FRAGMENT_PACKS = 64
"""Packs of a dataset that one task measures: a second or so."""
LOADED_BYTES = 2**25
"""Most bytes of rows that are loaded at a time; a pack of text has a hundredth of them."""
WHOLE = 2**62
"""End of a fragment that is a whole file of unknown length."""

_LOADED: dict[tuple[str, int, RowReference], bytes] = {}
"""The rows that were loaded last: those of one pack."""


def list_fragments(files: Sequence[SourceFile]) -> list[Fragment]:
    """Cuts files into fragments, in order. A compressed file or a tar is one.

    Raises:
        ConfigError: a table cannot be read.
    """
    return [Fragment(file=file, start=start, end=end) for file in files for start, end in _ranges(file)]


def _ranges(file: SourceFile) -> list[tuple[int, int]]:
    if file.kind == DATASET:
        n_packs = open_dataset(file).n_packs
        return [(at, min(at + FRAGMENT_PACKS, n_packs)) for at in range(0, n_packs, FRAGMENT_PACKS)]
    if listed := TABLES.get(file.kind) or NUMBERED.get(file.kind):
        found: list[tuple[int, int]] = listed.fragments(file)
        return found
    step = getattr(SCANNED[file.kind], "FRAGMENT_BYTES", None)
    if file.compression is not None or step is None:
        return [(0, WHOLE)]
    size = max(file.size, 1)  # an empty file may be a reject
    return [(at, min(at + step, file.size)) for at in range(0, size, step)]


def read_fragment(fragment: Fragment) -> FragmentRows:
    """Reads a fragment.

    Raises:
        OSError: the file cannot be read.
    """
    found = FragmentRows(rows=iter(()))
    rows = _table_rows(fragment, found) if fragment.file.kind in TABLES else _scanned_rows(fragment, found)
    named_row = fragment.file.named_row
    found.rows = ((number, place, named_row(row)) for number, place, row in rows) if fragment.file.renamed else rows
    return found


Rows = Iterator[tuple[int, RowReference, Any]]


def _table_rows(fragment: Fragment, found: FragmentRows) -> Rows:
    for group in range(fragment.start, fragment.end):
        try:
            rows: TableRows = TABLES[fragment.file.kind].group(fragment.file, group)
        except DamagedGroupError as damage:
            known = 1 <= damage.n_rows <= MAX_GROUP_ROWS
            reject = DocumentError("bad_row" if known else LOST_ROWS, str(damage))
            for i in range(damage.n_rows if known else 1):
                yield found.n_lines, RowReference(offset=group, size=i), reject
                found.n_lines += 1
            continue
        for i in range(len(rows)):
            yield found.n_lines, RowReference(offset=group, size=i), rows.row(i)
            found.n_lines += 1


def _scanned_rows(fragment: Fragment, found: FragmentRows) -> Rows:
    file = fragment.file
    with _content(file) as (opened, size, damage):
        container = SCANNED[file.kind]
        for row in container.scan(opened, file, fragment.start, size if fragment.end == WHOLE else fragment.end):
            if row.is_row:
                yield found.n_lines, RowReference(offset=row.offset, size=row.size), row.row
            found.n_lines += 1
    if damage is not None:
        lost = f"the file cannot be decompressed from byte {size} of its content on ({damage}); what follows is lost"
        yield found.n_lines, RowReference(offset=size, size=0), DocumentError(LOST_ROWS, lost)
        found.n_lines += 1


@contextmanager
def _content(file: SourceFile) -> Iterator[tuple[Any, int, str | None]]:
    """A file's content for reading at any position, its size, and why it ends early, if it does."""
    if file.compression is not None:
        spool = spooled(file)
        yield spool.content, spool.size, spool.damage
        return
    filesystem, path = locate(file.uri)
    with filesystem.open_input_file(path) as opened:
        yield io.BufferedReader(opened, SCAN_BUFFER), file.size, None


def read_row(file: SourceFile, reference: RowReference) -> Any:
    """A row again, by its reference: the row, or why it cannot be read.

    Raises:
        OSError: the file cannot be read any more.
    """
    return file.named_row(_row(file, reference))


def _row(file: SourceFile, reference: RowReference) -> Any:
    if file.kind in TABLES:
        try:
            group: TableRows = TABLES[file.kind].group(file, reference.offset)
        except DamagedGroupError:  # the file was replaced: fewer row groups, or another format
            return _gone()
        return group.row(reference.size) if reference.size < len(group) else _gone()
    data = _LOADED.get((file.uri, file.mtime_ns, reference))
    if data is None:
        data = read_content(file, reference.offset, reference.offset + reference.size)
    return SCANNED[file.kind].decode(data, file)


def load_rows(places: Iterable[tuple[SourceFile, RowReference]]) -> None:
    """Reads rows that :func:`read_row` is asked for next, several at the same time, where their files are in a store.

    Once they are many bytes, the rest is left to :func:`read_row`.

    Raises:
        OSError: a file cannot be read.
    """
    wanted, free = list[tuple[SourceFile, RowReference]](), LOADED_BYTES
    for file, row in places:
        if file.is_remote and file.kind in SCANNED and file.compression is None:
            free -= row.size
            if free < 0:
                break
            wanted.append((file, row))
    read = read_ranges([Range(file.uri, row.offset, row.offset + row.size, file.mtime_ns) for file, row in wanted])
    _LOADED.clear()
    for (file, row), data in zip(wanted, read, strict=True):
        if data is not None:
            _LOADED[file.uri, file.mtime_ns, row] = bytes(data)


def _gone() -> DocumentError:
    return DocumentError("bad_row", "the row is gone")
