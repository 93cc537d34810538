"""A packed dataset, opened to take documents out of it: its tables, and the header part of any pack."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache
from jaxtyping import Int64

from preshard.packer_service.ingest.fetch import Range, read_range, read_ranges, recent_values
from preshard.packer_service.ingest.packed.manifest import manifest_of
from preshard.packer_service.ingest.packed.pack import StoredPack
from preshard.packer_service.ingest.source.file import RowReference, SourceFile, SourceRow
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.annotations import ANNOTATIONS, PLACES, kind_of, open_annotations
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.dataset.table import LARGE_BYTES
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import ConfigError, DocumentError, FormatError, PackRowInvalid
from preshard.schemas.files.filesystem import FileRefusedError, join, locate, open_regular
from preshard.schemas.files.printed import several
from preshard.schemas.header import Kept, decode_head, read_member, stored_checksum
from preshard.schemas.manifest import MANIFEST, SHARDS, ManifestHead, TableEntry
from preshard.schemas.members import HEAD, SEQUENCE, check_member, decode_sequence, sample_key, shard_name
from preshard.schemas.tables import DOCUMENTS, documents_schema, open_table

CACHED_TOKENS = 2**22
"""Most tokens of the packs whose arrays a process keeps: at some 40 bytes per token, 160 MiB. Documents that share a
pack here lie in different packs there."""

_PLACES = ("offset", "header_size", "head_crc32c")
"""Columns of a pack's place but for the shard, which follows from its number: a name could lead out of the dataset."""
_ROWS = ("doc_id", "piece", "copy_number", "epoch", "source", "pack_id", "truncated_tokens")


_BUFFER = 8 << 20
"""Bytes that are asked of an object store at a time while a table is hashed."""

_ANY_PACK = (0, np.iinfo(np.int64).max)
"""Range of packs of a row group that does not state one because it has no rows."""


class StoredTable:
    """A Parquet file whose bytes are those that the manifest names. Not for several threads.

    Args:
        dataset: the dataset's URI.
        label: how errors name the dataset.
        entry: the table in the manifest.
        columns: those that are read; None for all.
        manifest: the dataset's.

    Raises:
        ConfigError: it is gone, or is not what the manifest says.
        FormatError: it is not the table that the format declares; also while it is read.
        OSError: it cannot be read.
    """

    def __init__(
        self, dataset: str, label: str, entry: TableEntry, columns: Sequence[str] | None, manifest: ManifestHead
    ) -> None:
        filesystem, path = locate(join(dataset, entry.name))
        try:
            size = None if entry.name == ANNOTATIONS else entry.bytes
            self._opened = open_regular(filesystem, path, entry.name, size)
            if self._opened.size() > LARGE_BYTES:
                self._open(entry, manifest)
            with filesystem.open_input_stream(path, compression=None, buffer_size=_BUFFER) as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        except FileNotFoundError:
            raise ConfigError(f"SOURCE {label}: {entry.name} is missing; put the file back") from None
        except FileRefusedError as error:
            raise ConfigError(f"SOURCE {label}: {error}") from None
        if sha256 != entry.sha256:
            raise ConfigError(f"SOURCE {label}: {entry.name} is damaged (its SHA-256 is another than stored)")
        self._file = self._open(entry, manifest)
        self.columns: list[str] = self._file.schema.names if columns is None else list(columns)
        self._last: tuple[list[int], pa.Table] = ([], self._file.schema.empty_table().select(self.columns))

    def _open(self, entry: TableEntry, manifest: ManifestHead) -> TableFile:
        if entry.name == ANNOTATIONS:
            return open_annotations(self._opened, manifest)
        keep = stored_config(manifest).keep_columns
        return open_table(self._opened, entry.name, rows=entry.rows, keep_columns=keep)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the columns that are read."""
        return pa.schema([self._file.schema.field(name) for name in self.columns])

    @property
    def n_rows(self) -> int:
        """Rows, as the footer counts them."""
        return self._file.n_rows

    def read(self) -> pa.Table:
        """All rows."""
        return self._file.read(columns=self.columns)

    def rows_of(self, first_pack: int, end_pack: int) -> pa.Table:
        """The rows of some packs, in order, from the row groups that have some; ``pack_id`` ascends in the table."""
        least, largest = self._ranges
        groups: list[int] = np.flatnonzero((largest >= first_pack) & (least < end_pack)).tolist()
        if groups != self._last[0]:  # the next packs are often in the same ones
            self._last = (groups, self._file.read(groups, self.columns))
        table = self._last[1]
        start, end = np.searchsorted(table["pack_id"].to_numpy(), (first_pack, end_pack))
        return table.slice(start, end - start)

    @cached_property
    def _ranges(self) -> tuple[Int64[np.ndarray, "groups"], Int64[np.ndarray, "groups"]]:
        """The smallest and the largest ``pack_id`` of each row group, as its footer has them."""
        metadata = self._file.metadata
        place = self._file.schema.names.index("pack_id")  # metadata.schema outlives the file
        found = [metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)]
        ranges = [(each.min, each.max) if each is not None and each.has_min_max else _ANY_PACK for each in found]
        least, largest = np.array(ranges, np.int64).reshape(-1, 2).T
        return least, largest


@dataclass(kw_only=True)
class PackedDatasetSource:
    """A dataset as a container of documents. A place is a pack and the number of a document in it."""

    file: SourceFile
    manifest: ManifestHead
    config: PackConfig
    recent: LRUCache[int, StoredPack] = field(
        default_factory=lambda: recent_values(CACHED_TOKENS, lambda pack: pack.sequence.seq_len)
    )

    @classmethod
    def of(cls, file: SourceFile) -> PackedDatasetSource:
        """A dataset that was listed as a source.

        Raises:
            ConfigError: it has changed since it was listed, or its configuration is not one.
            OSError: it cannot be read.
        """
        manifest = manifest_of(file)
        return cls(file=file, manifest=manifest, config=stored_config(manifest))

    @property
    def n_packs(self) -> int:
        """Packs, by whose number work is dealt: those of the table, which the manifest counts."""
        return self._places.n_rows

    @cached_property
    def _packs(self) -> pa.Table:
        """The place of each pack, one row per pack in order."""
        return self._places.read()

    @cached_property
    def _places(self) -> StoredTable:
        """
        Raises:
            ConfigError: the table is gone, or is not what the manifest says.
        """
        table, packs = self._table("packs.parquet", _PLACES), self.manifest.counts.packs
        if table.n_rows != packs:
            raise ConfigError(
                f"SOURCE {self.file.label}: packs.parquet has {several(table.n_rows, 'row')} and counts.packs of "
                f"{MANIFEST} is {packs:,}; put the files back"
            )
        return table

    def _table(self, name: str, columns: Sequence[str]) -> StoredTable:
        """Columns of a table, whose bytes are checked first.

        Raises:
            ConfigError: it is gone, or is not what the manifest says.
        """
        return StoredTable(self.file.uri, self.file.label, self.manifest.table(name), columns, self.manifest)

    @cached_property
    def _documents(self) -> StoredTable:
        return self._table("documents.parquet", _ROWS)

    def documents_of(self, first_pack: int, end_pack: int) -> pa.Table:
        """All columns of ``documents.parquet`` of some packs, and those that were joined to it."""
        table = self._whole_documents.rows_of(first_pack, end_pack)
        if self._annotations is not None:
            joined = self._annotations.rows_of(first_pack, end_pack)
            if joined["doc_id"] != table["doc_id"]:
                raise ConfigError(f"SOURCE {self.file.label}: {ANNOTATIONS} is not of its documents; annotate again")
            for name in joined.column_names[len(PLACES) :]:
                table = table.append_column(name, joined[name])
        return table

    @cached_property
    def joined_columns(self) -> dict[str, str]:
        """The columns that were joined to the documents, with their types as ``keep_columns`` spells them."""
        fields = [] if self._annotations is None else list(self._annotations.schema)[len(PLACES) :]
        return {each.name: kind_of(each.type) for each in fields}

    def joined_values(self, row: SourceRow, names: Sequence[str]) -> dict[str, Kept]:
        """Values joined to a document, in some of these columns."""
        assert self._annotations is not None, "has columns"
        rows = self._annotations.rows_of(row.reference.offset, row.reference.offset + 1)
        found = rows.slice(row.reference.size, 1).to_pylist()
        if not found or found[0]["doc_id"] != row.doc_id:
            raise ConfigError(f"SOURCE {self.file.label}: {ANNOTATIONS} is not of its documents; annotate again")
        return {name: found[0][name] for name in names}

    @cached_property
    def _annotations(self) -> StoredTable | None:
        """The table joined to the documents, as it was when the dataset was listed."""
        sha256 = None if self.file.dataset is None else self.file.dataset.annotations_sha256
        if sha256 is None:
            return None
        entry = TableEntry(name=ANNOTATIONS, bytes=0, sha256=sha256, rows=self.manifest.counts.pieces)
        return StoredTable(self.file.uri, self.file.label, entry, None, self.manifest)

    @cached_property
    def _whole_documents(self) -> StoredTable:
        return self._table("documents.parquet", documents_schema(self.config.keep_columns).names)

    def rows(self, first_pack: int, end_pack: int) -> list[SourceRow]:
        """The rows of ``documents.parquet`` of some packs, numbered from 0."""
        return self._rows(self._documents.rows_of(first_pack, end_pack))

    def _rows(self, documents: pa.Table, wanted: Int64[np.ndarray, "some"] | None = None) -> list[SourceRow]:
        """Some rows of ``documents.parquet``. The rows of a pack are all in the table, or none."""
        packs = documents["pack_id"].to_numpy()
        in_pack = np.arange(len(packs)) - np.searchsorted(packs, packs)
        wanted = np.arange(len(packs)) if wanted is None else wanted
        columns = [documents[name].take(wanted).to_pylist() for name in ("doc_id", "source", "truncated_tokens")]
        return [
            SourceRow(
                file=self.file,
                number=number,
                reference=RowReference(offset=pack, size=place),
                doc_id=doc_id,
                source=source,
                truncated=truncated,
            )
            for number, (pack, place, doc_id, source, truncated) in enumerate(
                zip(packs[wanted].tolist(), in_pack[wanted].tolist(), *columns, strict=True)
            )
        ]

    def is_first(self, row: SourceRow) -> bool:
        """Whether the document has no place before this one."""
        pieces = self.repeated.get(row.doc_id or "")
        return pieces is None or pieces[0].reference == row.reference

    @cached_property
    def repeated(self) -> dict[str, list[SourceRow]]:
        """The pieces of documents that lie in several places, or that were split and of which something is lost.

        By the documents' ids; those of the first copy, in order.
        """
        counts, was_split = self.manifest.counts, self.config.oversize == "split"
        if counts.pieces == counts.documents and not (was_split and (counts.rejected or counts.truncated_tokens)):
            return {}
        documents = self._documents.read()
        ids = documents["doc_id"]
        counted = pc.value_counts(ids)
        wanted = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        if was_split:
            cut = documents.filter(pc.greater(documents["truncated_tokens"], 0))["doc_id"]
            wanted = pa.concat_arrays([wanted, cut.combine_chunks(), self._lost()])
        places = np.flatnonzero(pc.is_in(ids, wanted).to_numpy())
        order = documents.select(["epoch", "copy_number", "piece"]).take(places).to_pylist()
        found: dict[str, list[tuple[tuple[int, ...], SourceRow]]] = {}
        for numbers, row in zip(order, self._rows(documents, places), strict=True):
            found.setdefault(row.doc_id or "", []).append((tuple(numbers.values()), row))
        copies: dict[str, list[SourceRow]] = {}
        for doc_id, rows in found.items():
            rows.sort(key=lambda item: item[0])
            own = [(numbers, row) for numbers, row in rows if numbers[:2] == rows[0][0][:2]]
            if [piece for (*_, piece), _ in own] != list(range(len(own))):
                self.incomplete.add(doc_id)
            copies[doc_id] = [row for _, row in own]
        return copies

    @cached_property
    def incomplete(self) -> set[str]:
        """Ids of documents that were split and of which a piece was not written. Asked after :attr:`repeated`."""
        return set(self._lost().to_pylist()) if self.config.oversize == "split" else set()

    def reject_codes(self) -> dict[str, int]:
        """Number of rejected documents by code."""
        if not self.manifest.counts.rejected:
            return {}
        counted = pc.value_counts(self._table("rejects.parquet", ["code"]).read()["code"])
        return {row["values"]: row["counts"] for row in counted.to_pylist()}

    def _lost(self) -> pa.Array:
        """Ids of documents that could not be written, in whole or in part."""
        rejects = self._table("rejects.parquet", ["doc_id", "stage"]).read()
        ids: pa.Array = rejects.filter(pc.equal(rejects["stage"], "write"))["doc_id"].combine_chunks()
        return ids

    def pack(self, pack_id: int) -> StoredPack:
        """A pack's head and arrays, checked against their checksums.

        Raises:
            DocumentError: they are damaged or gone.
            OSError: the file system failed; no document is at fault.
        """
        found = self.recent.get(pack_id)
        if found is None:
            try:
                place = self._place(pack_id)
                found = self._decoded(place, read_range(place.header))
            except FormatError as error:
                raise DocumentError("bad_row", f"the pack that holds it is damaged: {error}") from None
            except FileNotFoundError:
                shard = place.where.rpartition("/")[0]
                raise DocumentError("bad_row", f"{shard}, the shard that holds it, is gone") from None
            self.recent[pack_id] = found
        return found

    def load(self, pack_ids: Iterable[int]) -> None:
        """Reads packs that :meth:`pack` is asked for next, several at the same time, as many as are kept.

        What is damaged or gone is left to :meth:`pack`, which says so.

        Raises:
            OSError: the file system failed; no document is at fault.
        """
        wanted = (pack_id for pack_id in dict.fromkeys(pack_ids) if 0 <= pack_id < self.n_packs)
        missing = [pack_id for pack_id in wanted if pack_id not in self.recent]
        places = [self._place(pack_id) for pack_id in missing[: CACHED_TOKENS // self.config.seq_len]]
        for place, data in zip(places, read_ranges([place.header for place in places]), strict=True):
            if data is not None:
                with suppress(FormatError):
                    self.recent[place.pack_id] = self._decoded(place, bytes(data))

    def _place(self, pack_id: int) -> _PackHead:
        if not 0 <= pack_id < self.n_packs:
            raise PackRowInvalid(f"{self.file.label}/packs.parquet", f"has no row of pack {pack_id}")
        row = self._packs.slice(pack_id, 1).to_pylist()[0]
        name, start = shard_name(pack_id // self.config.packs_per_shard), row["offset"]
        shard = join(self.file.uri, SHARDS, name)
        where = f"{self.file.label}/{SHARDS}/{name}/{sample_key(pack_id)}"
        return _PackHead(pack_id, Range(shard, start, start + row["header_size"]), row["head_crc32c"], where)

    def _decoded(self, place: _PackHead, data: bytes) -> StoredPack:
        key, where = sample_key(place.pack_id), place.where
        content, at = read_member(data, 0, f"{key}.{HEAD}", where)
        check_member(content, place.head_crc32c, f"{where}.{HEAD}")
        head = decode_head(content, f"{where}.{HEAD}")
        arrays, end = read_member(data, at, f"{key}.{SEQUENCE}", where)
        check_member(arrays, stored_checksum(head, SEQUENCE, where), f"{where}.{SEQUENCE}")
        if head.pack_id != place.pack_id:
            raise PackRowInvalid(where, f"holds pack {head.pack_id}, not {place.pack_id}")
        return StoredPack.of(
            head,
            decode_sequence(
                arrays,
                self.config.seq_len,
                f"{where}.{SEQUENCE}",
                axes=self.manifest.axes,
                columns=self.config.columns_of_tokens,
            ),
            where,
            encoded_sequence=arrays,
            behind=data[end:],
            shard=place.header.uri,
            crops_at=place.header.end,
            manifest=self.manifest,
            config=self.config,
        )


class _PackHead(NamedTuple):
    """Place of the header part of a pack, the checksum of its head, and how errors name it."""

    pack_id: int
    header: Range
    head_crc32c: int
    where: str


assert set(_ROWS) <= set(DOCUMENTS.names)


@lru_cache(maxsize=8)
def open_dataset(file: SourceFile) -> PackedDatasetSource:
    """Opens a dataset by :meth:`PackedDatasetSource.of`, once per process."""
    return PackedDatasetSource.of(file)
