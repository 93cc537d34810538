"""A file of rows, the parts of it that tasks measure, where a row lies in it, and what reading it can end in."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.schemas.errors import DocumentError
from preshard.schemas.files.filesystem import is_remote, split_query

DATASET = "dataset"
"""Kind of a source that is a packed dataset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetIdentity:
    """Identity of a packed dataset as a source: its id, and the hash of its manifest, which covers every byte of it.

    ``annotations_sha256`` is the hash of its annotations where ``where`` may ask for them and there are some.
    """

    dataset_id: str
    manifest_sha256: str
    annotations_sha256: str | None = None


class AskedColumn(NamedTuple):
    """A column of rows that ``where`` may name, with the type that DuckDB gives it.

    ``format`` is how its dates are written, if not as ISO 8601 says, and ``examples`` are lists and objects of it.
    """

    name: str
    type: str
    format: str | None
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A file of rows, or a packed dataset, whose ``uri`` is its folder.

    ``label`` names it in results, and is the same wherever the source lies. ``kind`` is its container, ``compression``
    what is around that, if anything. ``form`` names the form of its rows, ``form_sha256`` is that of the source of a
    form of the user's own, and ``columns`` are those of a table that are read (None: all), ``unread`` the others, and
    ``renamed`` those that rows have under another name, each with that. ``source`` is that of all of its rows, where
    the file's name says it. ``copy`` is where the job keeps what is read of a compressed file again and again; it is no
    part of what the file is. ``dataset`` says which one it is. ``beneath`` tells apart the folders that relative
    references of the job's files are relative to, wherever the source lies. ``media_root`` and ``media_roots`` are what
    the command says of media: see :attr:`media`. ``asked`` are the columns that ``where`` may name, of a container that
    does not say their types. ``quoted`` says whether quotation marks around fields of text mean anything.
    """

    label: str
    uri: str
    kind: str
    size: int
    mtime_ns: int
    compression: str | None = None
    form: str = "messages"
    form_sha256: str | None = None
    columns: tuple[str, ...] | None = None
    unread: tuple[str, ...] = field(default=(), compare=False)
    renamed: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    source: str | None = None
    dataset: DatasetIdentity | None = None
    copy: str | None = field(default=None, compare=False)
    beneath: str = field(default="", compare=False)
    media_root: tuple[str, ...] = field(default=(), compare=False)
    media_roots: tuple[str, ...] = field(default=(), compare=False)
    asked: tuple[AskedColumn, ...] = field(default=(), compare=False)
    quoted: bool = field(default=True, compare=False)

    @property
    def folder(self) -> str:
        """The folder that it lies in."""
        path, query = split_query(self.uri)
        return (path.rpartition("/")[0] or "/") + query

    @property
    def media(self) -> MediaReach:
        """Places that references in its rows are relative to, at last its folder, and those that they may reach."""
        folder, *others = (*self.media_root, self.folder)
        roots = self.media_roots or (self.folder,)
        return MediaReach(folder=folder, others=tuple(others), roots=roots, file=self.label)

    def beneath_of(self, uris: Iterable[str]) -> str:
        """A key that tells apart the folders that hold these relative references of a row."""
        if self.media_root and any(self.media.place_of(uri) for uri in uris):
            return f"{self.beneath} {self.folder}"
        return self.beneath

    @property
    def is_remote(self) -> bool:
        """Whether it lies in an object store, where every read is a request."""
        return is_remote(self.uri)

    def named_row(self, row: Any) -> Any:
        """A row, as its container gives it, with the columns that have another name under that.

        A row that has both names becomes the reason why it cannot be read.
        """
        if not self.renamed or not isinstance(row, dict):
            return row
        names = dict(self.renamed)
        given = {name: value for name, value in row.items() if value is not None}
        for name in given.keys() & names.keys():
            if names[name] in given and names[name] not in names:
                reason = f"has {names[name]} and {name}, which rename_columns gives this name; leave one of them out"
                return DocumentError("bad_row", reason)
        return {names.get(name, name): value for name, value in row.items() if name in given or name not in names}

    def location(self, line: int) -> str:
        """The name of a row in results: its file's label and its number from 1."""
        return f"{self.label}:{line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragment:
    """A part of a file that one task measures: rows that begin in bytes ``[start, end)``, groups of rows, or packs."""

    file: SourceFile
    start: int
    end: int

    @property
    def label(self) -> str:
        """The fragment's name in messages."""
        return f"{self.file.label} from {self.start} to {self.end}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RowReference:
    """Place of a row: byte offset and size, group of rows and row in it, or pack and document in it."""

    offset: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRow:
    """A row of a source, whatever container it lies in: its place, what identifies it, and what it says.

    ``number`` counts from 0 in what was read. ``document`` is None for a document of a packed dataset, which holds it
    as it was rendered, without the ``truncated`` tokens that it lost when it was packed.
    """

    file: SourceFile
    number: int
    reference: RowReference
    doc_id: str | None
    source: str
    document: Document | DocumentError | None = None
    truncated: int = 0


@dataclass(kw_only=True)
class FragmentRows:
    """A fragment's rows, in order: number in the fragment from 0, reference, and the row or why it cannot be read.

    ``n_lines`` is what later fragments of the file add to their numbers; it is known once all rows have been taken.
    Blank lines count, but are not rows.
    """

    rows: Iterator[tuple[int, RowReference, Any]]
    n_lines: int = 0


class Found(NamedTuple):
    """A row, or why it cannot be read, and its place in bytes. A blank line ``is_row`` not, but is counted."""

    offset: int
    size: int
    row: Any
    is_row: bool = True


class Watched(io.RawIOBase):
    """Reads another file. Arrow raises OSError for damaged data as well; ``failure`` is one of the file system."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened
        self.failure: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            data: bytes = self.opened.read(None if size < 0 else size)
            return data
        except OSError as error:
            self.failure = error
            raise

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self.opened.seek(offset, whence))

    def tell(self) -> int:
        return int(self.opened.tell())

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def reason_of(error: BaseException) -> str:
    """An error of a library in a few words."""
    strerror = getattr(error, "strerror", None)
    return strerror or " ".join(str(error).split())[:200]
