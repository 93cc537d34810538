"""A table of a dataset with its texts, whole or in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preshard.schemas.dataset.table import Column, Columns, NumberTable

PART_ROWS = 65_536
"""Most rows of a part that is read: a row group, as the writer makes most of them."""

FETCHED_BYTES = 4 << 20
"""Bytes of a file that are fetched together, unless one row group has more: in an object store each fetch waits."""

MOST_PART_BYTES = 256 << 20
"""Bytes of a text column of a part whose values lie in a dictionary, which says nothing of how often each occurs."""


def lists(means: str, *names: str, length: str, nulls: str = "") -> Columns:
    """Columns of lists of whole numbers that are described together."""
    type_ = pa.list_(pa.int64())
    return tuple(Column(name=name, type=type_, means=means, nulls=nulls, length=length) for name in names)


class TableFile(NumberTable):
    """A table of a dataset, opened for parts of it, texts among them. Not for several threads."""

    _looked_at_texts = False

    def _columns(self, groups: list[int], names: list[str]) -> pa.Table:
        self._keep_dictionaries(names)
        found = self._file.read_row_groups(groups, columns=names, use_threads=not self._sparing)
        return pa.table({name: self._dense(found[name], self.schema.field(name)) for name in names})

    def parts(
        self,
        rows: int = PART_ROWS,
        *,
        groups: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        checked: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The rows in order, with a few of the row groups in memory, valid and as the declaration says.

        Asked for all of them at once, pyarrow fetches them all before the first row passes, and keeps them to the end.

        Args:
            rows: most rows of a part.
            groups: row groups that are wanted, by their numbers; by default all.
            columns: those that are wanted; by default all.
            checked: whether values are held against the declaration.
        """
        wanted = list(range(self.n_groups) if groups is None else groups)
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        fetched, size, threads = list[int](), 0, not self._sparing
        for number, group in enumerate(wanted):
            fetched.append(group)
            size += self.metadata.row_group(group).total_byte_size
            if size < FETCHED_BYTES and number < len(wanted) - 1:
                continue
            with self._errors():
                self._keep_dictionaries(names)
                batches = self._file.iter_batches(rows, row_groups=fetched, columns=names, use_threads=threads)
            while (batch := self._next(batches, schema)) is not None:
                if checked:
                    self.check(batch)
                yield batch
            fetched, size = [], 0

    def _next(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch | None:
        with self._errors():
            batch = next(batches, None)
            if batch is None:
                return None
            found = [self._dense(batch.column(each.name), each) for each in schema]
            dense = pa.RecordBatch.from_arrays(found, schema=schema)
            dense.validate(full=True)
            return dense

    def _dense(self, values: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
        """Values that lie in a dictionary, each at its places."""
        if not pa.types.is_dictionary(values.type) or values.type == field.type:
            return values
        if isinstance(values, pa.ChunkedArray):
            return pa.chunked_array([self._dense(chunk, field) for chunk in values.chunks], field.type)
        longest = pc.max(pc.binary_length(values.dictionary)).as_py() or 0
        if longest * len(values) > MOST_PART_BYTES:
            what = f"{field.name} has a text of {longest:,} bytes among {len(values):,} rows"
            raise self._error(self.name, f"{what}, which together may take {MOST_PART_BYTES:,}")
        return values.cast(field.type)

    def _keep_dictionaries(self, names: Sequence[str]) -> None:
        """Reads texts that lie in a dictionary as they lie there, before the first column of texts is read."""
        if self._looked_at_texts or not any(self.schema.field(name).type == pa.string() for name in names):
            return
        texts = {field.name for field in self.schema if field.type == pa.string()}
        groups = [self.metadata.row_group(number) for number in range(self.n_groups)]
        found = set[str]()
        for place in range(self.metadata.num_columns if groups else 0):
            name = groups[0].column(place).path_in_schema
            if name in texts and any(group.column(place).has_dictionary_page for group in groups):
                found.add(name)
        self._looked_at_texts = True
        if found:
            encoded = sorted(found)
            self._file = pq.ParquetFile(self._opened, metadata=self.metadata, read_dictionary=encoded, **self._settings)
