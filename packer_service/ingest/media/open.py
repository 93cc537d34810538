"""Opens the image or video that a row refers to, wherever it lies, as a seekable file.

A wrong reference is the document's fault and becomes a :class:`DocumentError`. Its message names the reference as the
row does, and never the place where it was looked for, so that the rejects of a source read the same on every machine.
An outage (a network error, an expired credential, a failing disk) is not the source's fault: it is raised as it is, so
that the task is tried again instead of losing documents.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO, cast

import pyarrow as pa
from pyarrow import fs

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.schemas.errors import DocumentError
from preshard.schemas.files.filesystem import locate

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
        file, size = _open(*resolve(medium.uri, base))
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


def resolve(uri: str, base: MediaReach) -> tuple[fs.FileSystem, str]:
    """Filesystem of a reference, and the path on it.

    Raises:
        DocumentError: see :meth:`~preshard.packer_service.ingest.media.reach.MediaReach.location`.
    """
    return locate(base.location(uri))
