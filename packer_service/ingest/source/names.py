"""Meaning of the paths and patterns of a command line: folders, splits, names that match, containers and labels."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from preshard.packer_service.ingest.source.containers.registry import CODECS, NUMBERED, SUFFIXES, TABLES, WHOLE_SUFFIXES
from preshard.packer_service.ingest.source.walk import is_hidden
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import is_uri, split_query
from preshard.schemas.files.printed import without_secrets

ALL = "all"
"""Asks for every file, whatever its split."""

SAVED = "dataset_dict.json"
"""File that ``save_to_disk`` writes beside the folders of the splits of a ``DatasetDict``."""

KEYWORDS = {
    "train": "train|training",
    "validation": "validation|valid|dev|val",
    "test": "test|testing|eval|evaluation",
}
_EDGE = "[-._ 0-9]"
_SHARDED = re.compile(r"data/([^/]+?)-\d{5}-of-\d{5}[^/]*[.][^/]*")
_IN_FOLDER = {name: re.compile(f"(.*{_EDGE})?({words})({_EDGE}.*)?") for name, words in KEYWORDS.items()}
_IN_FILE = {name: re.compile(f"(.*{_EDGE})?({words}){_EDGE}.*") for name, words in KEYWORDS.items()}


def find_splits(paths: Sequence[str]) -> dict[str, str]:
    """The split of each file that has one.

    Of the ways in which splits are written the first that any file follows is taken, as by ``load_dataset``: a saved
    ``DatasetDict``, ``data/NAME-00000-of-00001.*``, folders, and at last names of files with words such as ``train``.

    Args:
        paths: of a folder's files, relative to it.
    """
    saved = [posixpath.dirname(path) for path in paths if posixpath.basename(path) == SAVED]
    ways: list[Callable[[str], str | None]] = [
        lambda path: next((name for folder in saved if (name := _folder_below(folder, path))), None),
        lambda path: found.group(1) if (found := _SHARDED.fullmatch(path)) else None,
        lambda path: _named(_IN_FOLDER, path.split("/")[-2::-1]),
        lambda path: _named(_IN_FILE, [posixpath.basename(path)]),
    ]
    for way in ways:
        found_splits = {path: name for path in paths if (name := way(path)) is not None}
        if found_splits:
            return found_splits
    return {}


def _folder_below(folder: str, path: str) -> str | None:
    inside = path.removeprefix(f"{folder}/") if folder else path
    name, slash, _ = inside.partition("/")
    return name if slash and (not folder or inside != path) else None


def _named(patterns: Mapping[str, re.Pattern[str]], names: Sequence[str]) -> str | None:
    """The split that the first of some names tells."""
    return next((split for name in names for split, word in patterns.items() if word.fullmatch(name)), None)


def chosen_files(source: str, files: Sequence[str], splits: Mapping[str, str], wanted: str | None) -> set[str]:
    """The files of a folder that are packed.

    Args:
        source: the folder, as the command names it.
        files: its files of rows, relative to it.
        splits: of those that have one.
        wanted: names of splits with ``+`` between them, ``all``, or None.

    Raises:
        ConfigError: there are several splits and nothing says which, or one that is wanted is not there.
    """
    counts = Counter(splits[file] for file in files if file in splits)
    names = sorted(counts, key=lambda name: ([*KEYWORDS, name].index(name), name))
    if wanted == ALL or (wanted is None and len(names) < 2):
        return set(files)
    shown = ", ".join(f"{name} ({_files(counts[name])})" for name in names)
    if wanted is None:
        raise ConfigError(
            f"SOURCE {source}: holds the splits {shown}; say which with --set split={names[0]}, "
            f"--set split={'+'.join(names[:2])} or --set split={ALL}"
        )
    asked = wanted.split("+")
    if not names and asked == ["train"]:  # what datasets calls a folder without splits
        return set(files)
    if missing := [name for name in asked if name not in counts]:
        raise ConfigError(
            f"SOURCE {source}: has no split {missing[0]!r:.80}; it has {shown or 'none'}; --set split={ALL} takes all"
        )
    return {file for file in files if splits.get(file) in asked}


def left_out_note(label: str, files: Sequence[str], splits: Mapping[str, str], chosen: set[str]) -> Iterator[str]:
    """Notes on what a choice of splits leaves out of a folder."""
    counts = Counter(splits.get(file, "no split") for file in files if file not in chosen)
    if counts:
        left = ", ".join(f"{name} ({_files(number)})" for name, number in sorted(counts.items()))
        yield f"splits left out of {label}: {left}"


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


ENDINGS = frozenset((*SUFFIXES, *WHOLE_SUFFIXES, *CODECS))
_NUMBERED = re.compile(r"-[0-9]{5}-of-[0-9]{5}.*$")
METADATA = frozenset(("state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json"))
"""Files that ``datasets`` writes beside its files of rows."""
CACHE = re.compile(r"^(cache|indices|tmp)[-.].*[.]arrow$|^cache-.*")
"""Names of files that ``datasets`` leaves in a folder when rows are mapped or filtered: not those that were saved."""


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
    if folder := next((part for part in path.split("/")[:-1] if is_hidden(part)), None):
        return f"**/{folder}/**"
    stem, dot, suffix = name.rpartition(".")
    return "._*" if name.startswith("._") else f"*.{suffix}" if dot and stem else name


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
