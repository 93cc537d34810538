"""Arrow files as ``datasets.save_to_disk`` writes them: groups of rows that are mapped into memory, not read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from cachetools import LRUCache, cached
from pyarrow import ipc

from preshard.packer_service.ingest.fetch import recent_values
from preshard.packer_service.ingest.source.containers.arrow_values import TableRows
from preshard.packer_service.ingest.source.containers.row_groups import DamagedGroupError
from preshard.packer_service.ingest.source.file import SourceFile
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import locate

MAGIC = b"ARROW1"
"""A file of random access begins with it; without it, a file is a stream, which is what ``datasets`` writes."""
FRAGMENT_BYTES = 8 * 2**20
"""Least bytes of the groups that one task measures."""
CACHED_BYTES = 256 * 2**20
"""Most memory of files that lie in an object store: each is read as a whole. On a disk, the system keeps the pages."""

_FILES: LRUCache[tuple[str, int], list[pa.RecordBatch]] = recent_values(
    CACHED_BYTES, lambda batches: sum(batch.nbytes for batch in batches)
)
_MAPPED: LRUCache[tuple[str, int], list[pa.RecordBatch]] = LRUCache(256)


def batches(file: SourceFile) -> list[pa.RecordBatch]:
    """The groups of rows of a file; on a disk none of them is in memory yet.

    Raises:
        DamagedGroupError: it is not Arrow.
        OSError: it cannot be read.
    """
    kept, key = _FILES if file.is_remote else _MAPPED, (file.uri, file.mtime_ns)
    found = kept.get(key)
    if found is None:
        filesystem, path = locate(file.uri)
        if file.is_remote:
            with filesystem.open_input_file(path) as remote:
                source = pa.BufferReader(remote.read())
        else:
            source = pa.memory_map(path)
        found = kept[key] = _parsed(source)
    return found


def _parsed(source: Any) -> list[pa.RecordBatch]:
    try:
        if source.read(len(MAGIC)) == MAGIC:
            reader = ipc.open_file(source)
            return [reader.get_batch(i) for i in range(reader.num_record_batches)]
        source.seek(0)
        found = list(ipc.open_stream(source))
        while source.tell() < source.size():  # streams that were joined by cat
            found += ipc.open_stream(source)
        return found
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DamagedGroupError(0, 0) from error


def fragments(file: SourceFile) -> list[tuple[int, int]]:
    """Ranges of groups, each of some size.

    Raises:
        ConfigError: it is not Arrow.
    """
    ranges, start, size = list[tuple[int, int]](), 0, 0
    groups = _of(file)
    for i, batch in enumerate(groups, start=1):
        size += batch.nbytes
        if size >= FRAGMENT_BYTES or i == len(groups):
            ranges.append((start, i))
            start, size = i, 0
    return ranges


def schema(file: SourceFile) -> pa.Schema | None:
    """The columns; None in a file without any rows.

    Raises:
        ConfigError: it is not Arrow.
    """
    found = _of(file)
    return found[0].schema if found else None


def _of(file: SourceFile) -> list[pa.RecordBatch]:
    try:
        return batches(file)
    except (OSError, DamagedGroupError) as error:
        reason = getattr(error, "strerror", None) or "damaged, or another format"
        raise ConfigError(f"SOURCE {file.uri}: is not an Arrow file ({reason})") from None


@cached(LRUCache(1024), key=lambda file, number: (file.uri, file.mtime_ns, file.columns, number))
def group(file: SourceFile, number: int) -> TableRows:
    """One group of rows, with the columns that are read.

    Raises:
        DamagedGroupError: there is no such group, or it is not sound: Arrow itself trusts what a file says of places.
        OSError: the file cannot be read.
    """
    found = batches(file)
    if number >= len(found):
        raise DamagedGroupError(number, 0)
    batch = found[number]
    if file.columns is not None:
        names = batch.schema.names  # of which one may be there twice
        batch = batch.select([i for name in file.columns for i, own in enumerate(names) if own == name])
    try:
        batch.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DamagedGroupError(number, found[number].num_rows) from error
    return TableRows(pa.Table.from_batches([batch]))


def first_rows(file: SourceFile, most: int) -> list[Any]:
    """A few rows of the first group; none where it is damaged, which is found when it is measured.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        found = group(file, 0)
    except DamagedGroupError:
        return []
    return [found.row(i) for i in range(min(most, len(found)))]
