"""Tars in the form of WebDataset: neighbouring members whose names differ only in their extension are one row.

Hard and symbolic links are read as the members that they stand for, and sparse members with their holes, as ``tarfile``
reads them. A key whose members stand apart, of which webdataset would make several samples, is a reject.
"""

from __future__ import annotations

import io
import posixpath
import re
import shutil
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from cachetools import LRUCache

from preshard.packer_service.ingest.source.containers.compressed import read_content
from preshard.packer_service.ingest.source.containers.json_lines import parse_json
from preshard.packer_service.ingest.source.file import Found, SourceFile
from preshard.packer_service.ingest.source.forms.fields import is_text
from preshard.packer_service.ingest.source.forms.inline import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from preshard.schemas.errors import LOST_ROWS, DocumentError

MAX_SAMPLE_BYTES = 512 * 2**20
"""Largest sample that is read: a task holds one at a time."""
READ_BYTES = 2**20
"""Bytes read at a time of a tar's headers, and looked at behind its end."""
TEXTS = ("txt", "text", "caption")
"""Extensions of members that hold text."""
_NAME = re.compile(r"^((?:.*/|)[^./]+)[.]([^/]*)$", re.DOTALL)
"""Key and extension of a member, as webdataset splits them: the extension begins at the first dot of the name."""
_LEFT_OUT = re.compile(r"^__[^/]*__($|/)|(^|/)[.][^/]*$", re.DOTALL)
"""Members about the tar itself, and hidden files (macOS adds one to each file), which webdataset leaves out too."""

Read = Callable[[int, int], bytes]
"""Bytes ``[start, end)`` of a tar; fewer where it ends before."""


class _Piece(NamedTuple):
    """Some of a member's data: its place in the member and in the tar, and its size. Between pieces are zeros."""

    at: int
    start: int
    size: int


class _Member(NamedTuple):
    """A member that is or may stand for a file: where its header begins and its data end, its size, and its data.

    ``key`` is what the members of a sample have in common, None where the name has no extension. ``link`` is what a
    link stands for, relative to the tar if it is ``hard``, else to its own folder. ``kind`` is the type of a member
    that nothing here can read.
    """

    name: str
    key: str | None
    offset: int
    end: int
    size: int = 0
    pieces: tuple[_Piece, ...] = ()
    link: str | None = None
    hard: bool = False
    kind: str | None = None


class _TarEndsError(Exception):
    """Nothing can be read of a tar from byte ``behind`` on, which may lie within a sample, or at the tar's own end."""

    def __init__(self, behind: int, reason: object, *, at_end: bool = False) -> None:
        super().__init__(f"the tar cannot be read from byte {behind} on ({reason})")
        self.behind = behind
        self.at_end = at_end


_Links = Mapping[str, "_Member | str"]
"""The member that each link stands for, or why there is none, by the link's name."""

_LINKS: LRUCache[tuple[str, int], _Links] = LRUCache(16)
"""Links of the tars read last."""


def scan(opened: Any, file: SourceFile, start: int, end: int) -> Iterator[Found]:  # noqa: ARG001
    """Every sample of a tar. What follows a fault is one reject, with the sample before it, which may lack members.

    Headers are read before samples: only then it is known that none of a sample's members stands further on. A copy is
    read of a tar in an object store, which is thus fetched once.
    """
    with tempfile.TemporaryFile() as copy:
        if file.is_remote and file.compression is None:
            opened.seek(0)
            shutil.copyfileobj(opened, copy, READ_BYTES)
            opened = copy
        members, fault = list[_Member](), None
        try:
            for member in _members(opened):
                members.append(member)
        except _TarEndsError as error:
            fault = error
        links = _LINKS[file.uri, file.mtime_ns] = _resolved(members)
        shown = {member.offset for member in links.values() if isinstance(member, _Member)}
        # What has no name of a sample's member, but a link's, is read by that.
        samples = [one for one in _samples(members) if one[0].key is not None or one[0].offset not in shown]
        cut = None
        if fault is not None and not fault.at_end:
            cut = next((sample for sample in reversed(samples) if sample[0].key is not None), None)
        del members
        places = Counter(sample[0].key for sample in samples)
        read = partial(_read_at, opened)
        for sample in samples:
            if sample is cut:
                continue
            first, size = sample[0].offset, sample[-1].end - sample[0].offset
            times = places[sample[0].key] if sample[0].key is not None else 1
            row = _apart(sample, times) if times > 1 else _made(sample, file, links, read, read)
            yield Found(first, size, row)
    if fault is not None:
        before = f"; the sample before it, {_shown(cut[0].key)}, may lack members" if cut else ""
        yield Found(fault.behind, 0, DocumentError(LOST_ROWS, f"{fault}{before}"))


def head_rows(opened: Any, file: SourceFile) -> Iterator[Any]:
    """The samples of a tar one by one, as soon as their members are read; links in them have no data."""
    read = partial(_read_at, opened)
    try:
        for sample in _samples(_members(opened)):
            yield _made(sample, file, None, read, read)
    except _TarEndsError as error:
        yield DocumentError("bad_row", str(error))


def decode(data: bytes, file: SourceFile) -> Any:
    """A row from the bytes of its members; what links stand for is looked up in the file.

    ``json`` gives the row's fields, members of text and media are columns: ``txt``, ``image`` or ``images``, ``video``
    or ``videos``; every other one is a column under its extension. Without an ``id``, the tar and the key are it.
    """
    try:
        samples = [sample for sample in _samples(_members(io.BytesIO(data))) if sample[0].key is not None]
    except _TarEndsError as error:
        return DocumentError("bad_row", str(error))
    if len(samples) != 1:
        return DocumentError("bad_row", "the row is gone")
    links = _links_of(file) if any(member.link is not None for member in samples[0]) else {}
    return _made(samples[0], file, links, partial(_read_at, io.BytesIO(data)), partial(read_content, file))


def _members(opened: Any) -> Iterator[_Member]:
    """The members that are files or links, by their headers.

    Raises:
        _TarEndsError: a header is damaged, or the tar is cut short or goes on behind its end.
    """
    opened.seek(0)
    behind = 0
    try:
        with tarfile.open(fileobj=opened, mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # tarfile keeps every member that it has seen
                end = tar.offset
                if end <= behind or member.size < 0:
                    raise tarfile.HeaderError("a negative size")
                behind = end
                if (found := _member(member, behind)) is not None:
                    yield found
    except Exception as error:  # a damaged header can surface as nearly any exception
        if isinstance(error, OSError):
            raise
        raise _TarEndsError(behind, error) from None
    # A damaged header ends a tar for tarfile, and so does the end of the first of several tars that were joined.
    opened.seek(behind)
    rest = opened.read(READ_BYTES)
    if rest.strip(b"\0"):
        at_end = not rest[: tarfile.BLOCKSIZE].strip(b"\0")
        reason = "it ends there, and another file follows" if at_end else "no header of a member"
        raise _TarEndsError(behind, reason, at_end=at_end)


def _member(member: tarfile.TarInfo, end: int) -> _Member | None:
    named = _NAME.match(member.name)
    key = named.group(1) if named else None
    if member.isreg():
        place, pieces = member.offset_data, list[_Piece]()
        sparse: Any = member.sparse  # places and sizes, whatever typeshed says
        for at, size in [(0, member.size)] if sparse is None else sparse:
            pieces.append(_Piece(at, place, size))
            place += size
        return _Member(member.name, key, member.offset, end, member.size, tuple(pieces))
    if member.islnk() or member.issym():
        return _Member(member.name, key, member.offset, end, link=member.linkname, hard=member.islnk())
    if member.type not in tarfile.SUPPORTED_TYPES and member.size:
        return _Member(member.name, key, member.offset, end, kind=member.type.decode("latin-1"))
    return None


def _samples(members: Iterable[_Member]) -> Iterator[list[_Member]]:
    """Neighbouring members of one key, and behind them those between them that have none, each by itself."""
    sample, others = list[_Member](), list[_Member]()
    for member in members:
        if _LEFT_OUT.search(member.name):
            continue
        if sample and member.key not in (sample[0].key, None):
            yield from (sample, *([other] for other in others))
            sample, others = [], []
        (others if member.key is None else sample).append(member)
    yield from ([sample] if sample else [])
    yield from ([other] for other in others)


def _apart(sample: Sequence[_Member], times: int) -> DocumentError:
    cure = "sort it by name, such as by tar --sort=name"
    what = f"the members of {_shown(sample[0].key)} stand in {times} places of the tar, with others between them"
    return DocumentError("bad_row", f"{what}; {cure}")


def _shown(name: str | None) -> str:
    """A name in a message, in which bytes that are no text are escaped."""
    return repr((name or "")[:80])


def _links_of(file: SourceFile) -> _Links:
    """The links of a tar, from its headers.

    Raises:
        OSError: it cannot be read.
    """
    key = (file.uri, file.mtime_ns)
    if key not in _LINKS:
        members = list[_Member]()
        try:
            for member in _members(io.BufferedReader(_Content(file), READ_BYTES)):
                members.append(member)
        except _TarEndsError:
            pass  # measuring said so
        _LINKS[key] = _resolved(members)
    return _LINKS[key]


class _Content(io.RawIOBase):
    """A file, or what was compressed, for reading at any position."""

    def __init__(self, file: SourceFile) -> None:
        self._file, self._position = file, 0

    def readinto(self, buffer: Any) -> int:
        data = read_content(self._file, self._position, self._position + len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET, "its size is not known"
        self._position = offset
        return offset

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def _resolved(members: Sequence[_Member]) -> _Links:
    links = [member for member in members if member.link is not None]
    places: dict[str, list[_Member]] = {}
    for member in members if links else ():
        places.setdefault(posixpath.normpath(member.name), []).append(member)
    return {link.name: _target(link, places) for link in links}


def _target(link: _Member, places: Mapping[str, Sequence[_Member]]) -> _Member | str:
    """Member that a link stands for, as ``tarfile`` finds it: the last of that name, of those before a hard link."""
    member, passed = link, set[int]()
    while member.link is not None:
        passed.add(member.offset)
        folder = "" if member.hard else posixpath.dirname(member.name)
        found = places.get(posixpath.normpath("/".join(filter(None, (folder, member.link)))), ())
        found = [one for one in found if one.offset < member.offset] if member.hard else found
        if not found or found[-1].offset in passed:
            what = "which is no file in the tar" if not found else "and its links lead in a circle"
            cure = "add files in place of links, such as by tar --dereference --hard-dereference"
            return f"the member {_shown(link.name)} is a link to {_shown(link.link)}, {what}; {cure}"
        member = found[-1]
    return member


def _read_at(opened: Any, start: int, end: int) -> bytes:
    opened.seek(start)
    data: bytes = opened.read(end - start)
    return data


def _made(sample: Sequence[_Member], file: SourceFile, links: _Links | None, own: Read, other: Read) -> Any:
    """The row of a sample, or why there is none.

    Args:
        sample: its members.
        file: the tar.
        links: what links stand for; None for no data.
        own: reads data of the members.
        other: reads data of what links stand for.
    """
    try:
        found = [(member, *_found(member, links, own, other)) for member in sample]
        size = sum(target.size for _, target, _ in found)
        if size > MAX_SAMPLE_BYTES:
            limit = f"more than the limit of {MAX_SAMPLE_BYTES}"
            raise DocumentError("too_long", f"the sample has {size} bytes, {limit}")
        return _row([(member.name, _data(target, read)) for member, target, read in found], file)
    except DocumentError as error:
        return error


def _found(member: _Member, links: _Links | None, own: Read, other: Read) -> tuple[_Member, Read]:
    """The member that holds a member's data, and what reads them."""
    if member.kind is not None:
        reason = "which cannot be read; write the tar with tar --format=pax"
        raise DocumentError("bad_row", f"the member {_shown(member.name)} is of the type {member.kind!r}, {reason}")
    if member.link is None or links is None:
        return member, own
    target = links.get(member.name, "the row is gone")
    if isinstance(target, str):
        raise DocumentError("bad_row", target)
    return target, other


def _data(member: _Member, read: Read) -> bytes:
    if any(min(piece.at, piece.size) < 0 or piece.at + piece.size > member.size for piece in member.pieces):
        raise DocumentError("bad_row", f"the places of data in the sparse member {_shown(member.name)} are damaged")
    parts = [read(piece.start, piece.start + piece.size) for piece in member.pieces]
    if any(len(part) < piece.size for part, piece in zip(parts, member.pieces, strict=True)):
        raise DocumentError("bad_row", "the tar ends within the sample")
    if len(parts) == 1 and len(parts[0]) == member.size:
        return parts[0]
    data = bytearray(member.size)
    for part, piece in zip(parts, member.pieces, strict=True):
        data[piece.at : piece.at + piece.size] = part
    return bytes(data)


def _row(members: list[tuple[str, bytes]], file: SourceFile) -> dict[str, Any]:
    row: dict[str, Any] = {}
    media: dict[str, list[tuple[tuple[int, int], str, bytes]]] = {"image": [], "video": []}
    key, seen = "", set[str]()
    for order, (name, data) in enumerate(members):
        found = _NAME.match(name)
        if found is None:
            raise DocumentError("bad_row", f"the member {_shown(name)} has no extension that says what it is")
        key, extension = found.group(1), found.group(2).lower()
        if extension in seen:
            raise DocumentError("bad_row", f"the sample has two members {_shown(extension)}; leave one of them out")
        seen.add(extension)
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
    if "id" not in row and not is_text(key):
        cure = "write the tar again with names in UTF-8, or give each sample an id in its json"
        raise DocumentError("bad_row", f"the member {_shown(name)} has a name that is not UTF-8; {cure}")
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
