"""Files below a folder, each once by a path, whatever links to folders there are."""

from __future__ import annotations

import os

from pyarrow import fs

from preshard.schemas.errors import ConfigError


def is_hidden(inside: str) -> bool:
    """Whether a file, by its path in a source, is one that other programs keep beside the data: ``datasets`` and Spark
    do not read it either. macOS has ``._a.jpg`` and ``__MACOSX``, Jupyter ``.ipynb_checkpoints``, Spark ``_temporary``.
    """
    return any(name.startswith((".", "__")) or name == "_temporary" for name in inside.split("/"))


def files_below(filesystem: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """All files below a folder, in order of their paths. A link is followed, unless it leads to a folder it lies in.

    Raises:
        ConfigError: a name is not UTF-8.
        OSError: a folder cannot be listed.
    """
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            found = _walk(filesystem, folder)
        else:
            found = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
        return sorted((info for info in found if info.is_file), key=lambda info: info.path)
    except UnicodeDecodeError as error:  # Arrow's paths are text
        raise ConfigError(f"a file or folder in it is named {error.object!r}, which is not UTF-8; rename it") from None


def _walk(filesystem: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """Everything below a local folder: Arrow would go round in links until the system refuses."""
    found, pending = list[fs.FileInfo](), [(folder, frozenset[tuple[int, int]]())]
    while pending:
        inside, above = pending.pop()
        place = os.stat(inside)  # noqa: PTH116
        if (here := (place.st_dev, place.st_ino)) in above:
            continue
        entries = filesystem.get_file_info(fs.FileSelector(inside))
        found += entries
        pending += [(entry.path, above | {here}) for entry in entries if entry.type == fs.FileType.Directory]
    return found
