"""Media that a node does not see, told from media that are missing: the node's fault, and the row's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.media.reach import open_media
from preshard.packer_service.ingest.source.file import DATASET, Fragment, RowReference, SourceFile
from preshard.packer_service.ingest.source.files import read_row
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.packer_service.job.plan import PLAN_FOLDER, Planned, PlannedShardRef
from preshard.packer_service.job.planning.measured import MeasuredCounts, read_measured
from preshard.packer_service.job.writing.read import read_shard
from preshard.packer_service.job.writing.records import read_record, record_name
from preshard.packer_service.runtime.executors import TaskCounts, TaskError
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError

CODE = "missing_media"
OF_TASK, OF_JOB = 4, 64
"""Most rows that are looked at again: where many are missing, the first ones tell."""


@dataclass(kw_only=True, slots=True)
class Blame:
    """Looks again, in the driver, at rows whose media a node has called missing.

    Args:
        work: the job's work folder.
        config: the job's configuration.
    """

    work: Folder
    config: PackConfig
    left: int = OF_JOB

    def check_measured(self, fragment: Fragment, result: MeasuredCounts, node: str) -> None:
        """
        Raises:
            TaskError: the driver reads all media of a row that the node has rejected. The fragment will be measured
                again.
        """
        if not self._has_missing(result) or fragment.file.kind == DATASET:
            return
        for row in self._first_missing(read_measured(self.work, result.kept).measured.table):
            reference = RowReference(offset=row["offset"], size=row["size"])
            if self._is_whole_here(fragment.file, reference):
                self.work.delete(result.kept.name)
                raise _no_fault_of_rows(node, row["message"], f"{fragment.file.label}, {row['doc_id']}")

    def check_written(self, shard: PlannedShardRef, planned: Planned, result: TaskCounts, node: str) -> None:
        """
        Raises:
            TaskError: as :meth:`check_measured`, of a row that was lost when its shard was written. The shard will be
                written again.
        """
        if not self._has_missing(result):
            return
        number = shard.first_pack // self.config.packs_per_shard
        lost = self._first_missing(read_record(self.work, number).tables["rejects.parquet"])
        packs = read_shard(shard, self.work / PLAN_FOLDER, planned.files, planned.sources)
        documents = {each.row["doc_id"]: each for pack in packs for each in pack if not each.is_stored}
        for row in lost:
            document = documents.get(row["doc_id"])
            if document is not None and self._is_whole_here(document.file, document.reference):
                self.work.delete(record_name(number))
                raise _no_fault_of_rows(node, row["message"], f"{row['location']}, {row['doc_id']}")

    def _has_missing(self, result: TaskCounts) -> bool:
        return self.left > 0 and bool(result.rejects.get(CODE))

    def _first_missing(self, rows: pa.Table) -> list[dict[str, Any]]:
        return rows.filter(pc.equal(rows["code"], CODE)).slice(0, min(OF_TASK, self.left)).to_pylist()

    def _is_whole_here(self, file: SourceFile, reference: RowReference) -> bool:
        self.left -= 1
        content = read_row(file, reference)
        if isinstance(content, DocumentError):
            return False
        try:
            document = parse_row(content, file.form, self.config)
            for medium in document.media() if isinstance(document, Document) else ():
                with open_media(medium, file.media):
                    pass
        except (DocumentError, OSError, pa.ArrowException):
            return False
        return True


def _no_fault_of_rows(node: str, message: str, where: str) -> TaskError:
    return TaskError(
        f"node {node}: {message}, though the driver reads it ({where}); mount the folder of media there; finished work "
        "is kept"
    )
