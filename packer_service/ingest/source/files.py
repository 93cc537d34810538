"""Source files to fragments, and fragments to rows. A row is referred to by its place, so that it can be read again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from packer_service.ingest.source.lines import MAX_LINE_BYTES, Line, read_lines
from packer_service.ingest.source.row_groups import ROW_GROUPS, DamagedGroupError, row_at, rows_of
from schemas.errors import ConfigError, DocumentError
from schemas.filesystem import is_uri, join, locate, split_query

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
FRAGMENT_BYTES = 8 * 2**20
"""Bytes of JSON Lines that one task measures: a few seconds of tokenising. No result depends on it, since rows are
numbered by file."""
MAX_GROUP_ROWS = 2**40
"""Most rows that a damaged row group is believed to have, so that the numbers of later rows stay in 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A file of rows. ``label`` names it in results, and is the same wherever the source lies."""

    label: str
    uri: str
    kind: str
    size: int
    mtime_ns: int

    @property
    def folder(self) -> str:
        """What the URIs in its rows are relative to."""
        path, query = split_query(self.uri)
        return (path.rpartition("/")[0] or "/") + query

    def location(self, line: int) -> str:
        """How results name a row: by the file's label and the row's number from 1."""
        return f"{self.label}:{line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragment:
    """A part of a file that one task measures: lines that begin in bytes ``[start, end)``, or row group ``start``."""

    file: SourceFile
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RowReference:
    """Where a row lies: byte offset and size of its line, or row group and row in it."""

    offset: int
    size: int


def list_sources(sources: Sequence[str]) -> list[SourceFile]:
    """Every JSON Lines and Parquet file of the given files and folders, in the order given, sorted inside a folder.

    Raises:
        ConfigError: a source does not exist, or holds no such file.
    """
    found: list[SourceFile] = []
    for label, source in zip(_labels(sources), sources, strict=True):
        try:
            filesystem, path = locate(source)
            info = filesystem.get_file_info(path)
        except (OSError, ConfigError) as error:
            raise ConfigError(f"SOURCE {source}: {_reason(error)}") from None
        if info.type == fs.FileType.NotFound:
            raise ConfigError(f"SOURCE {source}: no such file or folder")
        files = _folder(filesystem, path) if info.type == fs.FileType.Directory else [info]
        entries = [(info, SUFFIXES.get(os.path.splitext(info.path)[1].lower())) for info in files]  # noqa: PTH122
        rows = [(info, kind) for info, kind in entries if kind is not None]
        if not rows:
            raise ConfigError(f"SOURCE {source}: holds no file that ends in {', '.join(SUFFIXES)}")
        found += [_source_file(label, source, path, info, kind) for info, kind in rows]
    return found


def _labels(sources: Sequence[str]) -> list[str]:
    """The last parts of the sources' paths, numbered where two are the same."""
    names = [split_query(source)[0].rstrip("/").rpartition("/")[2] or "source" for source in sources]
    return [name if names.count(name) == 1 else f"{name}~{names[:i].count(name) + 1}" for i, name in enumerate(names)]


def _folder(filesystem: fs.FileSystem, path: str) -> list[fs.FileInfo]:
    infos = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    return sorted((info for info in infos if info.is_file), key=lambda info: info.path)


def _source_file(label: str, source: str, root: str, info: fs.FileInfo, kind: str) -> SourceFile:
    inside = info.path[len(root) :].strip("/") if info.path != root else ""
    remote = is_uri(source) and not source.startswith("file:")
    return SourceFile(
        label=f"{label}/{inside}" if inside else label,
        uri=info.path if not remote else join(source, inside) if inside else source,
        kind=kind,
        size=info.size,
        mtime_ns=info.mtime_ns or 0,
    )


def list_fragments(files: Sequence[SourceFile]) -> list[Fragment]:
    """Cuts files into fragments, in order.

    Raises:
        ConfigError: a Parquet file cannot be read.
    """
    fragments: list[Fragment] = []
    for file in files:
        if file.kind == "parquet":
            fragments += [Fragment(file=file, start=group, end=group + 1) for group in range(_row_groups(file))]
        else:
            starts = range(0, file.size, FRAGMENT_BYTES)
            fragments += [Fragment(file=file, start=at, end=min(at + FRAGMENT_BYTES, file.size)) for at in starts]
    return fragments


def _row_groups(file: SourceFile) -> int:
    try:
        with _open(file) as opened:
            return pq.ParquetFile(opened).num_row_groups
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise ConfigError(f"SOURCE {file.uri}: is not a Parquet file ({_reason(error)})") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class FragmentRows:
    """A fragment's rows: number in the fragment from 0, reference, and the row or why it cannot be read.

    ``n_lines`` is what later fragments of the file add to their numbers. Blank lines count, but are not rows.
    """

    rows: Iterator[tuple[int, RowReference, Any]]
    n_lines: int


def read_fragment(fragment: Fragment) -> FragmentRows:
    """Reads a fragment.

    Raises:
        OSError: the file cannot be read.
    """
    if fragment.file.kind == "parquet":
        try:
            group = ROW_GROUPS.table(fragment.file.uri, fragment.file.mtime_ns, fragment.start)
        except DamagedGroupError as damage:
            # One reject for all of them: what the footer says of its rows may be damaged as well.
            first = (0, RowReference(offset=fragment.start, size=0), DocumentError("bad_row", str(damage)))
            return FragmentRows(rows=iter([first]), n_lines=min(max(damage.n_rows, 1), MAX_GROUP_ROWS))
        rows = ((i, RowReference(offset=fragment.start, size=i), row) for i, row in enumerate(rows_of(group)))
        return FragmentRows(rows=rows, n_lines=len(group))
    with _open(fragment.file) as opened:
        lines = read_lines(opened, fragment.start, fragment.end)
    parsed = (
        (i, RowReference(offset=line.offset, size=line.size), _parse_line(line))
        for i, line in enumerate(lines)
        if line.data is None or line.data.strip()
    )
    return FragmentRows(rows=parsed, n_lines=len(lines))


def read_row(file: SourceFile, reference: RowReference) -> Any:
    """A row again, by its reference: the row, or why it cannot be read.

    Raises:
        OSError: the file cannot be read any more.
    """
    if file.kind == "parquet":
        try:
            group = ROW_GROUPS.table(file.uri, file.mtime_ns, reference.offset)
        except DamagedGroupError:  # the file was replaced: fewer row groups, or not Parquet at all
            return _gone()
        return row_at(group, reference.size) if reference.size < len(group) else _gone()
    with _open(file) as opened:
        opened.seek(reference.offset)
        return _parse(opened.read(reference.size))


def _gone() -> DocumentError:
    return DocumentError("bad_row", "the row is gone")


def _open(file: SourceFile) -> Any:
    filesystem, path = locate(file.uri)
    return filesystem.open_input_file(path)


def _parse_line(line: Line) -> Any:
    if line.data is None:
        limit = f"more than the limit of {MAX_LINE_BYTES}; split it into several rows"
        return DocumentError("too_long", f"the line has {line.size} bytes, {limit}")
    return _parse(line.data)


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        return DocumentError("bad_row", "the line is not UTF-8")
    except RecursionError:
        return DocumentError("bad_row", "the line's JSON is nested too deeply")
    except ValueError as error:
        return DocumentError("bad_row", f"the line is not JSON ({error})")


def _reason(error: BaseException) -> str:
    strerror = getattr(error, "strerror", None)
    return strerror or " ".join(str(error).split())[:200]
