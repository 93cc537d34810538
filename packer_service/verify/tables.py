"""The dataset's tables: their values, and that every source document is in exactly one place.

Every table is read in parts. What rows have to do with each other follows from sums, from the order in which they come,
or is asked of DuckDB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.runtime.scratch import scratch_folder
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.connect import connect
from preshard.packer_service.verify.folder import check_counts, check_dataset_id, check_numbered, check_total
from preshard.packer_service.verify.pieces import LaterPieces
from preshard.packer_service.verify.scan import (
    MEASURES_FILE,
    DocumentOrder,
    PackSpan,
    TableScan,
    check_bytes,
    stored_table,
)
from preshard.packer_service.verify.verdict import Faults, Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.identity import dataset_id
from preshard.schemas.dataset.passing_rows import PassingRows
from preshard.schemas.errors import DUPLICATES, DocumentLost, DocumentTwice
from preshard.schemas.manifest import MANIFEST, Manifest, TableEntry
from preshard.schemas.tables import REJECTS, TABLES

ID_MIB = 256
"""Memory that comparing ids takes before it spills into a temporary folder."""

_BY_ID = """
WITH packed AS (
  SELECT doc_id, count(DISTINCT piece) AS pieces, max(piece) AS last FROM documents GROUP BY doc_id
), lost AS (
  SELECT doc_id, count(*) FILTER (own) AS own, count(*) FILTER (again) AS again, count(*) FILTER (written) AS written,
    min(code) FILTER (own) AS own_code, min(code) FILTER (written) AS written_code
  FROM (
    SELECT doc_id, code, stage = 'write' AS written, NOT written AND code = 'duplicate_row' AS again,
      NOT written AND NOT again AS own FROM rejects
  ) GROUP BY doc_id
), ids AS (
  SELECT doc_id, own_code, written_code, last, coalesce(pieces, 0) AS pieces, coalesce(own, 0) AS own,
    coalesce(again, 0) AS again, coalesce(written, 0) AS written, coalesce(last + 1 - pieces, 0) AS missing
  FROM packed FULL JOIN lost USING (doc_id)
)
"""
"""Fate of each id: its pieces, and its rejects of its own, as a row equal to another, and when written."""

_TOTALS = """
SELECT count(*) FILTER (pieces > 0) AS packed,
  coalesce(sum(own + again), 0)::BIGINT + count(*) FILTER (pieces = 0 AND written > 0) AS rejected FROM ids
"""

_NUMBERED = "SELECT count(*) FILTER (regexp_matches(doc_id, '#([2-9]|[1-9][0-9]+)$')) AS named FROM ids"

_RULES = (
    (DocumentTwice, "own > 1", "is rejected {own} times"),
    (DocumentTwice, "own > 0 AND pieces > 0", "is packed, and rejected with {own_code}"),
    (DocumentTwice, "whole > 0 AND pieces > 0", "is packed, and rejected with {written_code}"),
    (DocumentTwice, "own > 0 AND written > 0", "is rejected with {own_code}, and again when written"),
    (DocumentTwice, "whole > 1", "is rejected {whole} times when written"),
    (
        DocumentLost,
        "again > 0 AND pieces + own + written = 0",
        "is rejected as a duplicate; no other row has its id",
    ),
    (DocumentLost, "missing > written - whole", "lacks {missing} of the pieces 0 to {last}"),
)
"""Conditions that must not hold for an id, and the message on one for which they do. ``whole`` are those lost in
writing where documents are not split; of others, each loss is a gap among the pieces."""

_REPEATED = (
    (
        "SELECT doc_id, piece, count(*) AS n FROM documents GROUP BY doc_id, piece, copy_number, epoch HAVING n > 1",
        "document {doc_id!r}, piece {piece}, is packed {n} times",
    ),
    (
        "SELECT doc_id, pack_id, count(DISTINCT (copy_number, epoch)) AS n FROM documents "
        "GROUP BY doc_id, pack_id HAVING n > 1",
        "pack {pack_id} holds {n} copies of document {doc_id!r}",
    ),
)
"""Rows of documents that there may not be."""


_UNEVEN = """
SELECT doc_id, piece, count(DISTINCT epoch) AS epochs, count(DISTINCT copy_number) AS copies, count(*) AS n,
  max(copy_number) + 1 AS numbers FROM documents
WHERE doc_id NOT IN (SELECT doc_id FROM rejects WHERE stage = 'write')
GROUP BY doc_id, piece HAVING epochs <> {epochs} OR copies <> numbers OR n <> epochs * copies ORDER BY ALL
"""
"""Documents that are not as often in one epoch as in the next, or whose copies are not numbered from 0."""


Ask = Callable[[str], Iterable[dict[str, Any]]]
"""Gives the rows of an answer about the tables ``documents`` and ``rejects``."""


def fetch(tables: duckdb.DuckDBPyConnection, sql: str) -> Iterator[dict[str, Any]]:
    """The rows of an answer, one in memory at a time."""
    answer = tables.execute(sql)
    names = [column[0] for column in answer.description]
    for row in iter(answer.fetchone, None):
        yield dict(zip(names, row, strict=True))


def count_documents(ask: Ask) -> tuple[int, int]:
    """Numbers of source documents that are packed, whole or in part, and of those that are not packed at all."""
    [totals] = ask(_BY_ID + _TOTALS)
    return totals["packed"], totals["rejected"]


def check_documents(ask: Ask, config: PackConfig) -> Iterator[Finding]:
    """Every id is packed once, or rejected once; its pieces are all there."""
    for sql, said in _REPEATED:
        for row in ask(f"{sql} ORDER BY ALL"):
            yield DocumentTwice, said.format(**row)
    if config.epochs > 1 or config.mixture:
        for row in ask(_UNEVEN.format(epochs=config.epochs)):
            found = "{n} times, in {epochs} epochs, as {copies} copies numbered below {numbers}".format(**row)
            yield DocumentLost, f"document {row['doc_id']!r}, piece {row['piece']}, is packed {found}"
    broken, whole = [condition for _, condition, _ in _RULES], "0" if config.oversize == "split" else "written"
    for row in ask(
        f"{_BY_ID} SELECT [{', '.join(broken)}] AS broken, * FROM (SELECT *, {whole} AS whole FROM ids) "
        f"WHERE {' OR '.join(broken)} ORDER BY doc_id"
    ):
        for (error, _, said), holds in zip(_RULES, row["broken"], strict=True):
            if holds:
                yield error, f"document {row['doc_id']!r} {said.format(**row)}"


BY_ID = {"documents": ["doc_id", "piece", "copy_number", "epoch", "pack_id"], "rejects": ["doc_id", "stage", "code"]}
"""The columns of each table that say what became of a document."""

COUNTED = {
    "packs.parquet": {
        "tokens": "n_tokens",
        "padding_tokens": "n_padding",
        "images": "n_images",
        "patches": "n_patches",
    },
    "documents.parquet": {"truncated_tokens": "truncated_tokens"},
}
"""Counts of the manifest that are sums of a table's columns, by table."""


@dataclass(kw_only=True)
class TablesFound:
    """Facts of the tables once they were read.

    Attributes:
        rows: of each table that is usable.
        spans: the packs of neighbouring documents; None where the table is not usable.
        pieces: the pieces behind which something was cut away.
    """

    rows: dict[str, int] = field(default_factory=dict)
    spans: list[PackSpan] | None = None
    pieces: LaterPieces = field(default_factory=LaterPieces)


class TableCheck:
    """Checks all tables but the measures, which are read with the shards.

    Args:
        folder: the dataset.
        manifest, config: its manifest and configuration.
        faults: hears what is wrong.
    """

    def __init__(self, folder: Folder, manifest: Manifest, config: PackConfig, faults: Faults) -> None:
        self._folder, self._manifest, self._config, self._faults = folder, manifest, config, faults
        self._sums, self._found = Counter[str](), TablesFound()
        self._order = DocumentOrder(manifest.counts.packs)
        self._dataset_id, self._lost_in_writing = "", 0

    def run(self) -> TablesFound:
        """Reads every table once, and what says what became of a document again."""
        for name in TABLES:
            if self._folder.is_file(name):
                self._scan(self._manifest.table(name))
        self._relations()
        return self._found

    def _scan(self, entry: TableEntry) -> None:
        if entry.name == MEASURES_FILE:
            self._faults.extend(check_bytes(self._folder, entry), entry.name)
            return
        scan = TableScan(self._folder, entry, self._config)
        parts = self._summed(entry.name, scan.parts(self._faults))
        if entry.name == "documents.parquet":
            manifest = self._manifest
            self._dataset_id = dataset_id(self._config, manifest.tokenizer, manifest.model, parts)
        else:
            for _ in parts:
                pass
        if scan.usable:
            self._found.rows[entry.name] = scan.rows
            if entry.name == "documents.parquet":
                self._found.spans = self._order.spans

    def _summed(self, name: str, parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The parts, once they are counted."""
        for part in parts:
            for count, column in COUNTED.get(name, {}).items():
                self._sums[count] += pc.sum(part[column]).as_py() or 0
            if name == "documents.parquet":
                self._order.add(part)
                self._found.pieces.add_documents(part)
            if name == "rejects.parquet":
                self._found.pieces.add_rejects(part)
                self._lost_in_writing += pc.sum(pc.equal(part["stage"], "write")).as_py() or 0
                self._sums["duplicates"] += pc.sum(pc.is_in(part["code"], pa.array(DUPLICATES))).as_py() or 0
            yield part

    def _relations(self) -> None:
        """Checks the tables against each other and against the manifest."""
        has_documents, has_rejects = (f"{name}.parquet" in self._found.rows for name in ("documents", "rejects"))
        packed, findings = 0, list[Finding]()
        if has_documents:
            names = ("documents", "rejects") if has_rejects else ("documents",)
            with (
                scratch_folder("preshard-verify-") as scratch,
                connect(scratch=scratch, memory_mib=ID_MIB) as database,
            ):
                ask = partial(self._ask, database, names)
                packed, rejected = count_documents(ask)
                if has_rejects:
                    findings += check_total(self._manifest, packed, rejected)
                    if self._manifest.counts.numbered:
                        [named] = ask(_BY_ID + _NUMBERED)
                        findings += check_numbered(self._manifest, named["named"])
                    self._faults.extend(check_documents(ask, self._config), "documents.parquet")
        self._faults.extend([*check_counts(self._manifest, self._derived(packed)), *findings], MANIFEST)
        if has_documents:
            self._faults.extend(self._order.findings(), "documents.parquet")
        # the plan is documents.parquet unless a document was lost in writing: the place that it had is not stored
        if has_documents and has_rejects and not self._lost_in_writing:
            self._faults.extend(check_dataset_id(self._manifest, self._dataset_id), MANIFEST)

    def _ask(self, database: duckdb.DuckDBPyConnection, names: Sequence[str], sql: str) -> Iterator[dict[str, Any]]:
        """The rows of an answer about tables, of which those that are not named have no rows."""
        with ExitStack() as stack:
            rows: dict[str, Any] = {"rejects": REJECTS.empty_table()}
            for name in names:
                file = stored_table(stack.enter_context(self._folder.open(f"{name}.parquet")), f"{name}.parquet")
                columns = BY_ID[name]
                schema = pa.schema([file.schema.field(column) for column in columns])
                rows[name] = PassingRows(schema, file.parts(columns=columns, checked=False))
            yield from fetch(stack.enter_context(connect(rows, database=database)), sql)

    def _derived(self, distinct: int) -> dict[str, int]:
        """The counts that usable tables give."""
        usable, derived = self._found.rows, dict[str, int]()
        if "packs.parquet" in usable:
            derived = {"packs": usable["packs.parquet"]}
            derived |= {count: self._sums[count] for count in COUNTED["packs.parquet"]}
        if "documents.parquet" in usable:
            derived |= {"documents": distinct, "pieces": usable["documents.parquet"]}
            derived |= {count: self._sums[count] for count in COUNTED["documents.parquet"]}
        if "rejects.parquet" in usable:
            derived["duplicates"] = self._sums["duplicates"]
        return derived
