"""The demo's bad documents, one or more for each reason to reject a document, and their broken files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from preshard.packer_service.demo.questions import Row, conversation, text_part
from preshard.packer_service.demo.texts import reference_text

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
    """Code and row of every bad document that is valid JSON. Of two duplicates, the last one is bad."""
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
    yield "duplicate_id", _text("bad-duplicate", "The second of two rows of one name.")
    yield "bad_row", {"id": "bad-no-content", "source": "docs_text"}
    yield "bad_row", {**_text("bad-two-forms", "Text."), "messages": conversation("And turns?", "Yes.")}
    yield "bad_row", _about("bad-unknown-part", {"type": "hologram", "hologram": "photos/moon.png"})
    yield "bad_row", {"id": "bad-role", "source": "image_qa", "messages": [{"role": "narrator", "content": "Once."}]}


def first_of_duplicates() -> Row:
    """The good row whose id the duplicate repeats."""
    return _text("bad-duplicate", "The first of two rows of one name.")


def _about(doc_id: str, part: Row) -> Row:
    source = "video_qa" if part["type"] == "video" else "image_qa"
    messages = conversation([part, text_part("What is this?")], "It cannot be seen.")
    return {"id": doc_id, "source": source, "messages": messages}


def _text(doc_id: str, text: str) -> Row:
    return {"id": doc_id, "source": "docs_text", "text": text}
