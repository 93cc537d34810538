"""Tars in the form of WebDataset: neighbouring members whose names differ only in their extension are one row."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import Any

from preshard.packer_service.ingest.source.containers.json_lines import parse_json
from preshard.packer_service.ingest.source.file import Found, SourceFile
from preshard.packer_service.ingest.source.forms.media import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from preshard.schemas.errors import DocumentError

MAX_SAMPLE_BYTES = 512 * 2**20
"""Largest sample that is read: a task holds one at a time."""
TEXTS = ("txt", "text", "caption")
"""Extensions of members that hold text."""
_NAME = re.compile(r"^((?:.*/|)[^./]+)[.]([^/]*)$", re.DOTALL)
"""Key and extension of a member, as webdataset splits them: the extension begins at the first dot of the name."""
_META = re.compile(r"(^|/)__[^/]*__($|/)")
"""Members about the tar itself, which webdataset leaves out too."""


def scan(opened: Any, file: SourceFile, start: int, end: int) -> Iterator[Found]:  # noqa: ARG001
    """Every sample of a tar. What follows a fault is one reject."""
    opened.seek(0)
    sample: list[tarfile.TarInfo] = []
    behind = 0
    try:
        with tarfile.open(fileobj=opened, mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # tarfile keeps every member that it has seen
                if not member.isfile() or _META.search(member.name):
                    continue
                if sample and _key(member) != _key(sample[0]):
                    yield _sample(opened, file, sample)
                    sample = []
                sample.append(member)
                behind = _end(member)
    except (tarfile.TarError, EOFError) as error:
        yield Found(behind, 0, DocumentError("bad_row", f"the tar cannot be read from byte {behind} on ({error})"))
    if sample:
        yield _sample(opened, file, sample)


def _key(member: tarfile.TarInfo) -> str:
    found = _NAME.match(member.name)
    return found.group(1) if found else member.name


def _end(member: tarfile.TarInfo) -> int:
    """The first byte behind a member and what fills its last block."""
    return member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _sample(opened: Any, file: SourceFile, sample: list[tarfile.TarInfo]) -> Found:
    first = sample[0].offset
    size = _end(sample[-1]) - first
    if size > MAX_SAMPLE_BYTES:
        limit = f"more than the limit of {MAX_SAMPLE_BYTES}"
        return Found(first, size, DocumentError("too_long", f"the sample has {size} bytes, {limit}"))
    here = opened.tell()
    opened.seek(first)
    data = opened.read(size)
    opened.seek(here)
    inside = [(member.name, member.offset_data - first, member.size) for member in sample]
    if len(data) < inside[-1][1] + inside[-1][2]:
        return Found(first, size, DocumentError("bad_row", "the tar ends within the sample"))
    return Found(first, size, _made([(name, data[at : at + length]) for name, at, length in inside], file))


def decode(data: bytes, file: SourceFile) -> Any:
    """A row from the bytes of its members.

    ``json`` gives the row's fields, members of text and media are columns: ``txt``, ``image`` or ``images``, ``video``
    or ``videos``; every other one is a column under its extension. Without an ``id``, the tar and the key are it.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            inside = [member for member in tar if member.isfile() and not _META.search(member.name)]
    except (tarfile.TarError, EOFError) as error:
        return DocumentError("bad_row", f"the sample cannot be read ({error})")
    return _made([(one.name, data[one.offset_data : one.offset_data + one.size]) for one in inside], file)


def _made(members: list[tuple[str, bytes]], file: SourceFile) -> Any:
    try:
        return _row(members, file)
    except DocumentError as error:
        return error


def _row(members: list[tuple[str, bytes]], file: SourceFile) -> dict[str, Any]:
    row: dict[str, Any] = {}
    media: dict[str, list[tuple[tuple[int, int], str, bytes]]] = {"image": [], "video": []}
    key = ""
    for order, (name, data) in enumerate(members):
        found = _NAME.match(name)
        if found is None:
            raise DocumentError("bad_row", f"the member {name[:80]!r} has no extension that says what it is")
        key, extension = found.group(1), found.group(2).lower()
        number, _, suffix = extension.rpartition(".")
        kind = "image" if suffix in IMAGE_SUFFIXES else "video" if suffix in VIDEO_SUFFIXES else None
        if kind is not None and (not number or number.isdecimal()):
            media[kind].append(((int(number or -1), order), name, data))
        elif extension == "json":
            row = _fields(data) | row
        elif extension in TEXTS:
            row[extension] = _text(data, extension)
        else:
            row[extension] = data
    for kind, found_media in media.items():
        _add_media(row, kind, sorted(found_media))
    row.setdefault("id", f"{file.label}/{key}")
    return row


def _fields(data: bytes) -> dict[str, Any]:
    value = parse_json(data)
    if isinstance(value, DocumentError):
        raise DocumentError("bad_row", str(value).replace("the line", "the member json"))
    if not isinstance(value, dict):
        return {"json": value}
    return {key: field for key, field in value.items() if field is not None}


def _text(data: bytes, extension: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DocumentError("bad_row", f"the member {extension} is not UTF-8") from None


def _add_media(row: dict[str, Any], kind: str, found: list[tuple[tuple[int, int], str, bytes]]) -> None:
    """Puts members into the row: under the names that its fields give them, else in the order of their numbers."""
    if not found:
        return
    several = f"{kind}s"
    named = next((column for column in (kind, several) if column in row), None)
    if named is None:
        row[kind if len(found) == 1 else several] = found[0][2] if len(found) == 1 else [data for *_, data in found]
        return
    by_name = {name.rpartition("/")[2]: data for _, name, data in found}
    given = row[named] if isinstance(row[named], list) else [row[named]]
    names = [value.rpartition("/")[2] if isinstance(value, str) else None for value in given]
    if sorted(map(str, names)) != sorted(by_name):
        what = f"the sample has {len(found)} members of that kind, which {named} does not name"
        raise DocumentError("bad_row", f"{named} stands in json, and {what}; leave {named} out of json")
    row[named] = [by_name[str(name)] for name in names]
