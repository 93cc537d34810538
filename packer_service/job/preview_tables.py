"""``preshard plan DATASET``: what packing datasets again would give, from their tables alone, in seconds."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packer_service.ingest.packed.manifest import manifest_of
from packer_service.ingest.packed.notes import dataset_notes
from packer_service.ingest.packed.settings import packed_target
from packer_service.ingest.source.file import DATASET, SourceFile
from packer_service.ingest.source.listing import list_sources
from packer_service.job.duplicates import repeated
from packer_service.report.figures import PlanReport
from packer_service.report.stored_lengths import stored_lengths
from packer_service.report.what_if import plan_table
from packer_service.runtime.progress import Progress
from packer_service.shards.store import Folder
from schemas.config import PackConfig, stored_config
from schemas.document_ids import hash_ids

DOCUMENTS_FILE = "documents.parquet"


def plan_tables(
    sources: Sequence[str], config: PackConfig, progress: Progress, dp_sizes: Sequence[int] = ()
) -> PlanReport | None:
    """The figures of packing datasets again, as far as their tables give the same packs as packing them.

    Returns:
        None where the documents themselves have to be looked at: a source is no dataset, a document would be cut or was
        cut with a loss, or an id is in two datasets.

    Raises:
        ConfigError: a key would ask for a dataset's source again.
        PlanError: a data-parallel size does not divide the window.
    """
    files = list_sources(sources, config).files
    if not files or any(file.kind != DATASET for file in files):
        return None
    packed_target(config, files)  # so that keys that need the source are refused
    if any(_was_cut(file) for file in files):
        return None
    table = pa.concat_tables([_lengths(file) for file in files])
    if _would_be_cut(table, config) or repeated(table["doc_id"], hash_ids(table["doc_id"])).any():
        return None
    for note in dataset_notes(files):
        progress.note(note)
    return plan_table(table, config, dp_sizes)


def _was_cut(file: SourceFile) -> bool:
    """Whether pieces of a document may be missing, which only its parts can tell."""
    manifest = manifest_of(file)
    counts = manifest.counts
    return stored_config(manifest).oversize == "split" and bool(counts.rejected or counts.truncated_tokens)


def _lengths(file: SourceFile) -> pa.Table:
    documents = pq.read_table(io.BytesIO(Folder(file.uri).read(DOCUMENTS_FILE)))
    return stored_lengths(documents, stored_config(manifest_of(file)))


def _would_be_cut(table: pa.Table, config: PackConfig) -> bool:
    if config.oversize == "reject" or not len(table):
        return False
    limits = {"tokens": config.seq_len, "images": config.max_images, "patches": config.max_patches}
    most = {name: pc.max(table[name]).as_py() for name in limits}
    return any(limit is not None and most[name] > limit for name, limit in limits.items())
