"""Files near a missing image or video: the same path in a folder below, or a name that is spelled otherwise."""

from __future__ import annotations

import os
import posixpath
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from urllib.parse import unquote

from preshard.packer_service.ingest.source.forms.inline import IMAGE_SUFFIXES, VIDEO_SUFFIXES
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


def _without_ending(path: str) -> str:
    stem, ending = posixpath.splitext(path)
    return stem if ending[1:].lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES else path


_SPELLINGS: dict[str, Callable[[str], str]] = {
    "in another Unicode form": partial(unicodedata.normalize, "NFC"),
    "in other capitals": str.casefold,
    "with / in place of \\": lambda path: path.replace("\\", "/"),
    "without percent-encoding": unquote,
    "without white space around it": str.strip,
    "behind Label Studio's ?d=": lambda path: path.rpartition("?d=")[2],
}
"""Ways in which a reference may differ from the name that was meant, each with what makes both equal."""


def _spelled(path: str) -> str:
    for made_equal in reversed(_SPELLINGS.values()):
        path = made_equal(path)
    return _without_ending(posixpath.normpath(path))


@lru_cache(maxsize=4)
def _spellings_below(folder: str) -> dict[str, tuple[str, ...]]:
    """The images and videos below a local folder, by their paths without what makes spellings differ."""
    found = dict[str, list[str]]()
    for name, places in _names_below(folder).items():
        if _without_ending(name) != name:
            for place in places:
                path = posixpath.join(place, name)
                found.setdefault(_spelled(path), []).append(path)
    return {spelled: tuple(sorted(paths)) for spelled, paths in found.items()}


@lru_cache(maxsize=4)
def _ends_below(folder: str) -> dict[str, tuple[str, ...]]:
    """The same spellings by the last part of each."""
    found = dict[str, list[str]]()
    for spelled in _spellings_below(folder):
        found.setdefault(posixpath.basename(spelled), []).append(spelled)
    return {end: tuple(sorted(paths)) for end, paths in found.items()}


def spelled_otherwise(folders: Sequence[str], uri: str) -> str:
    """Words on the file that a reference would name if it were spelled as the file is; none if there is none.

    Args:
        folders: those in which nothing has its name.
        uri: the reference.
    """
    path = posixpath.normpath(uri)
    for folder in folders:
        if is_uri(folder):
            continue
        for found in _spellings_below(folder).get(_spelled(path), ()):
            if found != path:
                ways = {**_SPELLINGS, "with another ending": _without_ending}
                how = [words for words, made_equal in ways.items() if made_equal(path) == made_equal(found)]
                return f"; found {found}, {how[0] if how else 'spelled otherwise'}: write it as the file is named"
    for folder in folders:
        if not is_uri(folder) and (other := _elsewhere(folder, _spelled(path))) is not None:
            return f"; found {other}, in another folder: write it as the file is named"
    return ""


def _elsewhere(folder: str, spelled: str) -> str | None:
    """The one file below a folder whose path ends as a reference does that begins with other folders."""
    names = spelled.split("/")
    alike = _ends_below(folder).get(names[-1], ()) if len(names) > 1 else ()
    if not alike:
        return None
    shared = {path: _shared_end(path.split("/"), names) for path in alike}
    most = max(shared.values())
    best = [path for path in alike if shared[path] == most]
    return _spellings_below(folder)[best[0]][0] if len(best) == 1 else None


def _shared_end(first: Sequence[str], second: Sequence[str]) -> int:
    """Number of parts that two paths have in common at their ends."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
