"""Paths and URIs to the filesystems that pyarrow opens."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from pyarrow import ArrowException, fs

from schemas.errors import ConfigError

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


def is_uri(location: str) -> bool:
    """Whether a location names its scheme (``s3://``, ``file://``), else it is a local path."""
    return bool(_SCHEME.match(location))


def locate(location: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a path or URI, and the path inside it.

    Raises:
        ConfigError: no such scheme, or a malformed URI.
        OSError: the filesystem does not answer.
    """
    if not is_uri(location):
        return fs.LocalFileSystem(), str(Path(location).absolute())
    try:
        return _from_uri(location)
    except (ArrowException, ValueError) as error:
        raise ConfigError(f"{location}: {' '.join(str(error).split())}") from None


@lru_cache(maxsize=256)
def _from_uri(location: str) -> tuple[fs.FileSystem, str]:
    """Kept, since a shard's documents are read from few files one by one, and making a client can cost a request."""
    filesystem, path = fs.FileSystem.from_uri(location)
    return filesystem, path


def without_credentials(location: str) -> str:
    """A location without the key and secret that a URI can hold before its bucket (``s3://key:secret@bucket``)."""
    if not is_uri(location):
        return location
    scheme, _, rest = location.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


def join(folder: str, *names: str) -> str:
    """A path or URI below a folder; a URI's query, such as ``?region=eu-west-1``, stays behind the path."""
    path, query = split_query(folder)
    return "/".join([path.rstrip("/") or path, *names]) + query


def split_query(location: str) -> tuple[str, str]:
    """A location's path and its query with the question mark; a local path has no query."""
    path, mark, query = location.partition("?") if is_uri(location) else (location, "", "")
    return path, mark + query
