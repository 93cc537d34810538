"""Reasons why a source holds no rows, each with what would make rows of it."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from preshard.packer_service.ingest.shell import file_argument
from preshard.packer_service.ingest.source.containers.picture_texts import is_medium
from preshard.packer_service.ingest.source.containers.registry import CODECS, SUFFIXES, WHOLE_SUFFIXES
from preshard.packer_service.ingest.source.file import SourceFile
from preshard.packer_service.ingest.source.forms.detect import detect, kinds_of_row, named
from preshard.schemas.files.filesystem import split_query

SHOWN_KEYS = 5
"""Keys of an object that a message names."""

_UNPACK = {".zip": "unzip", ".xz": "xz -dk", ".bz2": "bzip2 -dk", ".7z": "7z x", ".rar": "unrar x"}
_READERS = {".xlsx": "excel", ".xls": "excel", ".pkl": "pickle", ".pickle": "pickle", ".feather": "feather"}
_TEXTS = (".txt", ".md")


_LAKES = {
    "a Delta table": (re.compile(r"(.*/)?_delta_log/[0-9]+[.]json"), "delta_scan"),
    "an Iceberg table": (re.compile(r"(.*/)?metadata/[^/]*[.]metadata[.]json"), "iceberg_scan"),
}
"""Tables of which not every file counts, each with the file that shows one and the function of DuckDB that reads it."""


def of_a_lake(paths: Sequence[str], root: str) -> str | None:
    """The reason why files are not those of a source: a log beside them says which count; None if there is no log."""
    for what, (log, function) in _LAKES.items():
        found = next((found for path in paths if (found := log.fullmatch(path)) is not None), None)
        if found is not None:
            table = posixpath.join(root, found.group(1) or "").rstrip("/")
            query = f"copy (from {function}('{table}')) to 'rows.parquet'"
            return (
                f"{table} is {what}, whose log says which files count; write its rows: duckdb -c {shlex.quote(query)}"
            )
    return None


def beside_pictures(source: str, paths: Sequence[str]) -> str | None:
    """The remedy for a folder of pictures with an object of JSON beside each, as img2dataset writes; None of others."""
    stems = {posixpath.splitext(path)[0] for path in paths if is_medium(path)}
    if not any(path.endswith(".json") and posixpath.splitext(path)[0] in stems for path in paths):
        return None
    make = f"tar --sort=name -cf rows.tar -C {file_argument(source)} ."
    return f"its pictures have an object of JSON beside each; make a WebDataset of them: {make}"


def separated_otherwise(file: SourceFile, columns: Collection[str]) -> str | None:
    """Words on a header of CSV that is a single column because something else separates its names."""
    legal, names = {"csv": ",", "tsv": "\t"}.get(file.kind), list(columns)
    mark = next((mark for mark in ";\t|," if mark != legal and len(names) == 1 and mark in names[0]), None)
    if mark is None or legal is None:
        return None
    name = posixpath.basename(file.label)
    rows = f"pandas.read_csv({json.dumps(name)}, sep={json.dumps(mark)}).to_csv({json.dumps(f'{_stem(name)}.rows.csv')}"
    program = f"import pandas; {rows}, index=False)"
    return f"its columns are separated by {json.dumps(mark)}; write it again: python -c {shlex.quote(program)}"


def without_files(source: str, paths: Sequence[str]) -> str:
    """The reason why no file of a source is one of rows.

    Args:
        source: as the command names it.
        paths: of its files, relative to it; that of a source which is itself a file is empty.
    """
    if is_medium(source) and list(paths) == [""]:
        return "is an image or video and no file of rows; give the rows that name it, or its folder"
    if any(is_medium(path) for path in paths):
        needs = "write a.txt beside each a.jpg, or one metadata.jsonl with the columns file_name and text"
        return f"holds images or videos and no rows; {needs}"
    names = [posixpath.basename(path or split_query(source)[0]) for path in paths]
    if len(names) == 1 and names[0].endswith(".idx"):
        return "is an index; give its .bin"
    legal = ", ".join([*SUFFIXES, *WHOLE_SUFFIXES])
    is_file = list(paths) == [""]
    reason = "is no file of rows; these end" if is_file else "holds no file of rows; these end"
    reason += f" in {legal}, or one of these with {' or '.join(CODECS)} behind it"
    remedy = next((remedy for name in names if (remedy := _remedy(name))), None)
    return reason if remedy is None else f"{reason}; {remedy}"


def _remedy(name: str) -> str | None:
    stem, suffix = posixpath.splitext(name)
    quoted = file_argument(name)
    if suffix.lower() in _UNPACK:
        return f"unpack {name}: {_UNPACK[suffix.lower()]} {quoted}"
    if reader := _READERS.get(suffix.lower()):
        program = f"import pandas; pandas.read_{reader}({json.dumps(name)}).to_parquet({json.dumps(f'{stem}.parquet')})"
        return f"write {name} as Parquet: python -c {shlex.quote(program)}"
    if suffix.lower() in _TEXTS:
        program = f"""for file in ./*{suffix}; do jq -Rsc '{{text: .}}' "$file"; done > texts.jsonl"""
        return f"make each text a row: {program}"
    return None


def without_rows(file: SourceFile, begin: bytes, *, is_all: bool) -> str:
    """The reason why a file of JSON holds no rows.

    Args:
        file: the file.
        begin: its first bytes.
        is_all: whether these are all of it.
    """
    text = begin.decode("utf-8-sig", "replace").strip()
    if not text.startswith("{"):
        return f"{file.label} is {'neither an array nor lines of objects' if text else 'empty'}"
    members, follows = _members(text)
    is_row = detect(kinds_of_row(members)) is not None and not are_numbered(members.values())
    if is_all and (follows or is_row):
        return f"{file.label} does not have each object on a line; write it so: {by_jq('.', file)}"
    keys = ", ".join(named(key) for key in list(members)[:SHOWN_KEYS])
    of_them = f" ({keys}{' ...' if len(members) > SHOWN_KEYS else ''})" if members else ""
    what = f"{file.label} is one object{of_them}"
    values = list(members.values())
    if lists := [key for key, value in members.items() if _is_rows(value)]:
        key = max(lists, key=lambda each: len(members[each]))
        path = f".{key}[]" if key.isidentifier() and key.isascii() else f".[{json.dumps(key)}][]"
        return f"{what}; if {named(key)} holds the rows, write them as lines: {by_jq(path, file)}"
    if _is_columns(values):
        return f"{what} of columns; write rows: {_by_pandas(file)}"
    if values and all(isinstance(value, dict) for value in values):
        path = "to_entries[] | {id: .key} + .value"
        by_key = f"{what} with a row for each key; write them as lines: {by_jq(path, file)}"
        return by_key if (command := _named_dataset(values)) is None else f"{what} that lists datasets; {command}"
    return f"{what} without the columns of a form"


def _named_dataset(values: Sequence[dict[str, Any]]) -> str | None:
    """Command that packs the first dataset of a trainer's list, None for other objects.

    InternVL's lists name ``annotation`` and ``root``, LLaMA-Factory's ``file_name``.
    """
    first = values[0]
    file = first.get("annotation") if "root" in first else first.get("file_name") if "image" not in first else None
    if not isinstance(file, str) or is_medium(file):
        return None
    root = f" --media-root {shlex.quote(first['root'])}" if isinstance(first.get("root"), str) else ""
    return f"pack the files that it names: preshard pack {file_argument(file)}{root} --out packed"


def _is_columns(values: Sequence[Any]) -> bool:
    """Whether these are columns as pandas writes them: lists of one length, or objects with the rows' numbers."""
    if all(isinstance(value, list) for value in values):
        return len(values) > 1 and len({*map(len, values)}) == 1
    return are_numbered(values)


def are_numbered(values: Collection[Any]) -> bool:
    """Whether these are columns whose keys are the numbers of rows, which no row looks like."""
    return bool(values) and all(
        isinstance(value, dict) and value and all(key.isdigit() for key in value) for value in values
    )


def by_jq(path: str, file: SourceFile) -> str:
    """The command that writes what a path of jq gives of a file as lines."""
    name = posixpath.basename(file.label)
    printed = {None: "", "gzip": f"zcat {file_argument(name)} | ", "zstd": f"zstdcat {file_argument(name)} | "}
    given = f" {file_argument(name)}" if file.compression is None else ""
    target = f"{_stem(name)}.jsonl"
    target = f"rows.{name}" if target == name else target  # a shell empties it before jq reads it
    return f"{printed[file.compression]}jq -c {shlex.quote(path)}{given} > {shlex.quote(target)}"


def _by_pandas(file: SourceFile) -> str:
    name = posixpath.basename(file.label)
    to = f'{json.dumps(f"{_stem(name)}.jsonl")}, orient="records", lines=True'
    rows = f"pandas.read_json({json.dumps(name)}).to_json({to})"
    return f"python -c {shlex.quote(f'import pandas; {rows}')}"


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _members(text: str) -> tuple[dict[str, Any], bool]:
    """The members of an object, as far as the text goes, and whether more follows it; a list that is cut is shorter."""
    decoder, found, at = json.JSONDecoder(), dict[str, Any](), 1
    with suppress(ValueError, RecursionError):
        while not text.startswith("}", at := _after(text, at, ",")):
            key, at = decoder.raw_decode(text, at)
            at = _after(text, at, ":")
            try:
                found[str(key)], at = decoder.raw_decode(text, at)
            except ValueError:
                found[str(key)] = list(_elements(text, at + 1)) if text.startswith("[", at) else None
                return found, False
        return found, at + 1 < len(text)
    return found, False


def _elements(text: str, at: int) -> Iterator[Any]:
    with suppress(ValueError):
        while True:
            value, at = json.JSONDecoder().raw_decode(text, _after(text, at, ","))
            yield value


def _after(text: str, at: int, mark: str) -> int:
    """The place behind white space, and one mark that may stand in it."""
    while at < len(text) and (text[at].isspace() or text[at] == mark):
        at += 1
    return at
