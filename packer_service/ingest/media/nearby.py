"""Files near a missing image or video: the same path in a folder below, or a name that is spelled otherwise."""

from __future__ import annotations

import os
import posixpath
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from urllib.parse import unquote

from preshard.schemas.files.filesystem import is_uri

FILES_LISTED = 200_000
"""Most files below a folder among which one is looked for that is not where its row says."""


@lru_cache(maxsize=4)
def _names_below(folder: str) -> dict[str, tuple[str, ...]]:
    """The folders below a local folder in which files of each name lie, the nearest first."""
    found = dict[str, list[str]]()
    n_files = 0
    for path, folders, names in os.walk(folder):
        folders.sort()
        inside = path[len(folder) :].strip("/")
        for name in names:
            found.setdefault(name, []).append(inside)
        n_files += len(names)
        if n_files > FILES_LISTED:
            break
    return {name: tuple(sorted(places, key=lambda place: (place.count("/"), place))) for name, places in found.items()}


def found_below(folder: str, uri: str) -> str | None:
    """The folder below a local one that a reference is relative to, by the names of the files there; None if none is.

    Args:
        folder: the folder.
        uri: a relative reference, of which nothing is in the folder itself.
    """
    if is_uri(folder):
        return None
    path = posixpath.normpath(uri)
    for place in _names_below(folder).get(posixpath.basename(path), ()):
        whole = posixpath.join(place, posixpath.basename(path))
        if whole.endswith(f"/{path}"):
            return whole[: -len(path) - 1]
    return None


_SPELLINGS: dict[str, Callable[[str], str]] = {
    "in another Unicode form": partial(unicodedata.normalize, "NFC"),
    "in other capitals": str.casefold,
    "with / in place of \\": lambda path: path.replace("\\", "/"),
    "without percent-encoding": unquote,
    "without white space around it": str.strip,
}
"""Ways in which a reference may differ from the name that was meant, each with what makes both equal."""


def _spelled(path: str) -> str:
    for made_equal in reversed(_SPELLINGS.values()):
        path = made_equal(path)
    return path


@lru_cache(maxsize=4)
def _spellings_below(folder: str) -> dict[str, str]:
    """The files below a local folder, by their paths without what makes spellings differ."""
    found = (posixpath.join(place, name) for name, places in _names_below(folder).items() for place in places)
    return {_spelled(path): path for path in sorted(found, reverse=True)}


def spelled_otherwise(folders: Sequence[str], uri: str) -> str:
    """Words on the file that a relative reference would name if it were spelled as the file is; none if there is none.

    Args:
        folders: those in which nothing has its name.
        uri: the reference.
    """
    path = posixpath.normpath(uri)
    for folder in folders:
        found = None if is_uri(folder) else _spellings_below(folder).get(_spelled(path))
        if found is not None and found != path:
            how = [words for words, made_equal in _SPELLINGS.items() if made_equal(path) == made_equal(found)]
            return f"; found {found}, {how[0] if how else 'spelled otherwise'}: write it as the file is named"
    return ""
