"""Pieces of documents brought together: they lie in different packs, so far apart in a table of packed documents."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from preshard.packer_service.job.partition import Partition
from preshard.packer_service.job.runs import RunFacts, read_range, run_name, write_run
from preshard.packer_service.report.stored_lengths import first_copies
from preshard.packer_service.shards.store import Folder
from preshard.schemas.document_ids import hash_ids

PIECES = "pieces"
"""The folder in which rows wait, below the work folder."""


def join_pieces(parts: Iterator[pa.Table], work: Folder, n_rows: int, rows: int) -> Iterator[pa.Table]:
    """The rows of the first copies, in tables that hold every piece of a document that has one among them.

    Args:
        parts: rows of ``documents.parquet`` with ``doc_id``, ``copy_number`` and ``epoch``, some at a time.
        work: a folder of this machine, in which they are sorted by a hash of the id.
        n_rows: how many there are, about.
        rows: how many a table holds, about.
    """
    folder, names = work / PIECES, list[str]()
    for number, part in enumerate(parts):
        found = part.filter(first_copies(part))
        found = found.append_column("id_hash", pa.array(hash_ids(found["doc_id"])))
        names.append(run_name(number, number + 1))
        write_run(folder, names[-1], found, RunFacts(n_documents=len(found), by_source={}))
    n_tables = max(1, -(-n_rows // rows)) if names else 0
    for part in (Partition(number, n_tables) for number in range(n_tables)):
        yield pa.concat_tables([read_range(folder, name, part.low, part.high) for name in names])
    folder.delete_all()
