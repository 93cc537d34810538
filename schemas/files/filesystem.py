"""Resolves paths and URIs to the filesystems that pyarrow opens: the one place that reads a URI."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import ArrowException, fs

from preshard.schemas.errors import ConfigError, PreshardError

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")

GCS_RETRY_SECONDS = 120
"""Longest time for which requests to Google Cloud Storage that fail are sent again; its client's own is 15 minutes."""


def is_uri(location: str) -> bool:
    """Whether a location names its scheme (``s3://``, ``file://``); otherwise it is a local path."""
    return bool(_SCHEME.match(location))


def is_remote(location: str) -> bool:
    """Whether a location is a URI of anything but this machine's files."""
    return is_uri(location) and not location.lower().startswith("file:")


def locate(location: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a path or URI, and the path inside it, percent-decoded.

    All locations of one bucket share a client, since making one can cost a request.

    Raises:
        ConfigError: no such scheme, or a malformed URI.
        OSError: the filesystem does not answer.
    """
    if not is_uri(location):
        return fs.LocalFileSystem(), str(Path(location).absolute())
    whole, query = split_query(location)
    scheme, _, rest = whole.partition("://")
    authority, _, path = rest.partition("/")
    path = unquote(path)
    if scheme.lower() == "file":
        if authority not in ("", "localhost"):
            raise ConfigError(f"{location}: a file URI cannot name a host; write file:///path, with three slashes")
        return fs.LocalFileSystem(), f"/{path}"
    try:
        filesystem, root = _client(scheme, authority, query)
    except (ArrowException, ValueError) as error:
        raise ConfigError(f"{location}: {' '.join(str(error).split())}") from None
    return filesystem, posixpath.join(root, path) if root else f"/{path}"


@lru_cache(maxsize=64)
def _client(scheme: str, authority: str, query: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a bucket or host, and its root."""
    if scheme.lower() == "hf":
        return _hub(query), authority
    if scheme.lower() in ("gs", "gcs") and "retry_limit_seconds" not in query:
        query += f"{'&' if query else '?'}retry_limit_seconds={GCS_RETRY_SECONDS}"
    filesystem, root = fs.FileSystem.from_uri(f"{scheme}://{authority}{query}")
    return filesystem, root


def _hub(query: str) -> fs.FileSystem:
    if query:
        raise ValueError(f"hf:// takes no options such as {query}: set HF_TOKEN and HF_ENDPOINT, or `hf auth login`")
    try:
        hub = import_module("preshard.schemas.files.hub")
    except ModuleNotFoundError as error:
        raise ValueError(f"hf:// needs the package {error.name}: pip install huggingface_hub") from None
    filesystem: fs.FileSystem = hub.open_hub()
    return filesystem


def join(folder: str, *names: str) -> str:
    """A path or URI below a folder. The query of a URI, such as ``?region=eu-west-1``, stays behind the path."""
    path, query = split_query(folder)
    below = [_quoted(name) for name in names] if is_uri(folder) else names
    return "/".join([path.rstrip("/"), *below]) + query


def _quoted(name: str) -> str:
    """A name inside a URI: what would begin an escape, a query or a fragment is escaped."""
    return name.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def split_query(location: str) -> tuple[str, str]:
    """Splits a location into its path and its query, question mark included; a local path has no query."""
    path, mark, query = location.partition("?") if is_uri(location) else (location, "", "")
    return path, mark + query


class FileRefusedError(PreshardError):
    """A file of a dataset that is not read, or a place that is not written to, whatever it holds."""


_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_regular(path: str | Path, name: str) -> int:
    """Bytes of a local file, links followed.

    Opening a pipe would wait until somebody writes to it, and a device need not end.

    Args:
        path: where it lies.
        name: how errors name it.

    Raises:
        FileRefusedError: it is a folder, a pipe, a device, a socket or a link that leads in a circle.
        FileNotFoundError, NotADirectoryError: there is no such file.
    """
    try:
        status = os.stat(path)  # noqa: PTH116, a Path takes as long to make as all the rest
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileRefusedError(f"{name}: is a symbolic link that leads in a circle") from None
        raise
    if not stat.S_ISREG(status.st_mode):
        kind = next((words for holds, words in _KINDS if holds(status.st_mode)), "no file")
        raise FileRefusedError(f"{name}: is {kind}, not a file")
    return status.st_size


def read_within(file: pa.NativeFile, offset: int, size: int) -> bytes:
    """Bytes of a file, fewer where it ends before: Arrow allocates what is asked for, be it there or not."""
    data: bytes = file.read_at(max(min(size, file.size() - offset), 0), offset)
    return data


def open_regular(filesystem: fs.FileSystem, path: str, name: str, most: int | None = None) -> pa.NativeFile:
    """Opens a file for reading at any place. An object store has regular files alone.

    Args:
        filesystem: that holds it.
        path: where it lies there.
        name: how errors name it.
        most: bytes that it may have; None for any number.

    Raises:
        FileRefusedError: it is not a regular file, or longer.
        FileNotFoundError, NotADirectoryError: there is no such file.
    """
    if isinstance(filesystem, fs.LocalFileSystem):
        require_size(require_regular(path, name), name, most)
        return filesystem.open_input_file(path)
    file = filesystem.open_input_file(path)
    require_size(file.size() if most is not None else 0, name, most)
    return file


def require_size(size: int, name: str, most: int | None) -> None:
    """Raises FileRefusedError: a file has more bytes than it may have."""
    if most is not None and size > most:
        raise FileRefusedError(f"{name}: has {size:,} bytes; at most {most:,} are read of it")
