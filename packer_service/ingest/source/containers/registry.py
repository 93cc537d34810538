"""The table of containers: which ending of a name says which, and what reads it."""

from __future__ import annotations

from types import ModuleType

from preshard.packer_service.ingest.source.containers import (
    arrow_batches,
    csv_table,
    indexed_tokens,
    json_array,
    json_lines,
    picture_texts,
    row_groups,
    tar_samples,
)

NUMBERED: dict[str, ModuleType] = {"bin": indexed_tokens}
"""Containers whose fragments are ranges of numbers of rows, and whose column is known: ``fragments`` and ``schema``."""

SCANNED: dict[str, ModuleType] = {
    "jsonl": json_lines,
    "json": json_array,
    "csv": csv_table,
    "tsv": csv_table,
    "tar": tar_samples,
    **NUMBERED,
}
"""Containers whose rows are ranges of bytes: ``scan`` finds them, ``decode`` reads one again, and a task measures
``FRAGMENT_BYTES``, or the whole file where there is no such number. ``head_rows`` gives the first rows of a container
that ``scan`` reads as a whole before it gives one."""

TABLES: dict[str, ModuleType] = {"parquet": row_groups, "arrow": arrow_batches, picture_texts.PICTURES: picture_texts}
"""Containers of groups of rows: ``schema``, ``fragments``, ``first_rows``, and one ``group`` by its number."""

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tar": "tar",
    ".csv": "csv",
    ".tsv": "tsv",
    ".bin": "bin",
}
WHOLE_SUFFIXES = {".tgz": ("tar", "gzip")}
CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
"""Codecs of the endings that may follow that of a container that is scanned."""
