"""Opens files of a dataset that somebody else may have made: regular ones alone, and no longer than they may be."""

from __future__ import annotations

from pathlib import Path

from preshard.schemas.files.filesystem import FileRefusedError


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
    if real.is_symlink():  # a circle, which Python 3.13 leaves as it is
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
