"""The form of a file's rows, known before any work from its schema or its first rows."""

from __future__ import annotations

import io
import json
import posixpath
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any

import pyarrow as pa

from preshard.packer_service.ingest.media.nearby import found_below, spelled_otherwise
from preshard.packer_service.ingest.media.reach import is_absolute
from preshard.packer_service.ingest.shell import file_argument, ignore_option
from preshard.packer_service.ingest.signatures import BEGIN_BYTES, described, encoding, stand_in
from preshard.packer_service.ingest.source.containers.arrow_values import is_json, is_list, stored_type
from preshard.packer_service.ingest.source.containers.compressed import head, spooled
from preshard.packer_service.ingest.source.containers.csv_table import has_quotes, header_of
from preshard.packer_service.ingest.source.containers.indexed_tokens import with_index
from preshard.packer_service.ingest.source.containers.json_lines import parse_json
from preshard.packer_service.ingest.source.containers.registry import NUMBERED, SCANNED, TABLES
from preshard.packer_service.ingest.source.file import DATASET, SourceFile, reason_of
from preshard.packer_service.ingest.source.files import SCAN_BUFFER, WHOLE
from preshard.packer_service.ingest.source.forms.custom import is_custom, source_hash
from preshard.packer_service.ingest.source.forms.detect import (
    AUTO,
    FLAG,
    KINDS,
    MEDIA,
    MESSAGES,
    NUMBER,
    OBJECT,
    OBJECTS,
    OTHER,
    PLACE_COLUMNS,
    Columns,
    Form,
    detect,
    find_form,
    formless,
    kinds_of_row,
    named,
)
from preshard.packer_service.ingest.source.forms.overlooked import overlooked
from preshard.packer_service.ingest.source.names import root_of
from preshard.packer_service.ingest.source.no_rows import are_numbered, by_jq, separated_otherwise, without_rows
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.files.filesystem import locate

ROWS = 64
"""Rows that are looked at."""
BYTES = 4 * 2**20
"""Bytes of them, of lines: a single one may be as long."""
TRIED = 16
"""Rows of the first file of a form that are parsed before the work begins."""


def look_at(file: SourceFile, config: PackConfig) -> tuple[SourceFile, list[str]] | None:
    """A file with the form of its rows, and its columns that are not read; None for JSON that holds no rows.

    Raises:
        ConfigError: it cannot be read, its columns are those of no form, or one of them must not be overlooked.
    """
    if file.kind == DATASET:
        return file, []
    try:
        if file.kind == "tsv":
            with _whole(file) as opened:
                file = replace(file, quoted=has_quotes(opened, file))
        found = _columns_of(file)
    except OSError as error:
        raise ConfigError(f"SOURCE {file.uri}: cannot be read ({reason_of(error)})") from None
    except ConfigError:
        _check_is_itself(file)
        raise
    if found is None or not found[1]:
        _check_is_itself(file)
    if found is None:
        return None
    kind, every = found
    names = dict(config.rename_columns)
    if twice := [name for name in every if name in names and names[name] in every and names[name] not in names]:
        both = f"{names[twice[0]]} and {twice[0]}, which rename_columns gives this name"
        raise ConfigError(f"SOURCE {file.label}: has {both}; leave one of them out")
    every = {names.get(name, name): holds for name, holds in every.items()}
    file = replace(file, renamed=config.rename_columns)
    columns = {name: holds for name, holds in every.items() if name not in config.ignore_columns}
    detected = detect(columns)
    if kind == "object":
        if detected is None:
            return None
        kind = "jsonl"
    form = find_form(config.form) if config.form != AUTO else detected
    if form is None:
        _check_form(file, columns)
    form = form or MESSAGES  # no row of it can be read, and each is a reject
    if kind in TABLES:
        columns |= _as_they_are(file, form, columns)
    if unread := overlooked(columns, form, config.columns_read):
        raise ConfigError(f"SOURCE {file.label}: {unread}")
    left = [name for name in columns if not form.reads(name, columns) and not _is_named(name, config)]
    read = _read_columns(form, columns, config)
    ready = replace(
        with_index(file) if kind in NUMBERED else file,
        kind=kind,
        form=form.name,
        form_sha256=source_hash(form.name) if is_custom(form.name) else None,
        columns=_as_stored(read, file) if kind in TABLES else None,
        unread=tuple(name for name in every if name not in read) if kind in TABLES else (),
    )
    # Rows of JSON are looked at again while they are measured: these first ones may lack a column of others.
    return ready, left if kind in TABLES else []


def json_without_rows(file: SourceFile) -> str:
    """The reason why a file of JSON holds no rows, and what would make rows of it."""
    with _beginning(file) as opened:
        begin = opened.read(BYTES)
    is_all = len(begin) < BYTES
    if file.compression is not None and is_all and (damage := spooled(file).damage):
        remedy = "" if "again" in damage else "; copy it again"
        return f"{file.label} cannot be decompressed ({damage}){remedy}"
    return without_rows(file, begin, is_all=is_all)


def form_of_rows(rows: Iterable[Any], label: str, config: PackConfig) -> str:
    """The name of the form of rows in memory, by the columns of all of them.

    Raises:
        ConfigError: their columns are those of no form, or one of them must not be overlooked.
    """
    columns = {name: holds for name, holds in _of_rows(rows).items() if name not in config.ignore_columns}
    form = find_form(config.form) if config.form != AUTO else detect(columns)
    if form is None and columns:
        raise ConfigError(f"{label}: {formless(columns)}")
    form = form or MESSAGES  # no row of it can be read, and each is a reject
    if reason := overlooked(columns, form, config.columns_read):
        raise ConfigError(f"{label}: {reason}")
    return form.name


def _check_form(file: SourceFile, columns: Columns) -> None:
    """Raises ``ConfigError`` for columns of no form; without any column, each row is a reject."""
    header = columns or (header_names(file) if file.kind in ("csv", "tsv") else ())
    if (other := separated_otherwise(file, header)) is not None:
        raise ConfigError(f"SOURCE {file.label}: {other}")
    if columns:
        _check_is_itself(file)
        leave_out = f"{ignore_option(file.label)} leaves the file out"
        beside = next((name for name in columns if name.endswith(".json")), None) if file.kind == "tar" else None
        only = f"; columns come from the member KEY.json alone, not from KEY.{beside}" if beside else ""
        raise ConfigError(f"SOURCE {file.label}: {_rows_inside(file) or formless(columns)}{only}; {leave_out}")


def _rows_inside(file: SourceFile) -> str | None:
    """Words on the column that holds the rows, as logs of requests and answers of servers do."""
    row = next((row for row in first_rows(replace(file, columns=None), 1) if isinstance(row, dict)), {})
    for name, value in row.items():
        form = detect(kinds_of_row(value)) if isinstance(value, dict) else None
        if form is not None:
            inside = f"each {named(name)} reads as {form.title}"
            if file.kind not in ("jsonl", "json"):
                return f"{inside}; write its values as rows"
            path = f".{name}" if name.isidentifier() and name.isascii() else f".[{json.dumps(name)}]"
            return f"{inside}; write them as rows: {by_jq(path if file.kind == 'jsonl' else f'.[] | {path}', file)}"
    return None


def _as_they_are(file: SourceFile, form: Form, columns: Columns) -> Columns:
    """Kinds, judged by first rows, of the columns that the form does not read and whose types do not tell."""
    left = [name for name, kind in columns.items() if kind in (OTHER, OBJECT) and not form.reads(name, columns)]
    if not left:
        return {}
    if any(name in PLACE_COLUMNS for name in left):  # their placeholders stand in columns that are read
        left = list(columns)
    rows = [row for row in first_rows(replace(file, columns=_as_stored(left, file)), TRIED) if isinstance(row, dict)]
    return {name: kind for name, kind in _of_rows(rows).items() if KINDS.index(kind) > KINDS.index(columns[name])}


def _check_is_itself(file: SourceFile) -> None:
    """Raises ``ConfigError`` if something else lies in place of a file of which no row can be read."""
    filesystem, path = locate(file.uri)
    with suppress(OSError), filesystem.open_input_file(path) as opened:
        begin = opened.read(BEGIN_BYTES)
        is_text = all(0x20 <= byte < 0x7F for byte in begin[:4])  # as a header of CSV, or the first name in a tar
        if what := stand_in(begin) if is_text or file.compression is not None else described(begin):
            raise ConfigError(f"SOURCE {file.label}: holds no rows; it is {what}")


def _check_is_utf_8(opened: Any, file: SourceFile) -> None:
    """Raises ``ConfigError`` for text of another encoding, of which most lines would be rejects and some would not."""
    wide = encoding(opened.read(BEGIN_BYTES))
    opened.seek(0)
    if wide is not None:
        name = posixpath.basename(file.label)
        convert = f"convert it: iconv -f {wide} -t UTF-8 {file_argument(name)} > {shlex.quote(f'utf8.{name}')}"
        remedy = convert if file.compression is None else "write it again"
        raise ConfigError(f"SOURCE {file.label}: is {wide}, and only UTF-8 is read; {remedy}")


def _read_columns(form: Form, columns: Columns, config: PackConfig) -> tuple[str, ...]:
    read = [name for name in columns if form.reads(name, columns) or _is_named(name, config) or name in PLACE_COLUMNS]
    return tuple(read if form.more is None else sorted(read))


def _as_stored(columns: Iterable[str], file: SourceFile) -> tuple[str, ...]:
    """The names that columns have in a file."""
    names = {name: stored for stored, name in file.renamed}
    return tuple(names.get(name, name) for name in columns)


def _is_named(column: str, config: PackConfig) -> bool:
    """Whether the configuration reads a column, whatever the form."""
    return column in config.columns_read or config.asks_for(column)


def doubt_of(file: SourceFile, config: PackConfig) -> str | None:
    """Says so if each of a file's first rows would be rejected, whatever their images and videos hold."""
    reasons = []
    try:
        for row in first_rows(file, TRIED):
            try:
                if not isinstance(row, DocumentError):
                    parse_row(row, file.form, config, file.unread)
                    return None
                reasons.append(str(row))
            except DocumentError as error:
                reasons.append(str(error))
    except OSError:
        return None  # whoever measures it says what is wrong
    if not reasons:
        return None
    first = "its first row" if len(reasons) == 1 else f"each of its first {len(reasons)} rows"
    return f"{file.label}: {first} would be rejected: {reasons[0]}"


def missing_of(file: SourceFile, named: Sequence[str], typed: Mapping[str, str]) -> str | None:
    """Says so if none of the images and videos that a file's first rows name is there.

    Args:
        file: the file.
        named: its references: see :func:`named_files`.
        typed: the sources as the command names them, by their labels.

    Raises:
        ConfigError: they lie in a folder below, so that an option would find them.
    """
    named = [uri for uri in named if uri and not is_absolute(uri)]
    if file.is_remote or not named or any(file.media.place_of(uri) is not None for uri in named):
        return None
    label, source = file.label.partition("/")[0], root_of(typed[file.label.partition("/")[0]])
    inside = posixpath.dirname(file.label.removeprefix(label).strip("/"))
    folder = posixpath.join(source, inside) if "/" in file.label else posixpath.dirname(source) or "."
    folder = folder.rstrip("/") or "/"
    named_folder = "this folder" if folder == "." else folder
    where = f"the media root or {named_folder}" if file.media_root else named_folder
    for looked, spelled in dict.fromkeys([(file.folder, folder), *([(_root(file, inside), source)] if inside else [])]):
        found = found_below(looked, named[0])
        if found is not None:
            root = posixpath.normpath(posixpath.join(spelled, found))
            option = root if len(typed) == 1 else f"{typed[label]}={root}"
            raise ConfigError(
                f"SOURCE {file.label}: {named[0]}: no such file in {where}; found {posixpath.join(root, named[0])}: "
                f"add --media-root {shlex.quote(option)}"
            )
    one = "the image or video" if len(named) == 1 else f"none of the {len(named)} images and videos"
    is_there = "is not there" if len(named) == 1 else "is there"
    why = f"no such file in {where}{spelled_otherwise((file.media.folder, *file.media.others), named[0])}"
    return f"{file.label}: {one} of its first rows {is_there}, such as {named[0]}: {why}"


def _root(file: SourceFile, inside: str) -> str:
    """The folder of a source, of a file so deep inside of it."""
    return file.folder.removesuffix(inside).rstrip("/") or "/"


def named_files(file: SourceFile, config: PackConfig) -> list[str]:
    """The references to images and videos of a file's first rows."""
    found = list[str]()
    if file.form in ("tokens", "text"):
        return found
    try:
        for row in first_rows(file, TRIED):
            with suppress(DocumentError):
                document = parse_row(row, file.form, config, file.unread)
                media = () if document.is_plain else document.media()
                found += [each.uri for medium in media for each in (medium, *medium.frames) if each.uri is not None]
    except OSError:
        return []
    return found


def _columns_of(file: SourceFile) -> tuple[str, Columns] | None:
    """The container of a file and its columns; None for a file of JSON that holds no rows.

    A file that ends in ``.json`` may be JSON Lines (``jsonl``), or a single line (``object``), which is a row only if
    it has a form.

    Raises:
        ConfigError: a table cannot be read.
        OSError: the file cannot be read.
    """
    if table := TABLES.get(file.kind) or NUMBERED.get(file.kind):
        return file.kind, _of_schema(file, table.schema(file))
    with _beginning(file) as opened:
        if file.kind != "tar":
            _check_is_utf_8(opened, file)
        is_json = file.kind == "json" or (file.kind == "jsonl" and _is_array(opened))
        kind = _kind_of_json(opened) if is_json else file.kind
        return None if kind is None else (kind, _of_rows(_scanned(opened, file, kind, ROWS)))


def first_rows(file: SourceFile, most: int, within: int = WHOLE) -> list[Any]:
    """A few rows of a file, each as its container gives it.

    Args:
        file: the file.
        most: so many rows at most.
        within: bytes that they begin in, of a container whose rows lie in bytes; of a tar, few.

    Raises:
        OSError: the file cannot be read.
    """
    if file.kind in TABLES:
        return [file.named_row(row) for row in TABLES[file.kind].first_rows(file, most)]
    if file.kind not in SCANNED:
        return []
    with _beginning(file) as opened:
        return [file.named_row(row) for row in _scanned(opened, file, file.kind, most, within)]


def column_names(file: SourceFile) -> set[str]:
    """The names of a table's columns; of other files those of their first rows."""
    if file.kind in TABLES:
        names = dict(file.renamed)
        return {names.get(name, name) for name in (*(file.columns or ()), *file.unread)}
    try:
        return {name for row in first_rows(file, TRIED) if isinstance(row, dict) for name in row}
    except OSError:
        return set()  # whoever measures it says what is wrong


def header_names(file: SourceFile) -> list[str]:
    """The names of all columns of CSV, as its header has them."""
    with _beginning(file) as opened:
        return list(file.named_row(dict.fromkeys(header_of(opened, file), "")))


def _scanned(opened: Any, file: SourceFile, kind: str, most: int, within: int = WHOLE) -> Iterator[Any]:
    scanned = "jsonl" if kind == "object" else kind
    if head_rows := getattr(SCANNED[scanned], "head_rows", None):
        return islice(head_rows(opened, file), most if within == WHOLE else min(most, ROWS))
    found = SCANNED[scanned].scan(opened, file, 0, BYTES if scanned == "jsonl" else WHOLE)
    rows = takewhile(lambda row: row.offset < within, (row for row in found if row.is_row))
    return (row.row for row in islice(rows, most))


def _beginning(file: SourceFile) -> Any:
    if file.compression is not None:
        return head(file)
    filesystem, path = locate(file.uri)
    return io.BufferedReader(filesystem.open_input_file(path), SCAN_BUFFER)


@contextmanager
def _whole(file: SourceFile) -> Iterator[Any]:
    if file.compression is not None:
        yield spooled(file).content
        return
    with _beginning(file) as opened:
        yield opened


def _is_array(opened: Any) -> bool:
    """Whether a file is one array of objects, whatever its name says, and not lines of which the first is a list."""
    begin = opened.read(BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
    opened.seek(0)
    line, _, rest = begin.partition(b"\n")
    is_cut = line.strip() == b"[" or line.rstrip().endswith(b",") or not rest.strip()
    return is_cut and begin[:1] == b"[" and begin[1:].lstrip()[:1] == b"{"


def _kind_of_json(opened: Any) -> str | None:
    """``json`` for an array, ``jsonl`` or ``object`` for lines, None for anything else."""
    opened.seek(0)
    begin = opened.read(BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
    opened.seek(0)
    if begin[:1] == b"[":
        return "json"
    line, _, rest = begin.partition(b"\n")
    first = parse_json(line)
    if not isinstance(first, dict) or are_numbered(first.values()):
        return None
    return "jsonl" if rest.lstrip()[:1] == b"{" else "object"


def _of_rows(rows: Iterable[Any]) -> Columns:
    columns: dict[str, str] = {}
    for row in rows:
        for name, kind in kinds_of_row(row).items() if isinstance(row, dict) else ():
            columns[name] = max(kind, columns.get(name, kind), key=KINDS.index)
    return columns


def _of_schema(file: SourceFile, schema: pa.Schema | None) -> Columns:
    types = {} if schema is None else {field.name: stored_type(field.type) for field in schema}
    types = {name: kind for name, kind in types.items() if not pa.types.is_null(kind)}
    texts = tuple(name for name, kind in types.items() if is_json(kind) or (is_list(kind) and is_json(_item(kind))))
    told = _of_rows(first_rows(replace(file, columns=texts), ROWS)) if texts else {}
    return {name: told.get(name) or _kind(kind) for name, kind in types.items()}


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return FLAG
    if any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)):
        return NUMBER
    inner = _item(kind) if is_list(kind) else stored_type(kind)
    if pa.types.is_struct(inner) and {field.name for field in inner} == {"bytes", "path"}:
        return MEDIA
    is_object = pa.types.is_struct(inner) or pa.types.is_map(inner)
    return (OBJECTS if is_list(kind) else OBJECT) if is_object else OTHER


def _item(kind: pa.DataType) -> pa.DataType:
    return stored_type(kind.value_type)
