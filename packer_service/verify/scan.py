"""A table of the dataset, read once in parts and checked as it passes, and its rows again by place."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify.verdict import Faults, Finding
from preshard.schemas.errors import REJECT_CODES, REJECT_STAGES, TableChanged, TableInvalid
from preshard.schemas.manifest import TableEntry
from preshard.schemas.tables import TABLES

PART_ROWS = 65_536
"""Rows of a part: a row group, as the writer makes them."""

LEGAL = {"stage": REJECT_STAGES, "code": REJECT_CODES}
"""Columns that have a list of legal values."""


def check_bytes(folder: Folder, entry: TableEntry) -> Iterator[Finding]:
    """A table has the bytes that the manifest says."""
    size = folder.size(entry.name)
    with folder.open(entry.name) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if size != entry.bytes:
        yield TableChanged, f"has {size} bytes; the manifest says {entry.bytes}"
    elif sha256 != entry.sha256:
        yield TableChanged, f"has the SHA-256 {sha256}; the manifest says {entry.sha256}"


class Values:
    """No value is missing except the scheme of image loads; stages and codes are those of the format."""

    def __init__(self) -> None:
        self.nulls, self._unknown = Counter[str](), dict[str, set[str]]()

    def add(self, part: pa.Table) -> None:
        """Looks at some rows."""
        for name in part.schema.names:
            if part[name].null_count and name != "scheme":
                self.nulls[name] += part[name].null_count
            if name in LEGAL:
                found = set(pc.unique(part[name]).to_pylist()) - {*LEGAL[name], None}
                self._unknown.setdefault(name, set()).update(found)

    def findings(self, names: list[str]) -> Iterator[Finding]:
        """What is wrong with all that was looked at.

        Args:
            names: the table's columns.
        """
        for name in names:
            if self.nulls[name]:
                yield TableInvalid, f"{name} has {self.nulls[name]} nulls"
        for name, legal in LEGAL.items():
            if self._unknown.get(name):
                yield TableInvalid, f"{name} is {min(self._unknown[name])!r}; legal are {', '.join(legal)}"


class TableScan:
    """One pass over a table.

    Attributes:
        rows: rows that passed.
        usable: whether the table could be read to its end, and lacks no value and has no illegal one.
    """

    def __init__(self, folder: Folder, entry: TableEntry) -> None:
        self.folder, self.entry = folder, entry
        self.rows, self.usable = 0, False
        self._values = Values()

    def parts(self, faults: Faults) -> Iterator[pa.Table]:
        """The rows, some at a time, as long as no value is missing; what is wrong is added to the faults.

        What they amount to counts only if the table is usable in the end.
        """
        name = self.entry.name
        faults.extend(check_bytes(self.folder, self.entry), name)
        try:
            yield from self._read()
        except (pa.ArrowException, OSError, ValueError) as error:
            detail = error.detail if isinstance(error, TableInvalid) else _not_parquet(error)
            faults.extend([(TableInvalid, detail)], name)
            return
        if self.rows != self.entry.rows:
            said = f"has {self.rows} rows; the manifest says {self.entry.rows}"
            faults.extend([(TableChanged, said)], name)
        found = list(self._values.findings(TABLES[name].names))
        faults.extend(found, name)
        self.usable = not found

    def _read(self) -> Iterator[pa.Table]:
        schema = TABLES[self.entry.name]
        with self.folder.open(self.entry.name) as opened:
            file = pq.ParquetFile(opened)
            if not file.schema_arrow.equals(schema):
                names = f"{file.schema_arrow.names}, not {schema.names} with their types"
                raise TableInvalid(self.entry.name, f"has the columns {names}")
            for batch in file.iter_batches(PART_ROWS):
                batch.validate(full=True)
                part = pa.Table.from_batches([batch]).cast(schema)
                self._values.add(part)
                self.rows += len(part)
                if not self._values.nulls:
                    yield part


def _not_parquet(error: Exception) -> str:
    return f"is not Parquet ({' '.join(str(error).split())[:200]})"
