"""Files, folders and patterns of the command line to the files of rows in them, each with the form of its rows."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

from pyarrow import fs

from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.ingest.packed.manifest import dataset_file, dataset_manifest
from preshard.packer_service.ingest.shell import ignore_option
from preshard.packer_service.ingest.source.containers.indexed_tokens import index_uri
from preshard.packer_service.ingest.source.containers.picture_texts import PATTERN, PICTURES, pairs_among
from preshard.packer_service.ingest.source.containers.registry import NUMBERED, TABLES
from preshard.packer_service.ingest.source.file import DATASET, SourceFile, reason_of
from preshard.packer_service.ingest.source.forms.custom import is_custom
from preshard.packer_service.ingest.source.forms.detect import find_form
from preshard.packer_service.ingest.source.look import (
    column_names,
    doubt_of,
    json_without_rows,
    look_at,
    missing_of,
    named_files,
)
from preshard.packer_service.ingest.source.names import (
    METADATA,
    SAVED,
    as_expression,
    chosen_files,
    container_of,
    find_splits,
    is_cache,
    label_sources,
    left_out_note,
    matches,
    name_of,
    pattern_of,
    root_of,
)
from preshard.packer_service.ingest.source.no_rows import beside_pictures, of_a_lake, without_files
from preshard.packer_service.ingest.source.walk import files_below, is_hidden
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import is_remote, join, locate, split_query
from preshard.schemas.files.printed import several, without_secrets
from preshard.schemas.manifest import MANIFEST, WORK
from preshard.schemas.worded import meant

LOOKING = 16
"""Files looked at at the same time: each takes a request or two in an object store."""

MOST_NAMES = 10_000
"""Files of a folder among which one is looked for that a mistyped name may stand for."""

SHOWN = 5
"""Names of a list that a line on the screen shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Files found in a job's sources, and what is notable about them.

    ``unread`` counts the files in folders that are no source, by a pattern that ``ignore`` takes, but for those with an
    ending that images and videos of first rows have, and ``unused`` the
    files of tables with a column that is not read, by the column. What rows of JSON hold is found while measuring.
    ``left_out`` says which splits are not packed.
    ``doubts`` says which form's first file begins with rows that would all be rejected.
    """

    files: list[SourceFile]
    unread: dict[str, int]
    unused: dict[str, int]
    left_out: list[str] = field(default_factory=list)
    doubts: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """Yields notes that a user should read before the work begins."""
        titles = Counter[str]()
        first: dict[str, str] = {}
        for file in self.files:
            if file.kind == DATASET:
                yield f"reads as: a packed dataset ({file.label})"
                continue
            titles[file.form] += 1
            first.setdefault(file.form, file.label)
        for name, number in titles.items():
            files = "" if number == 1 else f"{number:,} files, such as "
            yield f"reads as: {find_form(name).title} ({files}{first[name]})"
        yield from self.left_out
        yield from self.doubts
        if self.unread:
            yield f"not read as rows: {_several(self.unread)}; pass --ignore PATTERN to silence this"


def _several(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{name} ({number})" for name, number in ordered[:SHOWN])
    others = len(ordered) - SHOWN
    return shown + (f" and {several(others, 'other kind')}" if others > 0 else "")


Entry = tuple[str, fs.FileInfo]


def list_sources(
    sources: Sequence[str], config: PackConfig | None = None, media: AllowedMedia | None = None
) -> Sources:
    """Every file of rows in the given files, folders and patterns, in the order given, sorted inside a folder.

    A folder that is a packed dataset counts as one file.

    Args:
        sources: paths or URIs; ``*``, ``?`` (in paths) and ``[...]`` match within a name, ``**`` any folders.
        config: its ``form``, ``ignore``, ``ignore_columns``, ``split`` and ``source`` are followed.
        media: what rows may reach besides the folders of the sources.

    Raises:
        ConfigError: a source or a location of ``media`` does not exist, holds no such file or cannot be read; a column
            that holds media or conversation would not be read; a folder has several splits and nothing says which.
    """
    settings, media = config or PackConfig(), media or AllowedMedia()
    asked = list(sources)
    sources = [_with_ending(source) for source in sources]
    packed = list[str]()
    found: list[SourceFile] = []
    unread, left_out, paths_of = Counter[str](), list[str](), dict[str, list[str]]()
    for label, source in zip(label_sources(sources), sources, strict=True):
        manifest = dataset_manifest(source)
        if manifest is not None:
            others = {name for name, _ in settings.keep_columns} - set(manifest.head.config.get("keep_columns", {}))
            annotated = settings.where is not None or bool(others)
            found.append(dataset_file(label, source, manifest, annotated=annotated))
            continue
        entries = [
            (path, info)
            for path, info in _entries(source)
            if not any(matches(path, pattern) for pattern in settings.ignore)
        ]
        paths_of[label] = [path for path, _ in entries]
        if (reason := of_a_lake(paths_of[label], root_of(source))) is not None:
            raise ConfigError(f"SOURCE {source}: {reason}")
        entries, inside = _without_packed(source, entries)
        packed += [f"{label}/{folder}" for folder in inside]
        rows = _rows_among(entries, label, source, named_by_file=settings.source == "from_file")
        beside = {index_uri(path) for path, file in rows.items() if file.kind in NUMBERED}
        if not rows and (pairs := pairs_among(path for path, _ in entries if path)):
            rows = {PATTERN: _pictures(entries, pairs, label, source)}
            found += rows.values()
            beside |= {path for pair in pairs for path in pair}
        splits = find_splits([path for path, _ in entries if path in rows or posixpath.basename(path) == SAVED])
        if root_of(source) == source and "" not in rows:
            chosen = chosen_files(source, list(rows), splits, settings.split)
            left_out += left_out_note(label, list(rows), splits, chosen)
        else:  # the user has named the files
            chosen = set(rows)
        for path, _ in entries:
            if path in chosen:
                found.append(rows[path])
            elif not (path in rows or path in beside or not path or posixpath.basename(path) in METADATA):
                unread[pattern_of(path)] += 1
        if not any(file.label.partition("/")[0] == label for file in found):
            only = f"holds no rows but packed datasets; name {packed[-1]} itself" if inside else None
            raise ConfigError(f"SOURCE {source}: {only or without_files(source, paths_of[label])}")
    read = replace(_looked_at(found, unread, settings), left_out=left_out)
    for label, source in zip(label_sources(sources), sources, strict=True):
        if not any(file.label.partition("/")[0] == label for file in read.files):
            empty = next(file for file in found if file.label.partition("/")[0] == label)
            reason = beside_pictures(source, paths_of[label]) or json_without_rows(empty)
            raise ConfigError(f"SOURCE {source}: holds no rows: {reason}")
    left_out += (*_packed_notes(packed), *_twin_notes(read.files))
    return _with_media(replace(read, left_out=left_out), asked, sources, settings, media)


def _with_media(
    read: Sources, asked: Sequence[str], sources: Sequence[str], settings: PackConfig, media: AllowedMedia
) -> Sources:
    """The same files with what their rows may reach.

    Args:
        read: the files.
        asked: the sources as the command names them.
        sources: the same as they are read.
        settings: say how rows are read.
        media: what rows may reach besides.

    Raises:
        ConfigError: a location of ``media`` is not there, or the first rows name files that lie elsewhere.
    """
    named = {location: _there(option, location) for option, location in media.named()}
    typed = dict(zip(label_sources(sources), asked, strict=True))
    roots = tuple(dict.fromkeys([*(_media_root(source, read.files) for source in sources), *named.values()]))
    of_label = {label: tuple(named[folder] for folder in media.roots_of(given)) for label, given in typed.items()}
    own = [of_label[file.label.partition("/")[0]] for file in read.files]
    above = [split_query((*root, file.folder)[0])[0].split("/") for root, file in zip(own, read.files, strict=True)]
    common = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, zip(*above, strict=False)))
    ready = replace(
        read,
        files=[
            replace(file, media_root=root, media_roots=roots, beneath="/".join(folder[common:]))
            for file, root, folder in zip(read.files, own, above, strict=True)
        ],
    )
    named_by_rows = {file: named_files(file, settings) for file in _first_files(ready.files)}
    lost = [why for file, uris in named_by_rows.items() if (why := missing_of(file, uris, typed)) is not None]
    by_name = [
        uris for file, uris in named_by_rows.items() if file.kind != PICTURES
    ]  # there, all that are read are known
    endings = {pattern_of(uri) for uris in by_name for uri in uris}
    left = {pattern: number for pattern, number in ready.unread.items() if pattern not in endings}
    return replace(ready, doubts=(*ready.doubts, *lost), unread=left)


def _packed_notes(packed: Sequence[str]) -> Iterator[str]:
    """Notes on packed datasets in the folders of sources."""
    if packed:
        shown = ", ".join(packed[:SHOWN]) + (f" and {len(packed) - SHOWN} more" if len(packed) > SHOWN else "")
        what, them = ("the packed dataset", "it") if len(packed) == 1 else ("the packed datasets", "them")
        yield f"skipped {what} {shown}; name {them} as SOURCE to pack {them} again"


def _twin_notes(files: Sequence[SourceFile]) -> Iterator[str]:
    """Notes on files of one name but for the ending, which often hold the same rows twice."""
    named = dict[str, list[str]]()
    for file in files:
        named.setdefault(posixpath.splitext(file.label)[0], []).append(file.label)
    twins = [labels for labels in named.values() if len(labels) > 1]
    if twins:
        first, second = twins[0][:2]
        others = f" (and {several(len(twins) - 1, 'other name')})" if len(twins) > 1 else ""
        same = f"{first} and {second} have one name{others}"
        yield f"{same}; if they hold the same rows, {ignore_option(first)} leaves one out"


def _first_files(files: Sequence[SourceFile]) -> list[SourceFile]:
    """The first file of each form of each source."""
    first = dict[tuple[str, str], SourceFile]()
    for file in files:
        if file.kind != DATASET:
            first.setdefault((file.label.partition("/")[0], file.form), file)
    return list(first.values())


def _without_packed(source: str, entries: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """The files of a folder that do not belong to a packed dataset below it, and those datasets."""
    marks = (f"/{MANIFEST}", f"/{WORK}/job.json")
    folders = {path.removesuffix(mark) for path, _ in entries for mark in marks if path.endswith(mark)}
    found = sorted(folder for folder in folders if _is_packed(join(root_of(source), folder), folder, entries))
    return [entry for entry in entries if not entry[0].startswith(tuple(f"{folder}/" for folder in found))], found


def _is_packed(location: str, folder: str, entries: Sequence[Entry]) -> bool:
    """Whether a folder is a dataset, or one that is being packed, whatever its version or state."""
    if any(path == f"{folder}/{WORK}/job.json" for path, _ in entries):
        return True
    try:
        return dataset_manifest(location) is not None
    except (ConfigError, OSError):
        return True


def _rows_among(
    entries: Sequence[tuple[str, fs.FileInfo]], label: str, source: str, *, named_by_file: bool
) -> dict[str, SourceFile]:
    """The files of rows. A ``.bin`` is one beside its index, or if the user has named it: many others end so."""
    names, is_named = {path for path, _ in entries}, split_query(source)[0].endswith(".bin")
    remote, root, rows = is_remote(source), root_of(source), dict[str, SourceFile]()
    for inside, info in entries:
        container = container_of(info.path)
        if container is None or (inside and (is_hidden(inside) or is_cache(info.path))):
            continue
        kind, compression = container
        if kind not in NUMBERED or is_named or index_uri(inside) in names:
            rows[inside] = SourceFile(
                label=f"{label}/{inside}" if inside else label,
                uri=info.path if not remote else join(root, inside) if inside else source,
                kind=kind,
                compression=compression,
                size=info.size,
                mtime_ns=info.mtime_ns or 0,
                source=name_of(info.path) if named_by_file else None,
            )
    return rows


def _pictures(entries: Sequence[Entry], pairs: Sequence[tuple[str, str]], label: str, source: str) -> SourceFile:
    """The pictures of a folder with a text beside each, as one file of rows."""
    named = {path for pair in pairs for path in pair}
    infos = [info for path, info in entries if path in named]
    root = root_of(source)
    return SourceFile(
        label=f"{label}/{PATTERN}",
        uri=join(root if is_remote(root) else locate(root)[1], PATTERN),
        kind=PICTURES,
        size=sum(info.size for info in infos),
        mtime_ns=max(info.mtime_ns or 0 for info in infos),
    )


def _there(option: str, location: str) -> str:
    """A location of the command that rows may reach, whatever the working directory of the task that reads it.

    Raises:
        ConfigError: nothing is there, or nothing opens it.
    """
    try:
        filesystem, path = locate(location)
        if filesystem.get_file_info(path).type == fs.FileType.NotFound:
            raise ConfigError("no such file or folder")
    except (OSError, ConfigError) as error:
        raise ConfigError(
            f"{option} {location}: {reason_of(error).removeprefix(f'{without_secrets(location)}: ')}"
        ) from None
    return location if is_remote(location) else path


def _meant(source: str, path: str) -> str:
    """The name beside a local path that comes near it, as a question, if any does."""
    if is_remote(source) or not Path(path).parent.is_dir():
        return ""
    beside = islice(Path(path).parent.iterdir(), MOST_NAMES)
    return meant(Path(path).name, sorted(each.name for each in beside))


def _media_root(source: str, files: Sequence[SourceFile]) -> str:
    """The folder of a source: itself, that of its pattern, or the one that holds its only file."""
    root = root_of(source)
    location = root if is_remote(root) else locate(root)[1]
    return next((file.folder for file in files if file.uri == location and file.kind != DATASET), location)


def _looked_at(found: list[SourceFile], unread: Counter[str], config: PackConfig) -> Sources:
    """The same files with the forms of their rows; those whose JSON is no rows are not read."""
    files: list[SourceFile] = []
    unused = Counter[str]()
    with ThreadPoolExecutor(LOOKING) as pool:
        for file, look in zip(found, pool.map(partial(look_at, config=config), found), strict=True):
            if look is None:
                unread[pattern_of(file.label)] += 1
                continue
            files.append(look[0])
            unused.update(look[1])
    first = {file.form: file for file in reversed(files) if file.kind != DATASET and not is_custom(file.form)}
    doubts = [doubt for file in reversed(first.values()) if (doubt := doubt_of(file, config)) is not None]
    return Sources(
        files=files,
        unread=dict(sorted(unread.items())),
        unused=dict(sorted(unused.items())),
        doubts=(*doubts, *_unkept(files, tuple(first.values()), config)),
    )


def _unkept(files: Sequence[SourceFile], first: Sequence[SourceFile], config: PackConfig) -> Iterator[str]:
    """Notes on columns that documents shall keep, and no file seems to have.

    Args:
        files: all files.
        first: one of each form.
        config: names the columns.

    Raises:
        ConfigError: the files are tables, whose schemas say so.
    """
    if not config.keep_columns or any(file.kind == DATASET for file in files):
        return
    are_tables = all(file.kind in TABLES for file in files)
    there = set[str]().union(*map(column_names, files if are_tables else first))
    for name in (name for name, _ in config.keep_columns if name not in there):
        folders = (part for file in files for part in file.label.split("/")[:-1] if part.startswith(f"{name}="))
        folder = next(folders, None)
        in_rows = f"; write it into the rows, as the names of folders are not read ({folder})"
        why = in_rows if folder else meant(name, sorted(there))
        reason = f"keep_columns: no {'file' if are_tables else 'first row'} has a column {name}{why}"
        if are_tables:
            raise ConfigError(reason)
        yield f"{reason}{'' if why else '; documents keep null where their row has none'}"


def _with_ending(source: str) -> str:
    """The source; of what Megatron calls the prefix of an indexed dataset, its ``.bin``."""
    path, query = split_query(source)
    tokens = f"{path}.bin{query}"
    try:
        filesystem, at = locate(source)
        found = filesystem.get_file_info([at, *(locate(each)[1] for each in (tokens, index_uri(tokens)))])
    except (OSError, ConfigError):
        return source  # whoever lists it says why
    missing = [info.type == fs.FileType.NotFound for info in found]
    return tokens if missing == [True, False, False] else source


def _entries(source: str) -> Iterator[tuple[str, fs.FileInfo]]:
    """The files of a source, each with its path below it; that of a source which is itself a file is empty.

    Raises:
        ConfigError: there is no such file or folder, or it cannot be listed.
    """
    try:
        root = root_of(source)
        filesystem, path = locate(root)
        info = filesystem.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise ConfigError(f"no such file or folder{_meant(source, path)}")
        if info.type != fs.FileType.Directory:
            yield "", info
            return
        infos = files_below(filesystem, path)
    except (OSError, ConfigError) as error:
        raise ConfigError(f"SOURCE {source}: {reason_of(error)}") from None
    wild = split_query(source)[0].removeprefix(split_query(root)[0] if root != "." else "")
    pattern = None if root == source else re.compile(as_expression(wild))
    for info in infos:
        inside = info.path[len(path) :].strip("/")
        if pattern is None or pattern.fullmatch(inside):
            yield inside, info
