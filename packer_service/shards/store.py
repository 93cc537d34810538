"""A folder of files on any filesystem, in which a file appears whole or not at all."""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from pyarrow import fs

from preshard.packer_service.runtime.patience import NoAnswerError, answer
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import FileRefusedError, is_uri, join, locate, open_regular, require_regular
from preshard.schemas.files.printed import without_secrets
from preshard.schemas.files.regular import leads_outside, refuse_links

TEMPORARY = ".tmp-"
"""Prefix of the name under which a file is written until it is whole."""

UPLOAD_BYTES = 64 << 20
"""Bytes of an upload that are in memory at once: pyarrow copies what it is given until the store has it."""

STREAM_BYTES = 8 << 20
"""Bytes that one request to a store brings of a file that is read from its start."""

_ENTRIES = (fs.FileType.File, fs.FileType.Directory)


class Sink(Protocol):
    """Destination of a file's bytes."""

    def write(self, data: bytes, /) -> Any: ...


class HashingSink:
    """Counts and hashes what goes through to another sink, so that nothing is read again; pyarrow writes to it, too."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self.sink, self.size, self.hash = sink, 0, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sink.write(data)
        self.hash.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Folder:
    """Files below a local path or a URI that pyarrow opens.

    On a local disk a file is written under a temporary name, synced, and renamed, and the rename is synced. For an
    object store it is written to a local temporary file, and uploaded when it is whole.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._filesystem, self._root = locate(location)
        self._top = self._root
        """The folder that the caller named, which may be a link; nothing is written through links below it."""

    @property
    def is_local(self) -> bool:
        return isinstance(self._filesystem, fs.LocalFileSystem)

    def __truediv__(self, name: str) -> Folder:
        below = Folder(join(self.location, name))
        below._top = self._top
        return below

    def path(self, name: str) -> str:
        """Path of a file inside the filesystem."""
        return join(self._root, name) if name else self._root

    def exists(self) -> bool:
        """Whether the folder is there; an object store has it as soon as it holds an object."""
        return self._filesystem.get_file_info(self._root).type == fs.FileType.Directory

    def is_file(self, name: str) -> bool:
        return self._filesystem.get_file_info(self.path(name)).type == fs.FileType.File

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is no such file."""
        info = self._filesystem.get_file_info(self.path(name))
        return info.size if info.type == fs.FileType.File else None

    def stamp(self, name: str) -> tuple[int, int] | None:
        """Bytes and time of change (ns) of a file or folder, 0 where unknown; None if there is no such entry."""
        info = self._filesystem.get_file_info(self.path(name))
        return (info.size or 0, info.mtime_ns or 0) if info.type in _ENTRIES else None

    def entries(self) -> dict[str, bool]:
        """Names directly in the folder, sorted, and whether each is a folder. What is neither is left out."""
        infos = self._filesystem.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        kinds = {info.base_name: info.type for info in infos}
        return {name: kinds[name] == fs.FileType.Directory for name in sorted(kinds) if kinds[name] in _ENTRIES}

    def make(self) -> None:
        """Makes the folder if it is not there; an object store has no folders to make."""
        if self.is_local:
            self.for_writing().mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Every file below the folder, by its path from here, sorted."""
        if self.is_local:
            return sorted(name for name, entry in self._below() if _is_file(entry))
        return sorted(self.sizes())

    def links_outside(self) -> dict[str, str]:
        """Files and folders below the folder that are links out of it, by their paths from here, and where they lead.

        Links into the blobs of the Hugging Face cache that holds this snapshot do not count.
        """
        if not self.is_local:
            return {}
        root = Path(self._root).resolve()
        links = (name for name, entry in self._below() if entry.is_symlink())
        outside = [name for name in links if leads_outside(self.path(name), root)]
        return {name: str(Path(self.path(name)).readlink()) for name in sorted(outside)}

    def _below(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Everything below a local folder by its path from here, also what has no name in Unicode; circles once."""
        left, seen = [""], set[tuple[int, int]]()
        while left:
            at = left.pop()
            with suppress(FileNotFoundError), os.scandir(self.path(at)) as entries:
                for entry in entries:
                    name = f"{at}/{entry.name}" if at else entry.name
                    yield name, entry
                    with suppress(OSError):  # a circle of links
                        if entry.is_dir() and (key := (entry.stat().st_dev, entry.stat().st_ino)) not in seen:
                            seen.add(key)
                            left.append(name)

    def sizes(self) -> dict[str, int]:
        """Bytes of every file below the folder, by its path from here."""
        if self.is_local:
            return {name: entry.stat().st_size for name, entry in self._below() if _is_file(entry)}
        selector = fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        infos = self._filesystem.get_file_info(selector)
        return {info.path[len(self._root) :].strip("/"): info.size for info in infos if info.is_file}

    def read(self, name: str, most: int | None = None) -> bytes:
        """A whole file.

        Raises:
            FileRefusedError: it is not a regular file, or has more than ``most`` bytes.
        """
        with self.open(name, most) as file:
            data: bytes = file.read()
        return data

    @contextmanager
    def open(self, name: str, most: int | None = None) -> Iterator[Any]:
        """A file for reading at any place (pyarrow's ``NativeFile``).

        Raises:
            FileRefusedError: it is not a regular file, or has more than ``most`` bytes.
        """
        with open_regular(self._filesystem, self.path(name), name, most) as file:
            yield file

    @contextmanager
    def stream(self, name: str) -> Iterator[Any]:
        """A file for reading from its start to its end, some MiB at a time (pyarrow's ``NativeFile``)."""
        path = self.path(name)
        if self.is_local:
            require_regular(path, name)
        with self._filesystem.open_input_stream(path, compression=None, buffer_size=STREAM_BYTES) as file:
            yield file

    def require(self, what: str) -> None:
        """
        Args:
            what: the folder, as the command calls it.

        Raises:
            ConfigError: it is not there, or is a file.
        """
        kind = self._filesystem.get_file_info(self._root).type
        if kind != fs.FileType.Directory:
            found = "no such folder" if kind == fs.FileType.NotFound else "is a file; give a folder"
            raise ConfigError(f"{what} {self.location}: {found}")

    def for_writing(self, name: str = "") -> Path:
        """The local path at which a file may be written, locked or removed.

        Raises:
            FileRefusedError: a folder on the way to it, below the one that the caller named, is a link.
        """
        path = Path(self.path(name))
        refuse_links(self._top, path.parent if name else path)
        return path

    def write(self, name: str, data: bytes) -> None:
        """Writes a whole file; after this it is on disk."""
        if self.is_local:
            with _local_writer(self.for_writing(name)) as sink:
                sink.write(data)
        else:
            self._upload(name, data)

    @contextmanager
    def writer(self, name: str) -> Iterator[Sink]:
        """A sink whose bytes become the file when the block ends, and vanish when it fails.

        For an object store they wait in a nameless file in the folder for temporary files (``TMPDIR``).
        """
        if self.is_local:
            with _local_writer(self.for_writing(name)) as sink:
                yield sink
            return
        with tempfile.TemporaryFile(prefix=TEMPORARY) as staged:
            yield staged
            staged.flush()
            whole = mmap.mmap(staged.fileno(), 0, access=mmap.ACCESS_READ) if staged.tell() else b""
            self._upload(name, whole)

    def _upload(self, name: str, whole: bytes | mmap.mmap) -> None:
        """Makes ``whole`` an object, or raises and leaves none.

        pyarrow cannot abort an upload: it completes one with what it was given, even when the stream is collected. So
        the bytes are there before the upload begins, and it runs in a thread: signals interrupt only the main one.
        After a request that failed, it completes nothing. (``pyarrow.fs.copy_files`` hides such failures.)
        """

        def upload() -> None:
            with self._filesystem.open_output_stream(self.path(name)) as stream:
                for start in range(0, len(whole), UPLOAD_BYTES):
                    stream.write(memoryview(whole)[start : start + UPLOAD_BYTES])
                    stream.flush()

        with ThreadPoolExecutor(max_workers=1) as pool:
            pool.submit(upload).result()

    def delete(self, name: str) -> None:
        """Removes a file if it is there."""
        if self.is_file(name):
            if self.is_local:
                self.for_writing(name)
            self._filesystem.delete_file(self.path(name))

    def delete_all(self) -> None:
        """Removes the folder and everything in it if it is there."""
        if self.exists():
            if self.is_local:
                self.for_writing()
            self._filesystem.delete_dir(self._root)

    def delete_temporary(self) -> None:
        """Removes what a killed process left half-written anywhere below the folder."""
        if not self.is_local:
            return  # an object store has no temporary files, and listing it costs requests
        for at, _, names in os.walk(self._root):
            for name in names:
                if name.startswith(TEMPORARY):
                    Path(at, name).unlink(missing_ok=True)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a circle of links
        return False


def make_folder(path: Path) -> None:
    """Makes a folder, and those that it lies in, if they are not there.

    Raises:
        FileRefusedError: something else has its name.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FileRefusedError(f"{path}: is not a folder, or lies below a file; remove what is in the way") from None


@contextmanager
def _local_writer(path: Path) -> Iterator[Sink]:
    make_folder(path.parent)
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}-{path.name}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except IsADirectoryError:
        temporary.unlink(missing_ok=True)
        raise FileRefusedError(f"{path}: is a folder; remove it") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """A rename is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


ANSWER_SECONDS = 30.0
"""Longest wait for the first answer of a store. One that is there answers within seconds, while the clients of some
try for a quarter of an hour, or for ever."""


def require_answer(what: str, location: str) -> None:
    """Asks a store whether a location exists, whatever the answer; a local path is not asked about.

    Args:
        what: how the error names the location: ``SOURCE``, ``DATASET``, ``--out`` or ``ROOT``.
        location: a path or URI.

    Raises:
        ConfigError: the store did not answer, or its client failed.
    """
    if not is_uri(location):
        return

    def ask() -> None:
        filesystem, path = locate(location)
        filesystem.get_file_info(path)

    try:
        answer(ask, ANSWER_SECONDS)
    except NoAnswerError:
        remedy = "check its address, the network and the credentials"
        raise ConfigError(f"{what} {location}: nothing answered in {ANSWER_SECONDS:g} s; {remedy}") from None
    except ImportError as error:
        raise ConfigError(f"{what} {location}: needs a package that is not installed ({error})") from None
    except Exception as error:  # filesystems of fsspec raise what the library that they send requests with raises
        reason = (
            " ".join(str(error).split()).removeprefix(f"{without_secrets(location)}: ")[:300] or type(error).__name__
        )
        raise ConfigError(f"{what} {location}: {reason}") from None
