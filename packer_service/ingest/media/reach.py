"""Places that rows may reach (folders of the sources, of ``--media-root`` and of ``--allow-media``), opened to be read.

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
from collections.abc import Iterator, Sequence
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
from preshard.packer_service.ingest.media.nearby import found_below, spelled_otherwise
from preshard.packer_service.ingest.shell import quoted
from preshard.schemas.errors import DocumentError
from preshard.schemas.files.filesystem import is_uri, join, locate, split_query
from preshard.schemas.files.printed import HIDDEN, NAMED_BY_USER, without_secrets

SCHEMES = frozenset(("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "hf"))
"""Schemes that ``pyarrow.fs`` opens: ``--allow-media`` could allow them."""
WEB = frozenset(("http", "https"))
NOT_OPENED = "cannot be opened; legal are local paths, file://, s3:// and whatever else pyarrow.fs opens"
FETCH_IT = "is not downloaded; fetch it first (many with img2dataset), and name the file"


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowedMedia:
    """The command's options on media: ``roots``, folders in which relative references are looked for before the folder
    of the row's file, each with the source that it is for (None: all); and what rows may reach besides (``allow``).
    """

    roots: tuple[tuple[str | None, str], ...] = ()
    allow: tuple[str, ...] = ()

    @classmethod
    def of(cls, sources: Sequence[str], roots: Sequence[str], allow: Sequence[str] = ()) -> AllowedMedia:
        """Reads the options: each root is a folder, or ``SOURCE=FOLDER`` with a source as the command names it."""

        def root(given: str) -> tuple[str | None, str]:
            source = next((source for source in sources if given.startswith(f"{source}=")), None)
            return source, given if source is None else given[len(source) + 1 :]

        return cls(roots=tuple(map(root, roots)), allow=tuple(allow))

    def roots_of(self, source: str) -> list[str]:
        """The roots of a source, its own first."""
        own = [folder for name, folder in self.roots if name == source]
        return own + [folder for name, folder in self.roots if name is None]

    def named(self) -> list[tuple[str, str]]:
        """Its locations, each behind the option that gave it."""
        roots = [("--media-root" if name is None else f"--media-root {name}=", folder) for name, folder in self.roots]
        return roots + [("--allow-media", location) for location in self.allow]


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
    """The places where the media of a row are looked for.

    ``folder`` is what relative references are relative to and, where a file is not there, ``others``, in their order.
    ``roots`` are the locations that rows may reach; all of them come from the command. ``file`` names the row's file in
    messages.
    """

    folder: str
    roots: tuple[str, ...]
    others: tuple[str, ...] = ()
    file: str = ""

    @classmethod
    def of(cls, folder: str) -> MediaReach:
        """A folder and nothing else."""
        return cls(folder=folder, roots=(folder,))

    def locations(self, uri: str) -> list[str]:
        """The places where a row's reference may lie, in the order in which it is looked for.

        Raises:
            DocumentError: ``missing_media``: rows may reach none of these, or it says more than a place.
        """
        found, refused = list[str](), list[DocumentError]()
        for folder in (self.folder,) if is_absolute(uri) else (self.folder, *self.others):
            try:
                found.append(self.location(uri, folder))
            except DocumentError as error:
                refused.append(error)
        if not found:
            raise refused[0]
        return found

    def place_of(self, uri: str) -> int | None:
        """The number of the local folder in which a relative reference lies, 0 for :attr:`folder`; None if in none.

        What lies elsewhere, or may not be reached, is for whoever opens it to find out: it counts as in the first.
        """
        try:
            found = [is_uri(place) or Path(place).exists() for place in self.locations(uri)]
        except (DocumentError, OSError, ValueError):
            return 0
        return found.index(True) if True in found else None

    def location(self, uri: str, base: str | None = None) -> str:
        """The location of a row's reference, with the options and credentials of the root that it lies in.

        Args:
            uri: the reference.
            base: what it is relative to; by default ``folder``.

        Raises:
            DocumentError: ``missing_media``: rows may not reach it, or it says more than a place.
        """
        folder = _place(base or self.folder)
        place = _place_of_row(uri) if is_absolute(uri) else folder._replace(path=_normal(f"{folder.path}/{uri}"))
        if "\0" in place.path:
            raise _refused(uri, "cannot be opened: its name holds a NUL character")
        holding = [root for root in self.roots if _place(root).holds(place)]
        if not holding:
            near = spelled_otherwise((self.folder, *self.others), uri) if place.scheme == "file" else ""
            raise _refused(uri, _outside(uri, place) + near)
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
        raise _refused(uri, FETCH_IT if scheme in WEB else NOT_OPENED)
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
        if HIDDEN in without_secrets(uri):  # an address of a server, as Label Studio exports them
            return limit
        return f"{limit}; add --allow-media {quoted(without_secrets(place.folder))}"
    # The row's own words: rejects read the same wherever the source lies.
    folder = posixpath.dirname(posixpath.normpath(uri))
    return f"{limit}; add --allow-media FOLDER, which is {quoted(folder)} seen from the row's file"


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
        """Moves as in a file, but a position past the end is the end.

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
        file, size = _open_first(base.locations(medium.uri))
    except DocumentError:
        raise
    except OSError as error:
        if error.errno not in _REASONS:
            raise
        reason = _REASONS[error.errno]
        if base.file and error.errno in _ABSENT and not is_absolute(medium.uri):
            reason = f"{reason} in {_looked_in(base)}"
            if (found := found_below(base.others[-1] if base.others else base.folder, medium.uri)) is not None:
                seen = f"which is {quoted(found)} seen from {base.file}"
                reason += f"; found {join(found, medium.uri)}: add --media-root FOLDER, {seen}"
            else:
                reason += spelled_otherwise((base.folder, *base.others), medium.uri)
        elif error.errno == errno.EISDIR and medium.kind == "video":
            reason += "; name its frames in the column frames, with their rate in fps"
        raise _missing(medium.label, reason) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise _missing(medium.label, NOT_OPENED) from error
    with file:
        yield MediaFile(file=file, label=medium.label, size=size)


_ABSENT = (errno.ENOENT, errno.ENOTDIR)


def _looked_in(base: MediaReach) -> str:
    """The folders of a reach; never where they lie, so that rejects read the same on every machine."""
    own = f"the folder of {base.file}"
    return f"{'the media root' if len(base.others) == 1 else 'the media roots'} or {own}" if base.others else own


def _open_first(locations: Sequence[str]) -> tuple[BinaryIO, int]:
    """The first of some files that is there."""
    for location in locations[:-1]:
        try:
            return _open(*locate(location))
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
    return _open(*locate(locations[-1]))


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
