"""A source document as the packer reads it: text, turns of text and media, or annotations of shared media."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MediumKind = Literal["image", "video"]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Medium:
    """One image or video that a document shows.

    Either ``uri`` (absolute, or relative to the folder of the row's file) or inline ``data`` is set. ``start`` and
    ``end`` cut a clip out of a video, in seconds from its first frame; None is the video's own start or end.
    """

    kind: MediumKind
    uri: str | None = None
    data: bytes | None = None
    start: float | None = None
    end: float | None = None

    @property
    def label(self) -> str:
        """How messages name it: as the source does, so that they read the same wherever the source lies."""
        return self.uri if self.uri is not None else "inline bytes"


Part = str | Medium
"""A part of a turn's content: text, or an image or video."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn. Only the assistant's turns carry loss."""

    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One source example, in exactly one of three forms.

    * ``text`` is set: pre-training text with loss on every token; ``shared`` and ``branches`` are empty.
    * one branch and no ``shared`` media, ``annotated`` false: one conversation.
    * ``annotated``: every branch is an annotation that sees ``shared`` and itself, but no other branch.
    """

    text: str | None = None
    shared: tuple[Medium, ...] = ()
    branches: tuple[tuple[Message, ...], ...] = ()
    annotated: bool = False

    def media(self) -> list[Medium]:
        """Every image and video, in the order in which its tokens lie."""
        inside = (part for branch in self.branches for message in branch for part in message.parts)
        return [*self.shared, *(part for part in inside if isinstance(part, Medium))]
