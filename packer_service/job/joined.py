"""The records of a group of shards joined into a few files, so that finishing reads none per shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from preshard.packer_service.job.record_file import (
    COMPRESSED,
    GROUP,
    ShardRecord,
    decode_record,
    group_folder,
    record_name,
)
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import damaged
from preshard.schemas.codec import encode_json
from preshard.schemas.manifest import WORK
from preshard.schemas.tables import TABLES

ENTRIES = "entries.jsonl"
"""The group's entries of the manifest, one per line."""

READERS = 8
"""Records that are read at the same time: in an object store each takes a request."""

BATCH_ROWS = 65_536
"""Most rows of a joined table that are in memory at once when it is read again."""


def joined_name(group: int, table: str) -> str:
    """The file of a group's rows of a table, in the work folder."""
    return f"{group_folder(group)}/joined/{table}"


def join_group(group: int, n_shards: int, out: str) -> float:
    """Runs in a task: joins the records of one group, and returns the seconds that writing its shards took.

    Args:
        group: its number.
        n_shards: shards of the whole dataset.
        out: the dataset.

    Raises:
        WorkError: a record is damaged.
    """
    work = Folder(out) / WORK
    numbers = range(group * GROUP, min((group + 1) * GROUP, n_shards))
    with ThreadPoolExecutor(max_workers=READERS) as readers:
        records = list(readers.map(lambda number: read_record(work, number), numbers))
    for name, schema in TABLES.items():
        with (
            work.writer(joined_name(group, name)) as sink,
            pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema, options=COMPRESSED) as to,
        ):
            for table in in_batches((record.tables[name] for record in records), BATCH_ROWS):
                to.write_table(table)
    entries = b"".join(encode_json(record.entry) + b"\n" for record in records)
    work.write(joined_name(group, ENTRIES), entries)
    return sum(record.seconds for record in records)


def read_record(work: Folder, shard: int) -> ShardRecord:
    """Reads the record of a shard that an earlier task, or run, has written.

    Raises:
        FileNotFoundError: there is none.
        WorkError: it is damaged.
    """
    name = record_name(shard)
    try:
        return decode_record(work.read(name))
    except (pa.ArrowException, ValueError) as error:
        raise damaged(work, name, error) from None


def joined_rows(work: Folder, groups: Sequence[int], table: str) -> Iterator[pa.Table]:
    """The rows of a table in order of the shards, some thousand at a time."""
    for group in groups:
        with work.stream(joined_name(group, table)) as file, pa.ipc.open_stream(file) as batches:
            for batch in batches:
                yield pa.Table.from_batches([batch])


def joined_entries(work: Folder, groups: Sequence[int]) -> Iterator[bytes]:
    """The entries of all shards, in order, as the manifest holds them."""
    for group in groups:
        yield from work.read(joined_name(group, ENTRIES)).splitlines()


def in_batches(parts: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of so many rows each, the last of fewer."""
    waiting, have = list[pa.Table](), 0
    for part in parts:
        waiting.append(part)
        have += len(part)
        if have < rows:
            continue
        joined = pa.concat_tables(waiting).unify_dictionaries()
        for start in range(0, have - rows + 1, rows):
            yield joined.slice(start, rows).combine_chunks()
        rest = have % rows
        waiting, have = [joined.slice(have - rest)], rest
    if have:
        yield pa.concat_tables(waiting).unify_dictionaries().combine_chunks()
