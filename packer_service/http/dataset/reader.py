"""One whole dataset as the service reads it: table columns and shard ranges, each read once while it is cached."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preshard.packer_service.http.dataset.cache import Cache, size_of
from preshard.packer_service.http.dataset.folder import RefusedError, ServedFolder, reason_of
from preshard.packer_service.http.dataset.shard_list import ShardList, check_shards, read_entries
from preshard.packer_service.http.problems import ProblemError, damaged
from preshard.packer_service.plan.records import FillLimit, Thinned
from preshard.packer_service.report.measures import StoredMeasures
from preshard.packer_service.report.records import StoredFigures
from preshard.packer_service.report.run import decode_run
from preshard.packer_service.report.stored import decode_figures
from preshard.packer_service.report.tables import check_row_groups, numbers_of
from preshard.schemas import VERSION
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.manifest_parts import split_manifest, stored_config
from preshard.schemas.dataset.measures import MeasureOrder
from preshard.schemas.dataset.table import row_group_edges
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import (
    FiguresInvalid,
    PreshardError,
    ShardChanged,
    ShardMissing,
    TableChanged,
    TableInvalid,
    TableMissing,
)
from preshard.schemas.files.filesystem import read_within
from preshard.schemas.manifest import (
    FIGURES,
    LARGEST_FIGURES,
    LARGEST_MANIFEST,
    LARGEST_RUN,
    MANIFEST,
    RUN,
    SHARDS,
    ManifestHead,
)
from preshard.schemas.members import shard_name
from preshard.schemas.tables import TABLES, open_table

T = TypeVar("T")
Stamps = tuple[tuple[int, int] | None, ...]

_LASTING = (FiguresInvalid, TableChanged, TableInvalid, TableMissing, ShardChanged, ShardMissing)
"""Faults that make a whole dataset unusable. Others affect a single sample, and the rest is still served."""

_LARGEST_HASHED_TABLE = 64 << 20
"""Bytes up to which a table is hashed before it is read, which takes some tenths of a second.

Of larger ones only the size and the number of rows are checked.
"""


WHOLE_ROWS = 1 << 18
"""Rows up to which a table's columns are read whole; single rows of a longer one are read by row groups."""


class ServedDataset:
    """A dataset that was whole when it was scanned. Safe for threads.

    ``broken`` says what has been found wrong with it since: it is no longer served until its files have new stamps.
    ``tag`` changes whenever an answer about the dataset can. Tables of at most ``whole_rows`` rows are read whole.
    """

    def __init__(
        self,
        name: str,
        folder: ServedFolder,
        manifest: ManifestHead,
        config: PackConfig,
        shards: ShardList,
        stamps: Stamps,
        tag: str,
        cache: Cache,
    ) -> None:
        self.name = name
        self.folder = folder
        self.manifest = manifest
        self.config = config
        self.shards = shards
        self.stamps = stamps
        self.cache = cache
        self.broken: str | None = None
        self.tokenizers: tuple[str, ...] = ()
        self.tag = tag
        self.n_packs = manifest.counts.packs
        self.order = MeasureOrder.of(self.config, self.n_packs)
        self.whole_rows = WHOLE_ROWS

    @property
    def shard_bytes(self) -> int:
        return int(self.shards.bytes.sum())

    @property
    def run(self) -> tuple[str | None, dict[str, float], FillLimit | None, Thinned | None]:
        """End of packing (RFC 3339), seconds of its phases, the limit of the packs' fill, and videos with fewer frames
        than were asked for, from ``run.json``.

        The files' own times are those of the last copy. Nothing is known where ``run.json`` is missing or malformed.
        """

        def read() -> tuple[str | None, dict[str, float], FillLimit | None, Thinned | None]:
            try:
                run = decode_run(self.folder.read(RUN, LARGEST_RUN))
                finished = datetime.fromisoformat(run.finished or "").astimezone(UTC).isoformat(timespec="seconds")
            except (OSError, ValueError, OverflowError):
                return None, {}, None, None
            return finished, run.seconds, run.limit, run.thinned

        return self.kept(("run",), read, size_of)

    @property
    def figures(self) -> StoredFigures:
        """Figures of the dataset as a whole, as its tables store them.

        Raises:
            ProblemError: 409 the file is not the one that the manifest names.
        """
        return self.kept(("figures",), self._read_figures, size_of)

    def _read_figures(self) -> StoredFigures:
        with self.reading():
            return decode_figures(self.folder.read(FIGURES, LARGEST_FIGURES), self.manifest.figures, self.config)

    def kept(self, key: Any, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """A value that follows from this dataset, made once while there is room for it."""
        return self.cache.get((self.tag, key), make, size)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turns errors of the files into problems of this dataset.

        Raises:
            ProblemError: 409 the files are not what the manifest says; 503 they cannot be read at the moment, or take
                more memory than this process may use.
        """
        try:
            yield
        except FileNotFoundError:
            raise damaged(self.name, "a file is no longer there") from None
        except MemoryError as error:  # Arrow's own is one too
            raise self._too_large(error) from None
        except (PreshardError, pa.ArrowException) as error:
            if isinstance(error.__cause__, MemoryError):
                raise self._too_large(error.__cause__) from None
            if not isinstance(error, PreshardError) or isinstance(error, _LASTING):
                self.broken = reason_of(error)
            raise damaged(self.name, reason_of(error)) from None
        except OSError as error:
            # Parquet's own errors are OSErrors too, but carry no error number
            if error.errno is None and self.folder.is_local and not isinstance(error, RefusedError):
                self.broken = f"a table cannot be read ({' '.join(str(error).split())[:200]})"
                raise damaged(self.name, self.broken) from None
            detail = f"{self.name}: {reason_of(error)}; try again later"
            raise ProblemError(503, "unreadable", "Dataset cannot be read", detail, {"Retry-After": "5"}) from None

    def _too_large(self, error: BaseException) -> ProblemError:
        detail = f"{self.name}: {reason_of(error)}; ask about a part of it, or serve it by itself"
        return ProblemError(503, "too-large", "Too large to read", detail)

    def check_tables(self) -> None:
        """Reads the figures and every table's footer, and hashes the tables that are not large.

        Raises:
            ProblemError: a table is not what the manifest says.
        """
        self._read_figures()
        for name in TABLES:
            with self.parquet(name):
                pass

    def column(self, table: str, name: str) -> pa.ChunkedArray:
        """A column of one of the dataset's tables."""
        return self.kept(("column", table, name), lambda: self._read_column(table, name), lambda column: column.nbytes)

    def n_rows(self, table: str) -> int:
        return self.manifest.table(table).rows

    def numbers(self, table: str, name: str) -> np.ndarray:
        """A column of numbers, as an array."""
        return numbers_of(self.column(table, name))

    def rows(self, table: str, wanted: Sequence[int] | np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
        """Some rows of a table, as dictionaries of the given columns.

        Raises:
            ProblemError: 409 the table has no such row, though others name it.
        """
        places = np.asarray(wanted, np.int64)
        if len(places) and places.max() >= self.n_rows(table):
            raise damaged(self.name, f"{table} has no row {places.max()}")
        if self.n_rows(table) > self.whole_rows:
            return self._rows_of_groups(table, places, list(names))
        columns = [self.column(table, name).take(pa.array(places)).to_pylist() for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _rows_of_groups(self, table: str, places: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [{} for _ in places]
        with self.parquet(table) as file:
            edges = row_group_edges(file.metadata)
            groups = np.searchsorted(edges, places, side="right") - 1
            for group in np.unique(groups).tolist():
                own = np.flatnonzero(groups == group)
                part = file.read([group], names)
                found = part.select(names).take(pa.array(places[own] - edges[group]))
                self._check(table, found)
                for at, row in zip(own.tolist(), found.to_pylist(), strict=True):
                    rows[at] = row
        return rows

    def of_parts(self, table: str, names: Sequence[str], work: Callable[[pa.Table], T]) -> list[T]:
        """Applies ``work`` to each part of a table, in their order: a short one, which is kept, or each row group.

        Row groups are read and worked on side by side.
        """
        if self.n_rows(table) <= self.whole_rows:
            return [work(pa.table({name: self.column(table, name) for name in names}))]
        with self.parquet(table) as file:
            groups = range(file.n_groups)

        def of_group(number: int) -> T:
            with self.parquet(table) as file:  # of its own: no file may be read by two threads at once
                part = file.read([number], names)
                self._check(table, part)
            return work(part)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(of_group, groups))

    def documents_of(self, pack_id: int) -> range:
        """The rows of ``documents.parquet`` that belong to a pack.

        Raises:
            ProblemError: 409 the tables contradict each other.
        """
        edges = self.kept(("document_edges",), self._document_edges, size_of)
        return range(int(edges[pack_id]), int(edges[pack_id + 1]))

    def _document_edges(self) -> np.ndarray:
        edges = np.concatenate([[0], np.cumsum(self.numbers("packs.parquet", "n_documents"))])
        rows = self.n_rows("documents.parquet")
        if edges[-1] != rows or (np.diff(edges) < 0).any():
            raise damaged(self.name, f"documents.parquet has {rows} rows, and packs.parquet counts others")
        return edges

    def _read_column(self, table: str, name: str) -> pa.ChunkedArray:
        with self.parquet(table) as file:
            column = file.read(columns=[name]).column(name)
            self._check(table, pa.table({name: column}))
            # in one chunk, so that it becomes an array without a copy each time
            return pa.chunked_array([column.combine_chunks()]) if pa.types.is_primitive(column.type) else column

    def _check(self, table: str, part: pa.Table) -> None:
        for name in part.column_names:
            self._check_range(table, name, part.column(name))

    def _check_range(self, table: str, name: str, column: pa.ChunkedArray) -> None:
        """Whole numbers are counts, ids, sizes or positions. One that cannot be would end a computation with it."""
        if not pa.types.is_integer(column.type) or not len(column):
            return
        most = {"pack_id": self.n_packs - 1, "start": self.config.seq_len, "length": self.config.seq_len}.get(name)
        least, largest = (value.as_py() for value in pc.min_max(column).values())
        if least is None or least < 0 or (most is not None and largest > most):
            raise TableChanged(table, f"{name} is {least} to {largest}; legal is 0 to {most if most else 'any'}")

    @contextmanager
    def parquet(self, name: str) -> Iterator[TableFile]:
        """An open table; its footer is read and its hash checked once."""
        with self.reading(), self.folder.open(name) as file:
            metadata = self.kept(
                ("footer", name), lambda: self._footer(name, file), lambda found: found.serialized_size
            )
            yield open_table(file, name, keep_columns=self.config.keep_columns, metadata=metadata, sparing=True)

    def _footer(self, name: str, file: Any) -> pq.FileMetaData:
        entry = self.manifest.table(name)
        if entry.bytes <= _LARGEST_HASHED_TABLE:
            digest = hashlib.sha256(file.read()).hexdigest()
            file.seek(0)
            if digest != entry.sha256:
                raise TableChanged(name, f"has the SHA-256 {digest}; the manifest says {entry.sha256}")
        metadata = open_table(file, name, rows=entry.rows, keep_columns=self.config.keep_columns).metadata
        if name == "measures.parquet":
            check_row_groups(metadata, self.order)
        if name == "packs.parquet" and entry.rows != self.n_packs:
            raise TableChanged(name, f"has {entry.rows} rows; the manifest counts {self.n_packs} packs")
        return metadata

    @contextmanager
    def measures(self) -> Iterator[StoredMeasures]:
        """The open ``measures.parquet``."""
        with self.parquet("measures.parquet") as file:
            yield StoredMeasures(config=self.config, order=self.order, file=file)

    def read_range(self, shard: str, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes of a shard from ``offset``.

        Raises:
            ProblemError: 409 the shard is missing, or ends too early.
        """
        with self.reading():
            try:
                with self.folder.open(f"{SHARDS}/{shard}") as file:
                    data = read_within(file, offset, size)
            except FileNotFoundError:
                raise ShardMissing(f"{SHARDS}/{shard}", "is not there") from None
            if len(data) != size:
                raise ShardChanged(f"{SHARDS}/{shard}", f"gives {len(data)} of the {size} bytes from byte {offset}")
            return data


def load_dataset(
    name: str,
    folder: ServedFolder,
    stamps: Stamps,
    cache: Cache,
    *,
    looks_at_shards: bool = True,
) -> ServedDataset:
    """Reads the manifest and compares what it lists with what is there.

    Args:
        name: what the dataset is called.
        folder: where it lies.
        stamps: of its files.
        cache: what it keeps its columns in.
        looks_at_shards: whether to list them. Where another process has, a shard that is missing shows when it is read.

    Raises:
        FormatError: the manifest cannot be read, or a table or shard is missing or has another size.
        ConfigError: its configuration is not legal.
    """
    data = folder.read(MANIFEST, LARGEST_MANIFEST)
    manifest, entries = split_manifest(data, MANIFEST)
    config = stored_config(manifest)
    for table in manifest.tables:
        stamp = folder.stamp(table.name)
        if stamp is None:
            raise TableMissing(table.name, "is not there")
        if stamp[0] != table.bytes:
            raise TableChanged(table.name, f"has {stamp[0]} bytes; the manifest says {table.bytes}")
    stamp, wanted = folder.stamp(FIGURES), manifest.figures.bytes
    if stamp is None or stamp[0] != wanted:
        raise FiguresInvalid(FIGURES, f"has {stamp[0]} bytes; the manifest says {wanted}" if stamp else "is not there")
    tag = hashlib.sha256(repr((VERSION, name, hashlib.sha256(data).hexdigest(), stamps)).encode()).hexdigest()[:32]
    shards = check_shards(read_entries(entries, MANIFEST), config.packs_per_shard, manifest.counts.packs)
    if looks_at_shards:
        _look_at_shards(shards, folder.sizes(SHARDS))
    return ServedDataset(name, folder, manifest, config, shards, stamps, tag, cache)


def _look_at_shards(shards: ShardList, sizes: Mapping[str, int]) -> None:
    for number, wanted in enumerate(shards.bytes.tolist()):
        name = shard_name(number)
        size = sizes.get(name)
        if size is None or f"{name}.idx" not in sizes:
            raise ShardMissing(f"{SHARDS}/{name}", "is not there, or has no index")
        if size != wanted:
            raise ShardChanged(f"{SHARDS}/{name}", f"has {size} bytes; the manifest says {wanted}")
