"""Reasons why a source holds no rows, each with what would make rows of it."""

from __future__ import annotations

import json
import posixpath
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
        return f"{what} with a row for each key; write them as lines: {by_jq(path, file)}"
    return f"{what} without the columns of a form"


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
