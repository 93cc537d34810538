"""Media that a node does not see, told from media that are missing: the node's fault, and the row's."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.media.reach import open_media
from preshard.packer_service.ingest.source.file import DATASET, Fragment, RowReference
from preshard.packer_service.ingest.source.files import read_row
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.packer_service.job.planning.measured import MeasuredCounts, read_measured
from preshard.packer_service.runtime.executors import TaskError
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError

CODE = "missing_media"
OF_FRAGMENT, OF_JOB = 4, 64
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

    def check(self, fragment: Fragment, result: MeasuredCounts, node: str) -> None:
        """
        Raises:
            TaskError: the driver reads all media of a row that the node has rejected. The fragment will be measured
                again.
        """
        if not (result.rejects.get(CODE) and self.left) or fragment.file.kind == DATASET:
            return
        table = read_measured(self.work, result.kept).measured.table
        for row in table.filter(pc.equal(table["code"], CODE)).slice(0, min(OF_FRAGMENT, self.left)).to_pylist():
            self.left -= 1
            if self._is_whole_here(fragment, row):
                self.work.delete(result.kept.name)
                where = f"{fragment.file.label}, {row['doc_id']}"
                raise TaskError(
                    f"node {node}: {row['message']}, though the driver reads it ({where}); mount the folder of media "
                    "there; finished work is kept"
                )

    def _is_whole_here(self, fragment: Fragment, row: dict[str, int]) -> bool:
        content = read_row(fragment.file, RowReference(offset=row["offset"], size=row["size"]))
        if isinstance(content, DocumentError):
            return False
        try:
            document = parse_row(content, fragment.file.form, self.config)
            for medium in document.media() if isinstance(document, Document) else ():
                with open_media(medium, fragment.file.media):
                    pass
        except (DocumentError, OSError, pa.ArrowException):
            return False
        return True
