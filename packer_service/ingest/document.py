"""A source document as the packer reads it: text, turns of text and media, or annotations of shared media."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from preshard.schemas.errors import DocumentError
from preshard.schemas.files.printed import without_secrets

if TYPE_CHECKING:  # each decoder imports this file, and would wait for these
    from jaxtyping import Bool, Float32, Int64

    from preshard.schemas.header import Kept

MediumKind = Literal["image", "video"]
Role = Literal["system", "developer", "user", "assistant", "tool"]

LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
"""Bounds of the weight of a turn or a document, if not 0: products of the two are far from what float32 cannot hold."""


SHOWN_CHARACTERS = 60
"""Most characters of a value or key that a message repeats."""
LONGEST_LABEL = 400
"""Most characters of a path that messages repeat whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Medium:
    """One image or video that a document shows.

    One of ``uri`` (absolute, or relative to the folder of the row's file), inline ``data`` and ``frames`` is set, the
    images of a video of which ``fps`` are shown a second. ``start`` and ``end`` cut a clip out of a video, in seconds
    from its first frame; None is the video's own start or end. ``fps`` and ``max_frames`` are the row's own for a
    video, ``min_pixels`` and ``max_pixels`` its limits for the model's processor; None is what the configuration says.
    ``page`` counts from 0 in an image's file of several.
    """

    kind: MediumKind
    uri: str | None = None
    data: bytes | None = None
    start: float | None = None
    end: float | None = None
    fps: float | None = None
    max_frames: int | None = None
    frames: tuple[Medium, ...] = ()
    min_pixels: int | None = None
    max_pixels: int | None = None
    page: int | None = None

    @property
    def is_place(self) -> bool:
        """Whether no file is named yet: a column of the row has it."""
        return self.uri is None and self.data is None and not self.frames

    @property
    def label(self) -> str:
        """Name of the medium in messages: as in the source, so that they read the same wherever the source lies."""
        if self.frames:
            return f"{self.frames[0].label} and the {len(self.frames) - 1} frames after it"
        name = without_secrets(self.uri) if self.uri is not None else "inline bytes"
        if len(name) > LONGEST_LABEL:
            name = f"{name[:SHOWN_CHARACTERS]}... ({len(name):,} characters)"
        return name if self.page is None else f"{name}, page {self.page + 1}"


Part = str | Medium
"""A part of a turn's content or of an interleaved document: text, or an image or video."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn. Only the assistant's turns carry loss: ``weight`` is what each of its tokens counts, 0 for none.

    ``content_is_list`` says that the row gave a list of parts, and ``content_is_null`` that it gave no content at all,
    as beside tool calls: a chat template sees the same shape as in the row. ``fields`` are the other keys that chat
    templates know (``tool_calls``, ``name``, ``reasoning_content`` ...), each with its value as JSON text.
    ``answer`` is the number of the assistant's turn in its row, from 0, where the row has values for each.
    """

    role: Role
    parts: tuple[Part, ...]
    content_is_list: bool = False
    content_is_null: bool = False
    weight: float = 1.0
    fields: tuple[tuple[str, str], ...] = ()
    answer: int = 0

    @property
    def loss(self) -> float:
        """The loss weight of each token that the model is trained to write; 0 where there is none."""
        return self.weight if self.role == "assistant" else 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GivenTokens:
    """A row of tokens: ids, what the loss of each counts, and the tokens of each document among them.

    ``kept`` says of all tokens of the row which are these, and not padding.
    """

    ids: Int64[np.ndarray, "tokens"]
    loss: Float32[np.ndarray, "tokens"]
    lengths: tuple[int, ...]
    kept: Bool[np.ndarray, "row"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One source example, in exactly one of five forms.

    * ``text`` is set: pre-training text with loss on every token; ``shared`` and ``branches`` are empty.
    * ``interleaved`` is set: text and media with loss on all of the text, and no chat around it. What ``prompt`` holds
      stands before it, without loss.
    * one branch and no ``shared`` media, ``annotated`` false: one conversation. ``tools``, ``documents`` and
      ``template_kwargs`` are what the row gives its chat template besides the messages, each as JSON text.
    * ``annotated``: every branch is an annotation that sees ``shared`` and itself, but no other branch.
    * ``tokens`` is set: the tokens that it becomes.

    ``prompt_turns`` is how many turns of each branch are its prompt, in the forms of which all that follows is learnt,
    whatever the template marks; counted from the end if negative, and None in other forms.

    ``rejected`` makes a conversation or interleaved parts the preferred one of a pair: it is the same prompt and media
    with a worse answer.

    ``values`` are those of columns of tokens, by name: an entry for each token, for each turn of an assistant, or one
    for all tokens under loss; NaN where there is none. ``kept`` are values that documents keep. ``weight`` multiplies
    the loss of every token, from :data:`LEAST_WEIGHT` to :data:`MOST_WEIGHT`. ``unfilled`` is a placeholder in the text
    of a document that shows nothing, and the row's columns that nothing reads.
    """

    text: str | None = None
    prompt: tuple[Part, ...] = ()
    interleaved: tuple[Part, ...] | None = None
    shared: tuple[Medium, ...] = ()
    branches: tuple[tuple[Message, ...], ...] = ()
    annotated: bool = False
    tools: str | None = None
    documents: str | None = None
    template_kwargs: str | None = None
    weight: float = 1.0
    tokens: GivenTokens | None = None
    values: tuple[tuple[str, np.ndarray], ...] = ()
    kept: tuple[tuple[str, Kept], ...] = ()
    prompt_turns: int | None = None
    rejected: Document | None = None
    unfilled: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is a text and nothing else, as nearly all documents of a text corpus are."""
        beside = self.prompt or self.interleaved or self.shared or self.branches or self.annotated or self.weight != 1
        given = self.tools or self.documents or self.template_kwargs or self.values or self.rejected
        return self.text is not None and not (beside or given)

    def without(self, fields: Collection[str]) -> Document:
        """The document without some fields for its chat template, of its own or of its messages."""
        if not fields or not self.branches:
            return self
        bare = tuple(
            tuple(replace(turn, fields=tuple(pair for pair in turn.fields if pair[0] not in fields)) for turn in branch)
            for branch in self.branches
        )
        tools, documents = (None if name in fields else getattr(self, name) for name in ("tools", "documents"))
        return replace(self, branches=bare, tools=tools, documents=documents)

    def with_turns(self, turns: str) -> Document:
        """The document with the turns of its conversations that are to be learnt; a pair stays as it is.

        Args:
            turns: ``whole`` for all of them; ``last`` for the last turn of an assistant alone; ``each`` for a branch
                of its own for each, which ends with it. A branch sees no other, so that the model is shown what it is
                shown when it answers.
        """
        if turns == "whole" or self.rejected is not None:
            return self
        learnt: list[tuple[Message, ...]] = []
        prompt = -1 if turns == "each" else 0
        for branch in self.branches:
            answers = [i for i, turn in enumerate(branch) if turn.role == "assistant"]
            if turns == "last":
                prompt = answers[-1] if answers else -1
                learnt.append(_only(branch, prompt))
            else:
                learnt += [_only(branch[: i + 1], i) for i in answers if branch[i].weight]
        return replace(
            self,
            branches=tuple(learnt),
            annotated=self.annotated or len(learnt) > 1,
            prompt_turns=None if self.prompt_turns is None else prompt,
        )

    def with_values(self, values: Mapping[str, np.ndarray]) -> Document:
        """The document with values of columns of tokens, for each of which the row gave a number or a list.

        Raises:
            DocumentError: ``bad_row``: a list has neither an entry for each token nor one for each turn of an
                assistant, or it is a pair.
        """
        if self.rejected is not None:
            named = ", ".join(values)
            raise DocumentError(
                "bad_row", f"{named} has values for tokens, which preferences do not take; leave it out"
            )
        turns = [turn for branch in self.branches for turn in branch if turn.role == "assistant"]
        entries = {len(self.tokens.kept)} if self.tokens is not None else {len(turns)}
        for name, given in values.items():
            if len(given) not in entries | {1}:
                each = "token" if self.tokens is not None else "turn of the assistant"
                raise DocumentError(
                    "bad_row",
                    f"{name} has {len(given)} entries, not {max(entries)}: one for each {each}, or one number",
                )
        numbers = iter(range(len(turns)))
        branches = tuple(
            tuple(replace(turn, answer=next(numbers)) if turn.role == "assistant" else turn for turn in branch)
            for branch in self.branches
        )
        return replace(self, branches=branches, values=tuple(values.items()))

    @property
    def has_values_of_turns(self) -> bool:
        """Whether a column has values for several turns of the assistant."""
        return self.tokens is None and any(len(given) > 1 for _, given in self.values)

    def with_pages(self, counts: Sequence[int]) -> Document:
        """The document with an image for each page of those files that have several.

        Args:
            counts: pages of each of :meth:`media`.
        """
        if all(count == 1 for count in counts):
            return self
        left = iter(counts)

        def paged(parts: Iterable[Any]) -> Iterator[Any]:
            for part in parts:
                count = next(left) if isinstance(part, Medium) else 1
                yield from (part,) if count == 1 else (replace(part, page=page) for page in range(count))

        # in the order of media()
        shared, prompt = tuple(paged(self.shared)), tuple(paged(self.prompt))
        interleaved = None if self.interleaved is None else tuple(paged(self.interleaved))
        branches = tuple(
            tuple(replace(turn, parts=tuple(paged(turn.parts))) for turn in turns) for turns in self.branches
        )
        rejected = None if self.rejected is None else self.rejected.with_pages(counts)
        return replace(
            self, shared=shared, prompt=prompt, interleaved=interleaved, branches=branches, rejected=rejected
        )

    def media(self) -> list[Medium]:
        """Every image and video, in the order in which its tokens lie; those of a pair once."""
        inside = (part for branch in self.branches for message in branch for part in message.parts)
        parts = (*self.shared, *self.prompt, *(self.interleaved or ()), *inside)
        return [part for part in parts if isinstance(part, Medium)]


def _only(turns: tuple[Message, ...], number: int) -> tuple[Message, ...]:
    """Turns of which one alone carries loss, if it did before."""
    return tuple(replace(turn, weight=turn.weight if i == number else 0.0) for i, turn in enumerate(turns))
