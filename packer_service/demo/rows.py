"""The demo's conversations: questions about the media, with answers computed from the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from preshard.packer_service.demo.media import DemoPhoto, DemoVideo

Row = dict[str, Any]

SYSTEM = "You look at pictures and videos, and answer in one short sentence."
CLIPS = ((0.0, 0.5), (0.0, 2.0), (0.5, 1.75), (1.0, 4.0), (1.3, 2.1), (2.0, 2.6), (2.5, 5.0), (3.0, 9.0), (0.0, 15.0))
"""Start and end in seconds; a video is cut into those that begin within it."""

SHORTEST_CUT, SHORTEST_CLIP = 0.5, 0.25
"""Seconds above which a video is cut into clips, and that a clip must at least show: a few frames at each rate here."""


def conversation(user: list[Row] | str, *turns: str, system: str | None = None) -> list[Row]:
    """The user's message, and then turns of the assistant and the user alternately."""
    roles = ["assistant" if number % 2 == 0 else "user" for number in range(len(turns))]
    head = [] if system is None else [{"role": "system", "content": system}]
    said = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]
    return [*head, {"role": "user", "content": user}, *said]


def text_part(text: str) -> Row:
    return {"type": "text", "text": text}


def image_part(photo: DemoPhoto) -> Row:
    return {"type": "image", "image": f"photos/{photo.name}"}


def video_part(video: DemoVideo, clip: tuple[float, float] | None = None) -> Row:
    cut = {} if clip is None else {"start": clip[0], "end": clip[1]}
    return {"type": "video", "video": f"videos/{video.name}", **cut}


def bright_word(brightness: float) -> str:
    """A word for the mean of all pixels, 0 to 255."""
    names = ((64, "dark"), (100, "rather dark"), (150, "of middle brightness"), (200, "rather bright"))
    return next((name for limit, name in names if brightness < limit), "bright")


def video_rows(videos: Sequence[DemoVideo]) -> Iterator[Row]:
    """Every video whole and in clips, each with one to three questions."""
    for video in videos:
        stem = video.name.replace(".", "-")
        user = [video_part(video), text_part("What does the video show, and how long is it?")]
        answer = f"It shows {video.subject}, for {video.duration:.1f} seconds."
        size = f"{video.frames.width} x {video.frames.height} pixels."
        messages = conversation(user, answer, "How large is its picture?", size, system=SYSTEM)
        yield {"id": f"video-{stem}", "source": "video_qa", "messages": messages}
        for number, (start, end) in enumerate(_clips_of(video)):
            yield {
                "id": f"video-{stem}-clip-{number}",
                "source": "video_qa",
                "messages": _about_clip(video, start, end, number),
            }


def _clips_of(video: DemoVideo) -> list[tuple[float, float]]:
    if video.duration <= SHORTEST_CUT:
        return []
    return [clip for clip in CLIPS if clip[0] < video.duration - SHORTEST_CLIP]


def _about_clip(video: DemoVideo, start: float, end: float, number: int) -> list[Row]:
    until = min(end, video.duration)
    light = bright_word(video.brightness_between(start, until))
    facts = (
        ("What happens here?", f"One sees {video.subject}."),
        ("How long is this clip?", f"About {until - start:.1f} seconds."),
        ("How bright is the picture?", f"On the whole it is {light}."),
        ("How many frames appear in the clip?", f"{video.frames_between(start, until)} frames."),
    )
    chosen = [facts[(number + turn) % len(facts)] for turn in range(1 + number % 3)]
    turns = [text for fact in chosen for text in fact]
    return conversation([video_part(video, (start, end)), text_part(turns[0])], *turns[1:])


def image_rows(photos: Sequence[DemoPhoto]) -> Iterator[Row]:
    """Questions about one, two, and several pictures."""
    for number, photo in enumerate(photos):
        stem = photo.name.partition(".")[0]
        kind = "in colour" if photo.coloured else "in shades of grey"
        user = [image_part(photo), text_part("What is in this picture?")]
        answers = (f"It shows {photo.subject}.", "Is it in colour?", f"It is {kind}.")
        yield {"id": f"image-{stem}", "source": "image_qa", "messages": conversation(user, *answers, system=SYSTEM)}
        user = [text_part("How large is this picture, and how bright?"), image_part(photo)]
        size = f"{photo.width} x {photo.height} pixels; it is {bright_word(photo.brightness)}."
        yield {"id": f"image-{stem}-size", "source": "image_qa", "messages": conversation(user, size)}
        yield _brighter_of_two(number, photo, photos[(number + 7) % len(photos)])
        if number % 2 == 0:
            yield _several(number, [photos[(number + 3 * i) % len(photos)] for i in range(3 + number // 2 % 7)])


def _brighter_of_two(number: int, first: DemoPhoto, second: DemoPhoto) -> Row:
    user = [image_part(first), image_part(second), text_part("Which of the two pictures is brighter?")]
    which = "first" if first.brightness >= second.brightness else "second"
    return {"id": f"images-pair-{number}", "source": "image_qa", "messages": conversation(user, f"The {which} one.")}


def _several(number: int, photos: Sequence[DemoPhoto]) -> Row:
    user = [part for i, photo in enumerate(photos) for part in (text_part(f"Picture {i + 1}:"), image_part(photo))]
    listed = "; ".join(f"{i + 1}: {photo.subject}" for i, photo in enumerate(photos))
    messages = conversation([*user, text_part("Name what each picture shows.")], f"{listed}.")
    return {"id": f"images-list-{number}", "source": "image_qa", "messages": messages}


def multi_rows(videos: Sequence[DemoVideo], photos: Sequence[DemoPhoto]) -> Iterator[Row]:
    """Several questions about one clip, or about the same pictures: each sees the media and itself."""
    for video in videos:
        stem = video.name.replace(".", "-")
        for number, clip in enumerate([None, *_clips_of(video)[1::2]]):
            annotations = _clip_annotations(video, clip)[: 2 + number]
            yield {
                "id": f"multi-{stem}-{number}",
                "source": "multi_qa",
                "media": [video_part(video, clip)],
                "annotations": annotations,
            }
    for number in range(0, len(photos), 2):
        group = [photos[(number + i) % len(photos)] for i in range(1 + number // 2 % 3)]
        annotations = [
            conversation(f"What does picture {i + 1} show?", f"It shows {photo.subject}.")
            for i, photo in enumerate(group)
        ] + [conversation("How many pictures are there?", f"{len(group)}.")]
        media = [image_part(photo) for photo in group]
        yield {"id": f"multi-images-{number}", "source": "multi_qa", "media": media, "annotations": annotations}


def _clip_annotations(video: DemoVideo, clip: tuple[float, float] | None) -> list[list[Row]]:
    start, end = (0.0, video.duration) if clip is None else (clip[0], min(clip[1], video.duration))
    frames = video.frames_between(start, end)
    light = bright_word(video.brightness_between(start, end))
    return [
        conversation("What does the clip show?", f"It shows {video.subject}."),
        conversation("How many frames does it have?", f"It has {frames} frames."),
        conversation("How long is it?", f"{end - start:.2f} seconds.", "And how bright?", f"It is {light}."),
        conversation("How wide and how high is the picture?", f"{video.frames.width} by {video.frames.height} pixels."),
        conversation(
            "Is the picture wider than it is high?", "Yes." if video.frames.width > video.frames.height else "No."
        ),
        conversation(f"Is the picture {light}?", f"Yes, it is {light}."),
    ]


def inline_rows(photos: Sequence[DemoPhoto]) -> Iterator[Row]:
    """Pictures stored in the row itself, for Parquet."""
    for number, photo in enumerate(photos):
        stem = photo.name.partition(".")[0]
        part = {"type": "image", "bytes": photo.thumbnail}
        if number % 2:
            messages = conversation([part, text_part("Name what this shows.")], f"It shows {photo.subject}.")
            yield {"id": f"inline-{stem}", "source": "inline_qa", "messages": messages}
            continue
        shape = "wider than high" if photo.width > photo.height else "not wider than high"
        annotations = [
            conversation("Name what this shows.", f"It shows {photo.subject}."),
            conversation("What is the picture's shape?", f"It is {shape}."),
        ]
        yield {"id": f"inline-{stem}", "source": "inline_qa", "media": [part], "annotations": annotations}


def broken_rows(too_long: str) -> Iterator[tuple[str, Row]]:
    """Code and row of every bad document that is valid JSON. Of two equal rows, the second is bad.

    Args:
        too_long: a text that fits no sequence.
    """
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
    yield from _broken_forms(too_long)


def _broken_forms(too_long: str) -> Iterator[tuple[str, Row]]:
    yield "empty", _text("bad-empty-text", "")
    yield "empty", _text("bad-blank-text", " \n\t ")
    yield "empty", {"id": "bad-no-answer", "source": "image_qa", "messages": conversation("Is anyone there?")}
    yield "too_long", _text("bad-too-long", too_long)
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
