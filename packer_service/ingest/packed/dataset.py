"""A packed dataset, opened to take documents out of it: its tables, and the header part of any pack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache
from jaxtyping import Int64

from preshard.packer_service.ingest.cache import recent_values
from preshard.packer_service.ingest.packed.manifest import manifest_of
from preshard.packer_service.ingest.packed.numbers import OwnNumbers
from preshard.packer_service.ingest.packed.tables import StoredTable
from preshard.packer_service.ingest.packed.units import StoredUnits
from preshard.packer_service.ingest.ranges import Range, read_range, read_ranges
from preshard.packer_service.ingest.source.file import RowReference, SourceFile
from preshard.schemas.checksum import check_member
from preshard.schemas.codec import HEAD, SEQUENCE, decode_head, decode_sequence, sample_key, shard_name
from preshard.schemas.config import PackConfig, stored_config
from preshard.schemas.errors import ConfigError, DocumentError, FormatError, PackRowInvalid
from preshard.schemas.filesystem import join
from preshard.schemas.header import read_member, stored_checksum
from preshard.schemas.manifest import SHARDS, ManifestHead, SampleHead
from preshard.schemas.sequence import PackedSequence
from preshard.schemas.tables import DOCUMENTS, PACKS

CACHED_TOKENS = 2**22
"""Most tokens of the packs whose arrays a process keeps: at some 40 bytes per token, 160 MiB. Documents that share a
pack here lie in different packs there."""

_PLACES = ("offset", "header_size", "head_crc32c")
"""Not the shard's name, which follows from the pack's number: a name in a table could lead out of the dataset."""
_ROWS = ("doc_id", "piece", "copy_number", "epoch", "source", "pack_id", "truncated_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPack:
    """The header part of a pack, and where its crops lie: the file and the byte of the first.

    ``encoded_sequence`` is the member that holds the arrays, ``behind`` the tar member after it, not
    checked yet: the layouts. ``dataset`` is what the pack is of, ``where`` names it in errors.
    """

    head: SampleHead
    units: StoredUnits
    numbers: OwnNumbers
    sequence: PackedSequence
    encoded_sequence: bytes
    behind: bytes
    shard: str
    crops_at: int
    dataset: PackedDatasetSource
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRow:
    """A row of ``documents.parquet``.

    ``is_first`` says that the document has no place before this one. ``truncated`` counts the tokens that it lost when
    it was packed; of a document in :attr:`PackedDatasetSource.repeated`, its pieces have them.
    """

    file: SourceFile
    place: RowReference
    doc_id: str
    source: str
    truncated: int
    is_first: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPiece:
    """Where a document, or a piece of one, lies: its pack, its number in it, and the tokens lost after it."""

    piece: int
    place: RowReference
    truncated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPieces:
    """The pieces of one document, from its first copy. ``missing`` says that one was not written."""

    pieces: tuple[StoredPiece, ...]
    missing: bool


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
        return self.manifest.counts.packs

    @cached_property
    def _packs(self) -> pa.Table:
        """Where each pack lies, one row per pack in order."""
        stored = self._table("packs.parquet", _PLACES)
        table = stored.read()
        if len(table) != self.n_packs or stored.schema != pa.schema([PACKS.field(name) for name in _PLACES]):
            raise ConfigError(f"SOURCE {self.file.label}: packs.parquet is not the manifest's; put the file back")
        return table

    def _table(self, name: str, columns: Sequence[str]) -> StoredTable:
        """Columns of a table, whose bytes are checked first.

        Raises:
            ConfigError: it is gone, or is not what the manifest says.
        """
        [entry] = [entry for entry in self.manifest.tables if entry.name == name]
        return StoredTable(self.file.uri, self.file.label, entry, columns)

    @cached_property
    def _documents(self) -> StoredTable:
        return self._table("documents.parquet", _ROWS)

    def rows(self, first_pack: int, end_pack: int) -> list[StoredRow]:
        """The rows of ``documents.parquet`` of some packs."""
        found = self._documents.rows_of(first_pack, end_pack)
        return [self._row(place, row) for place, row in zip(_places(found), found.to_pylist(), strict=True)]

    def _row(self, place: RowReference, row: dict[str, Any]) -> StoredRow:
        several = self.repeated.get(row["doc_id"])
        return StoredRow(
            file=self.file,
            place=place,
            doc_id=row["doc_id"],
            source=row["source"],
            truncated=row["truncated_tokens"] if several is None else 0,
            is_first=several is None or several.pieces[0].place == place,
        )

    @cached_property
    def repeated(self) -> dict[str, StoredPieces]:
        """The documents that lie in several places, or that were split and of which something is lost, by id."""
        counts, was_split = self.manifest.counts, self.config.oversize == "split"
        if counts.pieces == counts.documents and not (was_split and (counts.rejected or counts.truncated_tokens)):
            return {}
        documents, lost = self._documents.read(), pa.array([], pa.string())
        ids = documents["doc_id"]
        counted = pc.value_counts(ids)
        wanted = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        if was_split:
            cut = documents.filter(pc.greater(documents["truncated_tokens"], 0))["doc_id"]
            lost = self._lost()
            wanted = pa.concat_arrays([wanted, cut.combine_chunks(), lost])
        wanted = pc.is_in(ids, wanted)
        places = _places(documents, np.flatnonzero(wanted.to_numpy()))
        found: dict[str, list[tuple[RowReference, dict[str, Any]]]] = {}
        for place, row in zip(places, documents.filter(wanted).to_pylist(), strict=True):
            found.setdefault(row["doc_id"], []).append((place, row))
        incomplete = set(lost.to_pylist())
        return {doc_id: _first_copy(own, doc_id in incomplete) for doc_id, own in found.items()}

    def reject_codes(self) -> dict[str, int]:
        """How many documents were rejected for what."""
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
                raise DocumentError("bad_row", "the shard that holds it is gone") from None
            self.recent[pack_id] = found
        return found

    def load(self, pack_ids: Iterable[int]) -> None:
        """Reads packs that :meth:`pack` is asked for next, several at the same time, as many as are kept.

        What is damaged or gone is left to :meth:`pack`, which says so.

        Raises:
            OSError: the file system failed; no document is at fault.
        """
        missing = [pack_id for pack_id in dict.fromkeys(pack_ids) if pack_id not in self.recent]
        places = [self._place(pack_id) for pack_id in missing[: CACHED_TOKENS // self.config.seq_len]]
        for place, data in zip(places, read_ranges([place.header for place in places]), strict=True):
            if data is not None:
                with suppress(FormatError):
                    self.recent[place.pack_id] = self._decoded(place, bytes(data))

    def _place(self, pack_id: int) -> _Place:
        row = self._packs.slice(pack_id, 1).to_pylist()[0]
        name, start = shard_name(pack_id // self.config.packs_per_shard), row["offset"]
        shard = join(self.file.uri, SHARDS, name)
        where = f"{self.file.label}/{SHARDS}/{name}/{sample_key(pack_id)}"
        return _Place(pack_id, Range(shard, start, start + row["header_size"]), row["head_crc32c"], where)

    def _decoded(self, place: _Place, data: bytes) -> StoredPack:
        key, where = sample_key(place.pack_id), place.where
        content, at = read_member(data, 0, f"{key}.{HEAD}", where)
        check_member(content, place.head_crc32c, f"{where}.{HEAD}")
        head = decode_head(content, f"{where}.{HEAD}")
        arrays, end = read_member(data, at, f"{key}.{SEQUENCE}", where)
        check_member(arrays, stored_checksum(head, SEQUENCE, where), f"{where}.{SEQUENCE}")
        if head.pack_id != place.pack_id:
            raise PackRowInvalid(where, f"holds pack {head.pack_id}, not {place.pack_id}")
        sequence = decode_sequence(arrays, self.config.seq_len, f"{where}.{SEQUENCE}", axes=self.manifest.axes)
        units = StoredUnits.of(head, where)
        return StoredPack(
            head=head,
            units=units,
            numbers=OwnNumbers.of(head, sequence, units, where),
            sequence=sequence,
            encoded_sequence=arrays,
            behind=data[end:],
            shard=place.header.uri,
            crops_at=place.header.end,
            dataset=self,
            where=where,
        )


class _Place(NamedTuple):
    """Where the header part of a pack lies, the checksum of its head, and how errors name it."""

    pack_id: int
    header: Range
    head_crc32c: int
    where: str


def _places(documents: pa.Table, wanted: Int64[np.ndarray, "some"] | slice = slice(None)) -> list[RowReference]:
    """Where documents lie: the pack of each and its number in it. The rows of a pack are all in the table, or none."""
    packs = documents["pack_id"].to_numpy()
    numbers = np.arange(len(packs)) - np.searchsorted(packs, packs)
    pairs = zip(packs[wanted].tolist(), numbers[wanted].tolist(), strict=True)
    return [RowReference(offset=pack, size=number) for pack, number in pairs]


def _first_copy(rows: list[tuple[RowReference, dict[str, Any]]], is_incomplete: bool) -> StoredPieces:
    first = min((row["epoch"], row["copy_number"]) for _, row in rows)
    own = sorted(
        ((place, row) for place, row in rows if (row["epoch"], row["copy_number"]) == first),
        key=lambda item: int(item[1]["piece"]),
    )
    pieces = tuple(
        StoredPiece(piece=row["piece"], place=place, truncated=row["truncated_tokens"]) for place, row in own
    )
    gap = [piece.piece for piece in pieces] != list(range(len(pieces)))
    return StoredPieces(pieces=pieces, missing=gap or is_incomplete)


assert set(_ROWS) <= set(DOCUMENTS.names)


@lru_cache(maxsize=8)
def open_dataset(file: SourceFile) -> PackedDatasetSource:
    """As :meth:`PackedDatasetSource.of`, once per process."""
    return PackedDatasetSource.of(file)
