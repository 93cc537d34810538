"""Documents whose text or images another one has as well: which of them stays.

Near duplicates are found by MinHash and locality-sensitive hashing (Broder 1997, "On the resemblance and containment of
documents"; Leskovec et al., "Mining of Massive Datasets", chapter 3). Signatures are compared in DuckDB, which keeps on
a disk what does not fit into the memory of a task. Everything is counted in integers and every query has a total
order, so the result depends on the documents alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from duckdb import DuckDBPyConnection

from preshard.packer_service.ingest.source.file import DATASET, SourceFile
from preshard.packer_service.job.planning.measured import PERMUTATIONS
from preshard.packer_service.job.planning.runs import HASH, LOCATED, RUNS, querying
from preshard.packer_service.runtime.executors import TaskCounts
from preshard.packer_service.runtime.scratch import give_back_memory
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import BATCH_ROWS, KeyRange, read_rows, write_rows
from preshard.schemas.config import PackConfig

COPIES_FILE = "duplicates.parquet"
"""File in the work folder with the documents that another one equals."""

FOUND = pa.schema(
    [
        (HASH, pa.uint64()),
        ("file", pa.int64()),
        ("line", pa.int64()),
        ("copy_code", pa.string()),
        ("original", pa.string()),
        ("is_dropped", pa.bool_()),
    ]
)
"""Its columns: the document, how it equals another one, where that one lies, and whether it is left out."""

RECALL = 0.99
"""Share of pairs exactly as similar as ``near`` that bands have to find; more similar ones are found more surely."""

_LINE_BITS = 40
"""Bits of a document's place in the source's order that count the rows of a file."""

_MEASURED_COLUMNS = ("file", "line", "text", "pictures", "media", "signature")

_DOCUMENTS = f"""
    CREATE TABLE documents AS
    SELECT (rank << {_LINE_BITS}) + line AS place, {HASH}, file, line, text, pictures,
        coalesce(media, ''::BLOB) AS media, signature
    FROM measured JOIN ranks USING (file) WHERE text IS NOT NULL
"""

_EQUAL = """
    INSERT INTO copies
    SELECT place, first, '{code}', {is_dropped} FROM living JOIN (
        SELECT {column}, min(place) AS first FROM living WHERE {column} IS NOT NULL GROUP BY {column}
    ) USING ({column}) WHERE place > first
"""

_BAND = """
    INSERT INTO bands
    SELECT {number}, media, band, place FROM (
        SELECT media, signature[{first}:{last}] AS band, place, count(*) OVER (PARTITION BY media, band) AS n
        FROM living WHERE signature IS NOT NULL
    ) WHERE n > 1
"""

_PAIRS = """
    SELECT pairs.place, first, a.signature AS own, b.signature AS other
    FROM documents AS b JOIN (documents AS a JOIN (
        SELECT DISTINCT place, first FROM bands JOIN (
            SELECT number, media, band, min(place) AS first FROM bands GROUP BY number, media, band
        ) USING (number, media, band)
        WHERE place > first AND place NOT IN (SELECT first FROM copies WHERE code = 'near_duplicate')
    ) AS pairs ON a.place = pairs.place) ON b.place = first
"""

_NEAR = """
    INSERT INTO copies
    SELECT place, min(first), 'near_duplicate', {is_dropped} FROM near
    WHERE first NOT IN (SELECT place FROM near) GROUP BY place
"""

_FOLLOW = """
    UPDATE copies
    SET first = other.first, code = CASE copies.code WHEN 'duplicate_text' THEN other.code ELSE copies.code END
    FROM copies AS other WHERE copies.first = other.place
        AND (other.is_dropped OR (copies.code, other.code) = ('duplicate_text', 'near_duplicate'))
"""
"""Points copies of a document that is dropped itself to the one for which it is dropped."""

_RESULT = f"""
    SELECT d.{HASH}, d.file, d.line, code AS copy_code, label || ':' || o.line AS original, is_dropped
    FROM copies JOIN documents AS d USING (place) JOIN documents AS o ON o.place = first
    JOIN labels ON labels.file = o.file ORDER BY d.{HASH}, d.file, d.line
"""


def rows_of_a_band(near: float) -> int:
    """Entries of a signature that make up a band: as many as find a pair of similarity ``near`` nearly always."""
    sizes = [2**power for power in range(int(np.log2(PERMUTATIONS)) + 1)]
    return max(size for size in sizes if size == 1 or 1 - (1 - near**size) ** (PERMUTATIONS // size) >= RECALL)


def find_copies(runs: Sequence[str], files: Sequence[SourceFile], config: PackConfig, work: str) -> TaskCounts:
    """Runs in a task: finds the documents that equal an earlier one, and keeps them as :data:`COPIES_FILE`.

    Documents of packed datasets come first, then those of rows by the name of their file and their row. A document is
    never left out for one that is left out itself.

    Args:
        runs: names of what was measured.
        files: those of the source.
        config: the configuration of the job.
        work: the work folder.
    """
    folder, asked = Folder(work), config.duplicates
    with querying() as tables:
        order = sorted(range(len(files)), key=lambda n: (files[n].kind != DATASET, files[n].label, n))
        ranks = np.empty(len(files), np.int64)
        ranks[order] = np.arange(len(files))
        numbers = np.arange(len(files))
        tables.register("ranks", pa.table({"file": numbers, "rank": ranks}))
        tables.register("labels", pa.table({"file": numbers, "label": pa.array([file.label for file in files])}))
        schema = pa.schema([LOCATED.field(name) for name in (HASH, *_MEASURED_COLUMNS)])
        rows = read_rows(folder / RUNS, runs, KeyRange(HASH, 0, 2**64), schema.names)
        tables.register("measured", pa.RecordBatchReader.from_batches(schema, rows))
        tables.execute(_DOCUMENTS)
        tables.execute("CREATE TABLE copies (place BIGINT, first BIGINT, code VARCHAR, is_dropped BOOLEAN)")
        tables.execute("CREATE VIEW living AS SELECT * FROM documents WHERE place NOT IN (SELECT place FROM copies)")
        steps = [("pictures", "duplicate_images", asked.images), ("text", "duplicate_text", asked.text)]
        for column, code, action in sorted(steps, key=lambda step: step[2] == "mark"):  # what goes is not marked first
            if action != "keep":
                tables.execute(_EQUAL.format(column=column, code=code, is_dropped=action == "drop"))
                tables.execute(_FOLLOW)
            if column == "text" and asked.near is not None:
                _find_near(tables, asked.near, is_dropped=action == "drop")
                tables.execute(_FOLLOW)
        found = tables.sql(_RESULT).to_arrow_reader(BATCH_ROWS)
        write_rows(folder, COPIES_FILE, found, FOUND, by=HASH)
        [(count,)] = tables.execute("SELECT count(*) FROM copies").fetchall()
    give_back_memory()
    return TaskCounts(amounts={"duplicates": count})


def _find_near(tables: DuckDBPyConnection, near: float, *, is_dropped: bool) -> None:
    """Adds documents whose signature is near to that of an earlier one.

    A document is compared with the first of every band that it shares, so the pairs grow with documents and not with
    their square. What is near to such a first one that stays goes; then the next ones are first.
    """
    size = rows_of_a_band(near)
    tables.execute("CREATE TABLE bands (number INTEGER, media BLOB, band BLOB, place BIGINT)")
    for number in range(PERMUTATIONS // size):
        first, last = 4 * size * number + 1, 4 * size * (number + 1)
        tables.execute(_BAND.format(number=number, first=first, last=last))
    least = int(np.ceil(near * PERMUTATIONS))
    while True:
        tables.execute("CREATE OR REPLACE TABLE near (place BIGINT, first BIGINT)")
        tables.register("compared", pa.RecordBatchReader.from_batches(_NEAR_PAIRS, _compare(tables, least)))
        tables.execute("INSERT INTO near SELECT * FROM compared")
        [(count,)] = tables.execute("SELECT count(*) FROM near").fetchall()
        if not count:
            return
        tables.execute(_NEAR.format(is_dropped=is_dropped))
        tables.execute("DELETE FROM bands WHERE place IN (SELECT place FROM copies)")


_NEAR_PAIRS = pa.schema([("place", pa.int64()), ("first", pa.int64())])


def _compare(tables: DuckDBPyConnection, least: int) -> Iterator[pa.RecordBatch]:
    """Pairs of candidates of whose signatures at least so many entries are equal."""
    for batch in tables.cursor().sql(_PAIRS).to_arrow_reader(BATCH_ROWS):
        own, other = (
            np.frombuffer(b"".join(batch[name].to_pylist()), "<u4").reshape(-1, PERMUTATIONS)
            for name in ("own", "other")
        )
        alike = pa.array((own == other).sum(axis=1) >= least)
        yield batch.select(_NEAR_PAIRS.names).filter(alike)
