"""``measures.parquet`` pack by pack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.parquet as pq

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify.scan import PART_ROWS
from preshard.packer_service.verify.verdict import Faults
from preshard.schemas.dataset.measures import MEASURES, MeasureOrder
from preshard.schemas.errors import TableChanged, TableInvalid
from preshard.schemas.manifest import TableEntry

MEASURES_FILE = "measures.parquet"


class MeasuresReader:
    """``measures.parquet`` pack by pack, a block of packs in memory; None from where it can no longer be read."""

    def __init__(self, folder: Folder, faults: Faults, entry: TableEntry | None, order: MeasureOrder) -> None:
        self.faults, self.order = faults, order
        self.files = ExitStack()
        self.failed = entry is None or not folder.is_file(MEASURES_FILE)
        self.batches = order.by_pack(self._batches(folder, entry)) if entry is not None and not self.failed else None
        self.waiting = MEASURES.empty_table()
        self.position = 0

    def _batches(self, folder: Folder, entry: TableEntry) -> Iterator[pa.Table]:
        file = pq.ParquetFile(self.files.enter_context(folder.open(MEASURES_FILE)))
        if not file.schema_arrow.equals(MEASURES):
            names = file.schema_arrow.names
            raise TableInvalid(MEASURES_FILE, f"has the columns {names}, not {MEASURES.names} with their types")
        if file.metadata.num_rows != entry.rows:
            rows = f"has {file.metadata.num_rows} rows; the manifest says {entry.rows}"
            self.faults.extend([(TableChanged, rows)], MEASURES_FILE)
        found = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        if sum(found) == self.order.n_rows and found != (asked := self.order.row_groups()):
            groups = f"has row groups of {str(found)[:80]} rows, not of {str(asked)[:80]}"
            self.faults.extend([(TableInvalid, groups)], MEASURES_FILE)
        for batch in file.iter_batches(batch_size=PART_ROWS):
            table = pa.Table.from_batches([batch])
            table.validate(full=True)
            for name in ("pack_id", "degree"):
                if nulls := table[name].null_count:
                    self.faults.extend([(TableInvalid, f"{name} has {nulls} nulls")], MEASURES_FILE)
            yield table.cast(MEASURES)

    def take(self, start: int, n_rows: int) -> pa.Table | None:
        """Rows from ``start``, fewer at the table's end; None where they were taken before."""
        while self.batches is not None and self.position + len(self.waiting) < start + n_rows:
            self._read_on()
            self._drop(start)
        self._drop(start)
        if self.failed or start < self.position:
            return None
        taken = self.waiting.slice(0, min(n_rows, len(self.waiting)))
        self._drop(start + n_rows)
        # A slice travels to another process with the whole table behind it; a copy does not.
        return taken.take(pa.array(range(len(taken)), pa.int64()))

    def _drop(self, upto: int) -> None:
        """Forgets rows before ``upto``."""
        dropped = min(max(upto - self.position, 0), len(self.waiting))
        self.waiting, self.position = self.waiting.slice(dropped), self.position + dropped

    def _read_on(self) -> None:
        assert self.batches is not None
        try:
            batch = next(self.batches)
        except StopIteration:
            self.batches = None
        except (TableInvalid, pa.ArrowException, OSError, ValueError) as error:
            detail = error.detail if isinstance(error, TableInvalid) else f"cannot be read ({error})"
            self.faults.extend([(TableInvalid, detail)], MEASURES_FILE)
            self.batches, self.failed = None, True
        else:
            self.waiting = pa.concat_tables([self.waiting, batch]).unify_dictionaries()

    def close(self) -> None:
        self.files.close()
