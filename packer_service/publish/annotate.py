"""``preshard annotate``: joins columns of a table to the documents of a finished dataset, without rewriting it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preshard.packer_service.publish.given_table import read_given
from preshard.packer_service.report.dataset import open_dataset
from preshard.packer_service.runtime.scratch import scratch_folder
from preshard.packer_service.shards.lock import locked
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.connect import connect
from preshard.packer_service.tables.rows import in_batches
from preshard.schemas.dataset.annotations import ANNOTATIONS, PLACES, annotations_schema, open_annotations
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.dataset.passing_rows import PassingRows
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import AnnotationsInvalid, ConfigError, TableInvalid, TableMissing
from preshard.schemas.files.printed import several
from preshard.schemas.manifest import WORK, ManifestHead
from preshard.schemas.tables import open_table

GROUP_ROWS = 65_536
"""Rows of a row group, as those of the other tables."""

_ROW, _ID, _GIVEN = "preshard row", "preshard id", "preshard given"
"""Names that no column may have."""

_JOINED = """
SELECT documents.*, given.* EXCLUDE "preshard id" FROM documents LEFT JOIN given ON doc_id = given."preshard id"
ORDER BY documents."preshard row"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotated:
    """Outcome of a join: ``columns`` by name, to ``documents`` of ``of_documents``; ``unknown`` rows have other ids."""

    columns: list[str]
    documents: int
    of_documents: int
    unknown: int


def annotate(location: str, table: str, *, on: str, columns: Sequence[str] = (), replace: bool = False) -> Annotated:
    """Writes ``annotations.parquet`` into a dataset's folder, whole or not at all; the same table gives the same bytes.

    Columns of earlier calls stay. Documents without a row have null. The table is in memory, the documents are not.

    Args:
        location: the dataset.
        table: path or URI of a Parquet, CSV, TSV or JSON Lines file with one row a document.
        on: its column of documents' ids.
        columns: those that are joined; by default all others.
        replace: whether they may take the place of columns that an earlier call joined.

    Raises:
        ConfigError: there is no such dataset or table; the table cannot be joined, and why.
        FormatError: the dataset is broken.
        FolderInUseError: another process joins columns to it, on a filesystem that has locks.
    """
    folder, manifest = open_dataset(location)
    given = read_given(table, on, columns)
    with locked(folder / WORK):  # two at a time would each keep its own columns alone
        try:
            return _annotate(folder, manifest, given, table, on=on, replace=replace)
        finally:
            (folder / WORK).delete_all()


def _annotate(
    folder: Folder, manifest: ManifestHead, given: pa.Table, table: str, *, on: str, replace: bool
) -> Annotated:
    location = folder.location
    names = [name for name in given.column_names if name != on]
    with _before(folder, manifest) as before:
        has = before.schema.names[len(PLACES) :] if folder.is_file(ANNOTATIONS) else []
        again = [name for name in has if name.lower() in {each.lower() for each in names}]
        if again and not replace:
            raise ConfigError(
                f"DATASET {location}: has the annotation {again[0]!r} already; give --replace, or rename the column"
            )
        stays = {name: before.schema.field(name).type for name in has if name not in again}
        try:
            schema = annotations_schema(stays | {name: given.schema.field(name).type for name in names}, manifest)
        except ValueError as error:
            raise ConfigError(f"TABLE {table}: {error}") from None
        found = np.zeros(len(given), np.bool_)
        numbered = given.rename_columns([_ID, *names]).append_column(_GIVEN, pa.array(np.arange(len(given))))
        with folder.writer(ANNOTATIONS) as sink:
            with pq.ParquetWriter(pa.PythonFile(sink, "w"), schema, compression="zstd", write_page_checksum=True) as to:
                for part in _joined(_numbered(before, [*PLACES.names, *stays]), numbered):
                    found[part[_GIVEN].drop_null().to_numpy()] = True
                    to.write_table(part.select(schema.names).cast(schema), row_group_size=GROUP_ROWS)
            if not found.any():
                raise ConfigError(_nothing_matches(location, table, on, given, before))
    return Annotated(
        columns=sorted(names),
        documents=int(found.sum()),
        of_documents=manifest.counts.documents,
        unknown=int((~found).sum()),
    )


@contextmanager
def _before(folder: Folder, manifest: ManifestHead) -> Iterator[TableFile]:
    """The table that columns are joined to: the annotations that there are, or else the documents."""
    name = ANNOTATIONS if folder.is_file(ANNOTATIONS) else "documents.parquet"
    try:
        with folder.open(name) as opened:
            if name == ANNOTATIONS:
                yield open_annotations(opened, manifest)
            else:
                keep = stored_config(manifest).keep_columns
                yield open_table(opened, name, rows=manifest.counts.pieces, keep_columns=keep)
    except FileNotFoundError:
        raise TableMissing(name, "is not there") from None
    except (TableInvalid, AnnotationsInvalid) as error:
        what = f"{error.where} {error.detail}"
        raise ConfigError(f"DATASET {folder.location}: {what}; preshard verify says more") from None


def _numbered(file: TableFile, columns: Sequence[str]) -> PassingRows:
    """The rows with their numbers, as they are read."""
    fields = [file.schema.field(name) for name in columns]

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in file.parts(GROUP_ROWS, columns=columns):
            yield batch.append_column(_ROW, pa.array(np.arange(first, first + len(batch))))
            first += len(batch)

    return PassingRows(pa.schema([*fields, (_ROW, pa.int64())]), batches())


def _joined(documents: PassingRows, given: pa.Table) -> Iterator[pa.Table]:
    """The documents in their order, each with its row of the table or nulls, so many rows at a time."""
    with (
        scratch_folder("preshard-annotate-") as scratch,
        connect({"documents": documents, "given": given}, scratch=scratch) as tables,
    ):
        reader = tables.sql(_JOINED).to_arrow_reader(GROUP_ROWS)
        # DuckDB's batches may differ from run to run
        yield from in_batches((pa.Table.from_batches([batch]) for batch in reader), GROUP_ROWS)


def _nothing_matches(location: str, table: str, on: str, given: pa.Table, before: TableFile) -> str:
    first = next((batch["doc_id"][0].as_py() for batch in before.parts(1, columns=["doc_id"])), None)
    ids = pc.cast(given[on], pa.string())
    such = f", such as {ids[0].as_py()!r:.80}" if len(ids) else ""
    has = "no documents" if first is None else f"documents such as {first!r:.80}"
    return (
        f"TABLE {table}: has no id of DATASET {location}: its {several(len(given), 'id')}{such}, against {has}; "
        "--on COLUMN names the one with the documents' ids"
    )
