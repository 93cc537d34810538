"""The splits of a folder, found where ``datasets`` finds them: in folders and names of files."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from preshard.schemas.errors import ConfigError

ALL = "all"
"""Asks for every file, whatever its split."""

SAVED = "dataset_dict.json"
"""What ``save_to_disk`` writes beside the folders of the splits of a ``DatasetDict``."""

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
    """What a choice of splits leaves out of a folder."""
    counts = Counter(splits.get(file, "no split") for file in files if file not in chosen)
    if counts:
        left = ", ".join(f"{name} ({_files(number)})" for name, number in sorted(counts.items()))
        yield f"splits left out of {label}: {left}"


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"
