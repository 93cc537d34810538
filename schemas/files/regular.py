"""Opens files of a dataset that somebody else may have made: regular ones alone, and no longer than they may be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from preshard.schemas.errors import PreshardError


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
        FileRefusedError: it is a folder, a pipe, a device or a socket.
        FileNotFoundError, NotADirectoryError: there is no such file.
    """
    status = os.stat(path)  # noqa: PTH116, a Path takes as long to make as all the rest
    if not stat.S_ISREG(status.st_mode):
        kind = next((words for holds, words in _KINDS if holds(status.st_mode)), "no file")
        raise FileRefusedError(f"{name}: is {kind}, not a file")
    return status.st_size


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


def hub_blobs(folder: Path) -> Path | None:
    """The folder into which the files of a snapshot in a Hugging Face cache are links; None for any other folder.

    Args:
        folder: without links, at or below ``datasets--OWNER--NAME/snapshots/REVISION``.
    """
    for snapshot in (folder, *folder.parents):
        if snapshot.parent.name == "snapshots":
            return snapshot.parent.with_name("blobs")
    return None


def leads_outside(path: str | Path, root: Path) -> bool:
    """Whether a file lies neither below a root nor, of a snapshot in a Hugging Face cache, among its blobs.

    Args:
        path: of the file or folder, whose links are followed.
        root: the root, without links.
    """
    try:
        real = Path(path).resolve()
    except (OSError, RuntimeError, ValueError):  # circular links, names that no file can have
        return True
    if real.is_relative_to(root):
        return False
    blobs = hub_blobs(root)
    return blobs is None or real.parent != blobs


def refuse_links(top: str | Path, path: str | Path) -> None:
    """Refuses to write through a link below a dataset's folder, which may lead anywhere.

    Args:
        top: the dataset's folder, which may be a link itself.
        path: what is written, at or below it.

    Raises:
        FileRefusedError: a folder on the way is a link.
    """
    at = Path(top)
    for part in Path(path).relative_to(at).parts:
        at /= part
        if at.is_symlink():
            what = f"{at.relative_to(top)} is a link, and nothing is written through links; remove it"
            raise FileRefusedError(f"DATASET {top}: {what}")
