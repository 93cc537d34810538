"""``preshard plan --export FILE``: which documents share a pack, for trainers that tokenise themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from preshard.packer_service.job.plan import PLACES, Planned
from preshard.schemas.errors import ConfigError

EXPORTED = pa.schema(
    [
        *((name, pa.int64()) for name in ("pack_id", *PLACES)),
        ("doc_id", pa.string()),
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("file", pa.dictionary(pa.int32(), pa.string())),
        *((name, pa.int64()) for name in ("line", "piece", "copy_number", "epoch", "images", "truncated")),
    ]
)


def check_export(file: Path) -> None:
    """Checks before hours of measuring whether a plan can be written there.

    Raises:
        ConfigError: it is a folder, or its folder does not exist or takes no files.
    """
    if file.is_dir():
        raise ConfigError(f"--export {file}: is a folder; name a file, for example {file / 'plan.parquet'}")
    if not file.parent.is_dir():
        raise ConfigError(f"--export {file}: the folder {file.parent} does not exist")
    if not os.access(file.parent, os.W_OK):
        raise ConfigError(f"--export {file}: the folder {file.parent} is not writable")


def export_plan(planned: Planned, file: Path) -> None:
    """Writes a row for each piece and copy of a document, by pack and start.

    The file appears when it is complete, in place of one that was there.

    Args:
        planned: the plan.
        file: Parquet with the columns :data:`EXPORTED`; ``file`` and ``line`` say where the document lies, ``file``
            null where only lengths or tables were read.
    """
    names = {
        "source": ("source_number", pa.array(planned.sources, pa.string())),
        "file": ("file", pa.array([each.uri for each in planned.files], pa.string())),
    }
    wanted = [name for name in EXPORTED.names if name not in names]
    columns = [*wanted, *(column for column, _ in names.values())]
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with pq.ParquetWriter(temporary, EXPORTED) as writer:
            for table in planned.rows(columns):
                found = {name: table[name] for name in wanted}
                for name, (column, values) in names.items():
                    found[name] = _named(table[column], values)
                writer.write_table(pa.table([found[name] for name in EXPORTED.names], schema=EXPORTED))
        temporary.replace(file)
    except OSError as error:
        raise ConfigError(f"--export {file}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _named(numbers: pa.ChunkedArray, values: pa.Array) -> pa.DictionaryArray:
    """Numbers as the names they stand for; null if there are no names."""
    indices = numbers.combine_chunks().cast(pa.int32())
    if not len(values):
        indices = pa.nulls(len(indices), pa.int32())
    return pa.DictionaryArray.from_arrays(indices, values)
