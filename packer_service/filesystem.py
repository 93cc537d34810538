"""Paths and URIs to the filesystems that pyarrow opens."""

from __future__ import annotations

import re
from pathlib import Path

from pyarrow import ArrowException, fs

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


def is_uri(location: str) -> bool:
    """Whether a location names its scheme (``s3://``, ``file://``), else it is a local path."""
    return bool(_SCHEME.match(location))


def locate(location: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a path or URI, and the path inside it.

    Raises:
        OSError: no such scheme, or a malformed URI.
    """
    if not is_uri(location):
        return fs.LocalFileSystem(), str(Path(location).absolute())
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except (ArrowException, ValueError) as error:
        raise OSError(f"{location}: {' '.join(str(error).split())}") from None
    return filesystem, path


def join(folder: str, *names: str) -> str:
    """A path or URI below a folder."""
    return "/".join([folder.rstrip("/") or folder, *names])
