"""What rows may reach (the folders of the sources, of ``--media-root`` and of ``--allow-media``), opened to be read.

A row gives a path, and nothing else of how a file is opened: the client of a store, its endpoint, its options and its
credentials are those of the command's own location that the path lies in. Paths are compared percent-decoded, without
``.`` and ``..``, component by component, and what was compared is what is opened.

A wrong reference is the document's fault and becomes a :class:`DocumentError`. Its message names the reference as the
row does, and never the place where it was looked for, so that the rejects of a source read the same on every machine.
An outage (a network error, an expired credential, a failing disk) is not the source's fault: it is raised as it is, so
that the task is tried again instead of losing documents.
"""

from __future__ import annotations

import errno
import io
import posixpath
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO, NamedTuple, cast
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from preshard.packer_service.ingest.document import Medium
from preshard.schemas.errors import DocumentError
from preshard.schemas.files.filesystem import is_uri, join, locate, split_query
from preshard.schemas.files.secrets import NAMED_BY_USER, without_secrets

SCHEMES = frozenset(("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "hf"))
"""What ``pyarrow.fs`` opens: ``--allow-media`` could allow it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowedMedia:
    """What the command says of media: ``root``, which relative references are relative to instead of the folder of the
    row's file, and what rows may reach besides (``allow``), each a path or URI."""

    root: str | None = None
    allow: tuple[str, ...] = ()

    def named(self) -> list[tuple[str, str]]:
        """Its locations, each behind the option that gave it."""
        root = [("--media-root", self.root)] if self.root is not None else []
        return root + [("--allow-media", location) for location in self.allow]


class _Location(NamedTuple):
    """A location as it is compared: ``path`` is decoded and normalised, and begins with a slash."""

    scheme: str
    authority: str
    path: str

    def holds(self, other: _Location) -> bool:
        if (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        return other.path == self.path or other.path.startswith(f"{self.path.rstrip('/')}/")

    @property
    def folder(self) -> str:
        """The folder that it lies in, as the command line names it; itself where that would be everything."""
        path = posixpath.dirname(self.path)
        path = self.path if path == "/" else path
        return path if self.scheme == "file" else join(f"{self.scheme}://{self.authority}", path.lstrip("/"))


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaReach:
    """Where the media of a row are looked for.

    ``folder`` is what relative references are relative to, and ``roots`` are the locations that rows may reach; all of
    them come from the command.
    """

    folder: str
    roots: tuple[str, ...]

    @classmethod
    def of(cls, folder: str) -> MediaReach:
        """A folder and nothing else."""
        return cls(folder=folder, roots=(folder,))

    def location(self, uri: str) -> str:
        """The location of a row's reference, with the options and credentials of the root that it lies in.

        Raises:
            DocumentError: ``missing_media``: rows may not reach it, or it says more than a place.
        """
        folder = _place(self.folder)
        place = _place_of_row(uri) if is_absolute(uri) else folder._replace(path=_normal(f"{folder.path}/{uri}"))
        if "\0" in place.path:
            raise _refused(uri, "cannot be opened: its name holds a NUL character")
        holding = [root for root in self.roots if _place(root).holds(place)]
        if not holding:
            raise _refused(uri, _outside(uri, place))
        return _with_options(max(holding, key=lambda root: len(_place(root).path)), place)


def is_absolute(uri: str) -> bool:
    """Whether a reference names its place without the folder of the row's file."""
    return is_uri(uri) or posixpath.isabs(uri)


@lru_cache(maxsize=256)
def _place(location: str) -> _Location:
    """The place of a location of the command."""
    if not is_uri(location):
        return _Location("file", "", _normal(locate(location)[1]))
    scheme, _, rest = split_query(location)[0].partition("://")
    authority, _, path = rest.partition("/")
    scheme, authority = _names(scheme, authority)
    return _Location(scheme, authority, _normal(unquote(path)))


def _place_of_row(uri: str) -> _Location:
    if not is_uri(uri):
        return _Location("file", "", _normal(uri))
    whole, query = split_query(uri)
    scheme, _, rest = whole.partition("://")
    authority, _, path = rest.partition("/")
    if query:
        raise _refused(uri, "a row's URI may carry no options; a ? in a name is written %3F")
    if "@" in authority and (scheme.lower() not in NAMED_BY_USER or ":" in authority.rpartition("@")[0]):
        raise _refused(uri, "a row's URI may carry no user name or password; leave out what stands before the @")
    scheme, authority = _names(scheme, authority)
    if scheme not in SCHEMES:
        raise _refused(
            uri, "cannot be opened; legal are local paths, file://, s3:// and whatever else pyarrow.fs opens"
        )
    if scheme == "file" and authority:
        raise _refused(uri, "cannot be opened: a file URI cannot name a host; write file:///path, with three slashes")
    return _Location(scheme, authority, _normal(unquote(path)))


def _names(scheme: str, authority: str) -> tuple[str, str]:
    """Scheme and host in small letters, without a password, and without a user name that names no place."""
    scheme, (user, at, host) = scheme.lower(), authority.rpartition("@")
    scheme = "gs" if scheme == "gcs" else scheme
    if scheme == "file" and host.lower() == "localhost":
        host = ""
    return scheme, (user.partition(":")[0] + at if scheme in NAMED_BY_USER else "") + host.lower()


def _normal(path: str) -> str:
    """A path without ``.`` and ``..``, which object stores do not resolve, and disks only behind symbolic links."""
    return f"/{posixpath.normpath(f'/{path}').lstrip('/')}"


def _with_options(root: str, place: _Location) -> str:
    if not is_uri(root) or place.scheme == "file":
        return place.path
    path, query = split_query(root)
    scheme, _, rest = path.partition("://")
    return join(f"{scheme}://{rest.partition('/')[0]}{query}", place.path.lstrip("/"))


def _outside(uri: str, place: _Location) -> str:
    limit = "lies outside of SOURCE and the allowed folders"
    if is_absolute(uri):
        return f"{limit}; add --allow-media {_quoted(without_secrets(place.folder))}"
    # The row's own words: rejects read the same wherever the source lies.
    folder = posixpath.dirname(posixpath.normpath(uri))
    return f"{limit}; add --allow-media FOLDER, which is {_quoted(folder)} seen from the row's file"


def _quoted(path: str) -> str:
    return shlex.quote(path) if "'" in path else f"'{path}'"


def _refused(uri: str, reason: str) -> DocumentError:
    return DocumentError("missing_media", f"{without_secrets(uri)}: {reason}")


REMOTE_BUFFER = 1 << 20
"""Bytes read from a remote file at a time: demuxers ask for a few kilobytes, each of which would be a request."""

# In our own words, since the C library's differ between systems. Any other number is an outage.
_REASONS = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",  # an object store allows names below a file's name
    errno.EISDIR: "is a folder, not a file",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ELOOP: "its symbolic links lead in a circle",
    errno.ENAMETOOLONG: "its name is longer than the file system allows",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaFile:
    """An open image or video.

    ``label`` is how messages name it, ``size`` its length in bytes.
    """

    file: BinaryIO
    label: str
    size: int

    def read(self, size: int = -1) -> bytes:
        return self.file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As in a file, but a position past the end is the end.

        Raises:
            ValueError: a position before the beginning. Damaged files ask for such positions, and file systems refuse
                them with an error that looks like one of their own.
        """
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.file.tell(), io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise ValueError(f"{self.label}: a position before its beginning")
        return self.file.seek(min(start + offset, self.size))

    def tell(self) -> int:
        return self.file.tell()


@contextmanager
def open_media(medium: Medium, base: MediaReach) -> Iterator[MediaFile]:
    """Opens inline bytes or a reference for reading at any position; closed on leaving the context.

    Args:
        medium: ``uri`` is a URI of any file system that pyarrow opens, an absolute local path, or a path relative to
            ``base``, taken as written (only absolute URIs are percent-decoded).
        base: what it is relative to, and what it may reach.

    Raises:
        DocumentError: ``missing_media``: nothing is there, it is not a regular file, or it may not be read or reached.
        OSError: the file system failed.
    """
    if medium.data is not None:
        yield MediaFile(file=io.BytesIO(medium.data), label=medium.label, size=len(medium.data))
        return
    if medium.uri is None:
        raise DocumentError("missing_media", "it has neither a URI nor bytes; give one of them")
    try:
        file, size = _open(*locate(base.location(medium.uri)))
    except DocumentError:
        raise
    except OSError as error:
        if error.errno not in _REASONS:
            raise
        raise _missing(medium.label, _REASONS[error.errno]) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        reason = "cannot be opened; legal are local paths, file://, s3:// and whatever else pyarrow.fs opens"
        raise _missing(medium.label, reason) from error
    with file:
        yield MediaFile(file=file, label=medium.label, size=size)


def _missing(label: str, reason: str) -> DocumentError:
    return DocumentError("missing_media", f"{label}: {reason}")


def _open(filesystem: fs.FileSystem, path: str) -> tuple[BinaryIO, int]:
    if isinstance(filesystem, fs.LocalFileSystem):
        return _open_local(Path(path))
    try:
        raw = filesystem.open_input_file(path)
    except FileNotFoundError:
        # An object store has no folders, only names with a common prefix.
        if filesystem.get_file_info(path).type == fs.FileType.Directory:
            raise IsADirectoryError(errno.EISDIR, "is a folder") from None
        raise
    return cast(BinaryIO, io.BufferedReader(raw, REMOTE_BUFFER)), raw.size()


def _open_local(path: Path) -> tuple[BinaryIO, int]:
    # Checked before it is opened, because opening a named pipe waits for a writer.
    status = path.stat()
    if S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    if not S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "is not a regular file")
    return path.open("rb"), status.st_size
