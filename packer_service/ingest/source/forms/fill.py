"""Images and videos from columns of their own, put in order into the places that a row leaves for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from preshard.packer_service.ingest.document import Document, Medium, MediumKind, Message, Part
from preshard.packer_service.ingest.source.forms.fields import bad
from preshard.packer_service.ingest.source.forms.media import NumberedPlace, frames_video, references, with_settings
from preshard.packer_service.ingest.source.forms.messages import with_loss

PLACEHOLDERS: dict[MediumKind, str] = {"image": "<image>", "video": "<video>"}
COLUMNS: dict[MediumKind, tuple[str, ...]] = {"image": ("image", "images"), "video": ("video", "videos", "frames")}
"""The columns that fill places of each kind; a row has one of them at most."""
MEDIA_COLUMNS = tuple(name for names in COLUMNS.values() for name in names)
VIDEO_COLUMNS = (*COLUMNS["video"], "video_path")
CLIP_COLUMNS = ("start", "end", "video_start", "video_end")
"""Columns that cut a clip out of the only video of a row."""
_NUMBERED = re.compile(r"(image|img|video)_?[0-9]{1,3}")
_NUMBER = re.compile(r"[0-9]+$")
_MARK = re.compile(r"<(image|video)(?:[ _]?([0-9]{1,3}))?>")
"""A placeholder; with a number it names a numbered column, or an entry of a list counted from 1: ``<image 1>``."""
_OTHER_MARK = re.compile(
    r"<\|(?:image|video|audio)(?:_[0-9]+)?\|>|<img>[^<>]{0,200}</img>"
    r"|<(?:ImageHere|image_placeholder|start_of_image|image_soft_token|IMG_CONTEXT|Image|image ?/|audio|sound|speech)>"
)
"""Placeholders of other models' data: of Phi and Llama, Qwen-VL, InternLM-XComposer, Janus, Gemma, InternVL."""
OF_A_PLACE = ("start", "end", "fps", "max_frames", "min_pixels", "max_pixels")
"""Keys by which a part without a file may describe the one that it shows."""


@lru_cache(maxsize=4096)
def numbered_column(name: str) -> MediumKind | None:
    """The kind of a column of one of several images or videos, as ``image_1`` is; None of any other."""
    found = _NUMBERED.fullmatch(name)
    if found is None:
        return None
    return "video" if found.group(1) == "video" else "image"


def unfilled_mark(text: str) -> str | None:
    """The first placeholder of an image, video or sound that a text holds, whoever's data write it so."""
    if "<" not in text:
        return None
    found = _MARK.search(text) or _OTHER_MARK.search(text)
    return found.group() if found is not None else None


@dataclass(kw_only=True)
class Supply:
    """Contents of a row's media columns, and how much of it has found its place.

    A kind without a column is not there: then its placeholder is text as any other. ``marks`` are the placeholders,
    each with the place that it is.
    """

    columns: dict[MediumKind, str]
    media: dict[MediumKind, Sequence[Medium]]
    marks: dict[str, Medium]
    taken: dict[MediumKind, list[int]] = field(default_factory=lambda: {"image": [], "video": []})

    @classmethod
    def of(cls, row: dict[str, Any], parts: Sequence[Part], more: Mapping[str, MediumKind] | None = None) -> Supply:
        """The media columns of a row; ``more`` are other names of such columns.

        Args:
            row: the row.
            parts: all parts of it. Where a row has a video, no image, and no other place for either, ``<image>`` in
                them stands for the video, as in LLaVA's own data.
            more: other names of columns of media.

        Raises:
            DocumentError: ``bad_row``.
        """
        columns: dict[MediumKind, str] = {}
        for kind, names in COLUMNS.items():
            others = [name for name, other in (more or {}).items() if other == kind]
            present = [name for name in (*names, *others) if name in row and not _is_count(row[name], name)]
            if len(present) > 1:
                bad(f"has {' and '.join(present)}; give one of them")
            if present:
                columns[kind] = present[0]
        media = {kind: _media(row, kind, name) for kind, name in columns.items()}
        numbers = {kind: list(range(1, len(found) + 1)) for kind, found in media.items()}
        for kind, by_number in _numbered(row, columns).items():
            columns[kind], numbers[kind] = " and ".join(by_number.values()), list(by_number)
            media[kind] = [found for name in by_number.values() for found in _only(row, kind, name)]
        for part in parts if columns else ():
            if isinstance(part, str) and (other := _OTHER_MARK.search(part)) is not None:
                is_sound = other.group().strip("<|>").startswith(("audio", "sound", "speech"))
                remedy = "sound is not read; leave it out" if is_sound else "write <image> in its place"
                bad(f"a text has {other.group()}, which stands for no image here; {remedy}")
        marks = {PLACEHOLDERS[kind]: Medium(kind=kind) for kind in columns}
        if "video" in columns and "image" not in columns and not any(_is_place(part) for part in parts):
            marks[PLACEHOLDERS["image"]] = Medium(kind="video")
        for mark, named, number in _numbers_in(parts) if columns else ():
            if named in columns and number not in numbers[named]:
                bad(f"a text has {mark}, and {columns[named]} holds no {named} of that number")
            if named in columns:
                marks[mark] = NumberedPlace(kind=named, index=numbers[named].index(number))
        return cls(columns=columns, media=media, marks=marks)

    def into(self, parts: Sequence[Part], where: str) -> tuple[Part, ...]:
        """Parts with their places filled.

        Raises:
            DocumentError: ``bad_row``: a part has no file, and no column has one for it.
        """
        return tuple(part for given in parts for part in self._filled(given, where))

    def _filled(self, part: Part, where: str) -> Iterator[Part]:
        if isinstance(part, Medium):
            yield self._next(part, where) if part.is_place else part
            return
        if not any(mark in part for mark in self.marks):
            yield part
            return
        for piece in re.split(f"({'|'.join(self.marks)})", part):
            if piece in self.marks:
                yield self._next(self.marks[piece], where)
            elif piece:
                yield piece

    def _next(self, place: Medium, where: str) -> Medium:
        kind = place.kind
        if kind not in self.columns:
            bad(f"{where} has a part of type {kind} without a file, and the row has no column {COLUMNS[kind][1]}")
        index = place.index if isinstance(place, NumberedPlace) else None
        given, number = len(self.media[kind]), len(self.taken[kind]) if index is None else index
        self.taken[kind].append(number)
        if number >= given:
            if index is not None:
                bad(f"{where} has a part with index {index}, and {self.columns[kind]} holds {given}; they count from 0")
            return place  # the counts are compared once all places are known
        found = self.media[kind][number]
        own = {name: value for name in OF_A_PLACE if (value := getattr(place, name)) is not None}
        if twice := [name for name in own if getattr(found, name) is not None]:
            bad(f"{where} has a part with {twice[0]}, and so has the row; give one of them")
        return replace(found, **own)

    def finish(self) -> None:
        """Makes sure that every image and video has found its place.

        Raises:
            DocumentError: ``bad_row``.
        """
        for kind, name in self.columns.items():
            given, places = len(self.media[kind]), len(set(self.taken[kind]))
            if given != places:
                mark = f"{PLACEHOLDERS[kind]} or parts of type {kind} without a file"
                verb, noun = "hold" if " and " in name else "holds", "place" if places == 1 else "places"
                remedy = "give as many" if places else f"write {PLACEHOLDERS[kind]} into the text where it belongs"
                if kind == "video" and places == 1:
                    remedy += ", or name the frames of one video in the column frames, with their rate in fps"
                bad(f"{name} {verb} {given}, but the row has {places} {noun} for them ({mark}); {remedy}")

    def into_messages(self, messages: Sequence[Message], where: str) -> tuple[Message, ...]:
        """The messages with their places filled. Content that shows media is a list of parts for a chat template."""
        filled = []
        for i, message in enumerate(messages):
            parts = self.into(message.parts, f"{where}[{i}].content")
            is_list = message.content_is_list or any(isinstance(part, Medium) for part in parts)
            is_same = is_list == message.content_is_list and parts == message.parts  # as most turns are
            filled.append(message if is_same else replace(message, parts=parts, content_is_list=is_list))
        return tuple(filled)


def _numbered(row: Mapping[str, Any], taken: Collection[MediumKind]) -> dict[MediumKind, dict[int, str]]:
    """The numbered columns of a row, by kind and number, of kinds that have no other column."""
    found: dict[MediumKind, dict[int, str]] = {}
    for name in row:
        kind = numbered_column(name)
        if kind is None or isinstance(row[name], int | float) or any(other in row for other in COLUMNS[kind]):
            continue
        if kind in taken:
            bad(f"has {name} beside a column with the path of an {kind}; give one of them".replace("an v", "a v"))
        other = found.setdefault(kind, {}).setdefault(int(_NUMBER.findall(name)[0]), name)
        if other != name:
            bad(f"has {other} and {name}; give one of them")
    return {kind: dict(sorted(names.items())) for kind, names in found.items()}


def _only(row: Mapping[str, Any], kind: MediumKind, name: str) -> list[Medium]:
    """The one image or video of a numbered column."""
    media = references(row[name], kind, name)
    if len(media) != 1:
        bad(f"{name} holds {len(media)} {kind}s; give one, or all in the column {COLUMNS[kind][1]}")
    return media


def _numbers_in(parts: Sequence[Part]) -> Iterator[tuple[str, MediumKind, int]]:
    """The placeholders with a number in texts: each, its kind and number."""
    for part in parts:
        if isinstance(part, str) and ("<image" in part or "<video" in part):
            for found in _MARK.finditer(part):
                kind: MediumKind = "video" if found.group(1) == "video" else "image"
                if (number := found.group(2)) is not None:
                    yield found.group(), kind, int(number)


def _is_count(value: Any, name: str) -> bool:
    """Whether ``frames`` says how many a video has."""
    return name == "frames" and isinstance(value, int | float)


def _is_place(part: Part) -> bool:
    """Whether an image or video of the row goes here by its own placeholder."""
    return part.is_place if isinstance(part, Medium) else PLACEHOLDERS["video"] in part


def _media(row: dict[str, Any], kind: MediumKind, name: str) -> Sequence[Medium]:
    if name == "frames":
        return [with_settings(frames_video(row[name], name), _given(row, (*CLIP_COLUMNS, "fps")), "")]
    media, clip = references(row[name], kind, name), _given(row, CLIP_COLUMNS)
    if kind == "image" or not clip or name not in VIDEO_COLUMNS:
        return media
    if len(media) != 1:
        bad(f"{next(iter(clip))} is read beside one video, and {name} holds {len(media)}; put it into their parts")
    return [with_settings(media[0], clip, "")]


def _given(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row}


def filled_document(
    row: dict[str, Any],
    messages: Sequence[Message],
    where: str,
    for_template: Mapping[str, Any],
    *,
    in_front: bool = False,
) -> Document:
    """A conversation with the row's media in their places.

    Args:
        row: the row.
        messages: its turns.
        where: stands before a turn's number in messages.
        for_template: what its chat template gets besides.
        in_front: whether media without any placeholder stand in front of the first question.

    Raises:
        DocumentError: ``bad_row``, or ``empty``: nothing would carry loss.
    """
    parts = [part for message in messages for part in message.parts]
    supply = Supply.of(row, parts)
    if in_front and not any(mark in part for part in parts if isinstance(part, str) for mark in supply.marks):
        places = [Medium(kind=kind) for kind, media in supply.media.items() for _ in media]
        first = next((i for i, message in enumerate(messages) if message.role == "user"), len(messages))
        messages = [
            replace(message, parts=(*places, *message.parts)) if i == first else message
            for i, message in enumerate(messages)
        ]
    filled = supply.into_messages(messages, where)
    supply.finish()
    return with_loss(Document(branches=(filled,), **for_template))
