"""Images and videos from columns of their own, put in order into the places that a row leaves for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from preshard.packer_service.ingest.document import Medium, MediumKind, Message, Part
from preshard.packer_service.ingest.source.forms.fields import bad
from preshard.packer_service.ingest.source.forms.media import references

PLACEHOLDERS: dict[MediumKind, str] = {"image": "<image>", "video": "<video>"}
COLUMNS: dict[MediumKind, tuple[str, ...]] = {"image": ("image", "images"), "video": ("video", "videos")}
"""The columns that fill places of each kind; a row has one of them at most."""
MEDIA_COLUMNS = tuple(name for names in COLUMNS.values() for name in names)


@dataclass(kw_only=True)
class Supply:
    """What a row's media columns hold, and how much of it has found its place.

    A kind without a column is not there: then its placeholder is text as any other.
    """

    columns: dict[MediumKind, str]
    media: dict[MediumKind, Sequence[Medium]]
    taken: dict[MediumKind, int]

    @classmethod
    def of(cls, row: dict[str, Any], more: Mapping[str, MediumKind] | None = None) -> Supply:
        """The media columns of a row; ``more`` are other names of such columns.

        Raises:
            DocumentError: ``bad_row``.
        """
        columns: dict[MediumKind, str] = {}
        for kind, names in COLUMNS.items():
            others = [name for name, other in (more or {}).items() if other == kind]
            present = [name for name in (*names, *others) if name in row]
            if len(present) > 1:
                bad(f"has {' and '.join(present)}; give one of them")
            if present:
                columns[kind] = present[0]
        media: dict[MediumKind, Sequence[Medium]] = {
            kind: references(row[name], kind, name) for kind, name in columns.items()
        }
        return cls(columns=columns, media=media, taken=dict.fromkeys(columns, 0))

    def into(self, parts: Sequence[Part], where: str) -> tuple[Part, ...]:
        """Parts with their places filled.

        Raises:
            DocumentError: ``bad_row``: a part has no file, and no column has one for it.
        """
        return tuple(part for given in parts for part in self._filled(given, where))

    def _filled(self, part: Part, where: str) -> Iterator[Part]:
        if isinstance(part, Medium):
            yield self._next(part, where) if part.uri is None and part.data is None else part
            return
        marks = {PLACEHOLDERS[kind]: kind for kind in self.columns}
        if not any(mark in part for mark in marks):
            yield part
            return
        for piece in re.split(f"({'|'.join(marks)})", part):
            if piece in marks:
                yield self._next(Medium(kind=marks[piece]), where)
            elif piece:
                yield piece

    def _next(self, place: Medium, where: str) -> Medium:
        kind = place.kind
        if kind not in self.columns:
            bad(f"{where} has a part of type {kind} without a file, and the row has no column {COLUMNS[kind][1]}")
        number = self.taken[kind]
        self.taken[kind] += 1
        if number >= len(self.media[kind]):
            return place  # the counts are compared once all places are known
        found = self.media[kind][number]
        return replace(place, uri=found.uri, data=found.data)

    def finish(self) -> None:
        """Makes sure that every image and video has found its place.

        Raises:
            DocumentError: ``bad_row``.
        """
        for kind, name in self.columns.items():
            given, places = len(self.media[kind]), self.taken[kind]
            if given != places:
                mark = f"{PLACEHOLDERS[kind]} or parts of type {kind} without a file"
                bad(f"{name} holds {given}, but the row has {places} places for them ({mark}); give as many")

    def into_messages(self, messages: Sequence[Message], where: str) -> tuple[Message, ...]:
        """The messages with their places filled. Content that shows media is a list of parts for a chat template."""
        filled = []
        for i, message in enumerate(messages):
            parts = self.into(message.parts, f"{where}[{i}].content")
            shows = any(isinstance(part, Medium) for part in parts)
            filled.append(replace(message, parts=parts, content_is_list=message.content_is_list or shows))
        return tuple(filled)
