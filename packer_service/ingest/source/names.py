"""What paths and patterns of a command line say: folders to look in, names that match, containers and labels."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Sequence

from preshard.packer_service.ingest.source.containers.registry import (
    CODECS,
    NUMBERED,
    SUFFIXES,
    TABLES,
    WHOLE_SUFFIXES,
)
from preshard.schemas.files.filesystem import is_uri, split_query
from preshard.schemas.files.secrets import without_secrets

ENDINGS = frozenset((*SUFFIXES, *WHOLE_SUFFIXES, *CODECS))
_NUMBERED = re.compile(r"-[0-9]{5}-of-[0-9]{5}.*$")
METADATA = frozenset(("state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json"))
"""What ``datasets`` writes beside its files of rows."""
CACHE = re.compile(r"^(cache|indices|tmp)[-.].*[.]arrow$|^cache-.*")
"""What ``datasets`` leaves in a folder when its rows are mapped or filtered: not the rows that were saved."""


def root_of(source: str) -> str:
    """The folder that a pattern looks in; a source without a pattern is its own."""
    wild = re.search(r"[*\[]" if is_uri(source) else r"[*?\[]", split_query(source)[0])
    if wild is None or (not is_uri(source) and os.path.exists(source)):  # noqa: PTH110
        return source
    path, query = split_query(source)
    return (path[: path.rfind("/", 0, wild.start()) + 1].rstrip("/") or ("/" if path.startswith("/") else ".")) + query


def as_expression(pattern: str) -> str:
    """A pattern of paths as a regular expression."""
    out = ""
    for piece in re.findall(r"[*][*]/|[*]+|\[[^]]*\]|[?]|[^*?\[]+|\[", pattern.strip("/")):
        special = {"**/": "(?:.*/)?", "*": "[^/]*", "**": ".*", "?": "[^/]"}
        is_class = piece[0] == "[" and len(piece) > 1
        out += special.get(piece) or (piece.replace("[!", "[^") if is_class else re.escape(piece))
    return out


def matches(inside: str, pattern: str) -> bool:
    """Whether a pattern means a file: by its name, or, with a slash in it, by its path in the source."""
    if "/" in pattern:
        return re.fullmatch(as_expression(pattern), inside) is not None
    return fnmatch.fnmatchcase(posixpath.basename(inside), pattern)


def pattern_of(path: str) -> str:
    """The pattern under which a file that is not read is counted: its ending, or its name where it has none."""
    name = posixpath.basename(path)
    stem, dot, suffix = name.rpartition(".")
    return f"*.{suffix}" if dot and stem else name


def name_of(path: str) -> str:
    """A file's name without its endings, and without its number among files of one name."""
    name = posixpath.basename(path)
    while os.path.splitext(name)[1].lower() in ENDINGS:  # noqa: PTH122
        name = os.path.splitext(name)[0]  # noqa: PTH122
    return _NUMBERED.sub("", name) or name


def container_of(path: str) -> tuple[str, str | None] | None:
    """Container and compression of a file, by the end of its name."""
    stem, suffix = os.path.splitext(path.lower())  # noqa: PTH122
    if suffix in WHOLE_SUFFIXES:
        return WHOLE_SUFFIXES[suffix]
    if suffix in CODECS:
        kind = SUFFIXES.get(os.path.splitext(stem)[1])  # noqa: PTH122
        return (kind, CODECS[suffix]) if kind is not None and kind not in TABLES | NUMBERED else None
    return (SUFFIXES[suffix], None) if suffix in SUFFIXES else None


def is_cache(path: str) -> bool:
    name = posixpath.basename(path)
    return name in METADATA or bool(CACHE.match(name))


def label_sources(sources: Sequence[str]) -> list[str]:
    """The last parts of the sources' paths, numbered where two are the same."""
    paths = [split_query(root_of(without_secrets(source)))[0] for source in sources]
    names = [path.rstrip("/").rpartition("/")[2] or "source" for path in paths]
    return [name if names.count(name) == 1 else f"{name}~{names[:i].count(name) + 1}" for i, name in enumerate(names)]
