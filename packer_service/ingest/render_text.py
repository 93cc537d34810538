"""A document as one text with images and videos in place, by a chat template or as a processor is given it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from preshard.packer_service.ingest.document import Document, Medium
from preshard.packer_service.ingest.families.family import Mark, Piece, Placement, Rows, Token
from preshard.packer_service.ingest.model import Renderer
from preshard.packer_service.ingest.stream import MarkedPlace, TokenRun, TokenStream, run_of
from preshard.packer_service.ingest.text.chat_template import (
    ChatText,
    LossSpan,
    Shown,
    Span,
    conversation,
    refuse_special_text,
    spelled_by,
)
from preshard.schemas.errors import DocumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """Replacement of one placeholder in a text.

    ``pieces`` number their units from ``first_unit`` of the document on. ``opening`` and ``closing`` are marks that
    belong to the first and last unit if the text has them directly beside it; with ``once``, the pieces' own marks are
    left out then.
    """

    placeholder: str
    pieces: tuple[Piece, ...]
    first_unit: int
    opening: str = ""
    closing: str = ""
    once: bool = False


def write_conversations(
    renderer: Renderer, document: Document, placements: Sequence[Placement], stream: TokenStream
) -> int:
    """Writes a conversation, or the shared prefix and each annotation, as the chat template does.

    Returns:
        Tokens of the prefix that annotations share.

    Raises:
        DocumentError: ``bad_row``: its text spells a special token, or annotations differ before the shared media.
    """
    template = renderer.tokenizer.template_for(document.tools is not None)
    assert template is not None, "asked before"
    refuse_special_text(document, renderer.unspeakable)
    firsts = [0, *accumulate(len(placement.units) for placement in placements)]
    seen, chats, slots = len(document.shared), [], []
    for number, branch in enumerate(document.branches):
        n_own = sum(isinstance(part, Medium) for message in branch for part in message.parts)
        own = [*range(len(document.shared)), *range(seen, seen + n_own)]
        seen += n_own
        media = document.media()
        shown = [_shown(renderer, media[i], placements[i]) for i in own]
        chats.append(conversation(document, number, shown))
        slots.append([slot for i in own for slot in _slots(renderer, media[i], placements[i], firsts[i])])
    texts = renderer.write_chats(template, chats)
    runs = [_run(renderer, chat, own) for chat, own in zip(texts, slots, strict=True)]
    if not document.annotated:
        stream.run(runs[0])
        return 0
    return _annotations(runs, firsts[len(document.shared)], stream)


def _annotations(runs: Sequence[TokenRun], n_shared_units: int, stream: TokenStream) -> int:
    """Writes the tokens up to the last shared unit once, and then what each annotation has after them."""
    end = int(runs[0].edges[:n_shared_units, 1].max(initial=0))
    for number, run in enumerate(runs):
        if not np.array_equal(run.ids[:end], runs[0].ids[:end]):
            raise DocumentError(
                "bad_row",
                f"annotations[{number}]: its tokens up to the shared images and videos differ from those of "
                "annotations[0]; give each the same turns before them, or rows of their own",
            )
    stream.run(runs[0].part(0, end, slice(0, n_shared_units)))
    for number, run in enumerate(runs, start=1):
        stream.branch = number
        stream.run(run.part(end, len(run), slice(n_shared_units, None)))
    return end


def _run(renderer: Renderer, chat: ChatText, slots: Sequence[Slot]) -> TokenRun:
    tokenizer, prefix = renderer.tokenizer, renderer.family.prefix
    assert tokenizer.encode_marked is not None, "only tokenizers that can have a template"
    if prefix and not chat.text.startswith(prefix):
        moved = tuple((start + len(prefix), end + len(prefix), weight) for start, end, weight in chat.loss)
        chat = replace(chat, text=prefix + chat.text, loss=moved)
    chat, places = fill_slots(chat, slots, tokenizer.spelled, renderer.placeholders)
    return run_of(chat, places, tokenizer.encode_marked(chat.text))


def write_interleaved(
    renderer: Renderer, document: Document, placements: Sequence[Placement], stream: TokenStream
) -> None:
    """Writes text and media as a family's processor is given them, with no chat around.

    Raises:
        DocumentError: ``bad_row``: its text spells a special token.
    """
    tokenizer, family = renderer.tokenizer, renderer.family
    refuse_special_text(document, renderer.unspeakable)
    text, loss, slots = "".join(map(tokenizer.spelled, tokenizer.bos)), [], []
    firsts = [0, *accumulate(len(placement.units) for placement in placements)]
    waiting = zip(document.media(), placements, firsts, strict=False)
    for part, has_loss in [*((p, False) for p in document.prompt), *((p, True) for p in document.interleaved or ())]:
        if isinstance(part, Medium):
            slots += _slots(renderer, *next(waiting))
            text += family.alone(part.kind)
        else:
            loss += [(len(text), len(text) + len(part), 1.0)] * has_loss
            text += part
    eos = tokenizer.spelled(tokenizer.entry.eos_id)
    loss.append((len(text), len(text) + len(eos), 1.0))
    stream.run(_run(renderer, ChatText(text=text + eos, loss=tuple(loss), marked=False), slots))


def _shown(renderer: Renderer, medium: Medium, placement: Placement) -> Shown:
    """The parts of a content by which a template is shown an image or video."""
    if not renderer.is_generic:
        return [{"type": medium.kind, medium.kind: medium.label}]
    parts = []
    for texts, _ in _by_unit(placement):
        parts += [{"type": "text", "text": text} for text in texts]
        parts.append({"type": "image", "image": medium.label})
    return parts


def _slots(renderer: Renderer, medium: Medium, placement: Placement, first_unit: int) -> list[Slot]:
    """Replacements of the placeholders that a template writes for an image or video."""
    family, marks = renderer.family, renderer.tokenizer.image
    if not renderer.is_generic:
        opening, closing = family.around(medium.kind)
        return [
            Slot(
                placeholder=family.placeholder(medium.kind),
                pieces=placement.pieces,
                first_unit=first_unit,
                opening=opening,
                closing=closing,
            )
        ]
    if not renderer.placeholders:
        raise DocumentError(
            "bad_row", "the tokenizer has no image token for a chat template to write; name one as special_tokens.image"
        )
    spelled = renderer.tokenizer.spelled
    return [
        Slot(
            placeholder=spelled(marks.token),
            pieces=pieces,
            first_unit=first_unit,
            opening="".join(map(spelled, marks.begin)),
            closing="".join(map(spelled, marks.end)),
            once=True,
        )
        for _, pieces in _by_unit(placement)
    ]


def _by_unit(placement: Placement) -> list[tuple[list[str], tuple[Piece, ...]]]:
    """The texts before each unit, and its marks and rows."""
    found: list[tuple[list[str], tuple[Piece, ...]]] = []
    texts: list[str] = []
    for piece in placement.pieces:
        if isinstance(piece, str):
            texts.append(piece)
        elif piece.unit == len(found) - 1 and not texts:
            found[-1] = found[-1][0], (*found[-1][1], piece)
        else:
            found.append((texts, (piece,)))
            texts = []
    return found


def fill_slots(
    chat: ChatText, slots: Sequence[Slot], spell: Callable[[Token], str], placeholders: Sequence[str]
) -> tuple[ChatText, list[MarkedPlace]]:
    """Puts images and videos into a text.

    Args:
        chat: the text with a placeholder for each slot, in order, and its characters that carry loss.
        slots: what replaces the placeholders.
        spell: a special token as text.
        placeholders: every placeholder that there is, also those of none of the slots.

    Returns:
        The text in which every token of a unit is spelled once, and where these stand.

    Raises:
        DocumentError: ``bad_row``: the text has other placeholders than the slots.
    """
    text, loss = chat.text, chat.loss
    out: list[str] = []
    places: list[MarkedPlace] = []
    moved: list[LossSpan] = []
    done = length = 0
    for slot, found in zip(slots, _found(text, slots, placeholders), strict=True):
        start, end, pieces = _with_marks(text, slot, found, done, spell)
        moved += _moved(loss, done, start, length - done)
        out.append(text[done:start])
        length += start - done
        written, own = _spelled(pieces, length, slot.first_unit, spell)
        out.append(written)
        places += own
        length, done = length + len(written), end
    moved += _moved(loss, done, len(text), length - done)
    return replace(chat, text="".join([*out, text[done:]]), loss=tuple(moved)), places


def _found(text: str, slots: Sequence[Slot], placeholders: Sequence[str]) -> list[Span]:
    """Places of the placeholders, which must be those of the slots."""
    pattern = spelled_by(placeholders)
    found = list(pattern.finditer(text)) if pattern else []
    if [one.group() for one in found] != [slot.placeholder for slot in slots]:
        raise DocumentError(
            "bad_row",
            f"the chat template writes {len(found)} placeholders of images or videos ({', '.join(placeholders)}) where "
            f"the row shows {len(slots)}, or in another order; name one that shows each once as chat_template",
        )
    return [one.span() for one in found]


def _moved(loss: Sequence[LossSpan], start: int, end: int, by: int) -> Iterator[LossSpan]:
    """The parts of spans inside ``[start, end)``, moved."""
    for first, last, weight in loss:
        if max(first, start) < min(last, end):
            yield max(first, start) + by, min(last, end) + by, weight


def _with_marks(
    text: str, slot: Slot, place: Span, done: int, spell: Callable[[Token], str]
) -> tuple[int, int, list[Piece]]:
    """A placeholder with the marks of the text beside it, and the pieces with those that belong to their units."""
    (start, end), pieces = place, list(slot.pieces)
    if slot.opening and text.endswith(slot.opening, done, start) and _take_mark(pieces, 0, slot.opening, slot, spell):
        start -= len(slot.opening)
    if slot.closing and text.startswith(slot.closing, end) and _take_mark(pieces, -1, slot.closing, slot, spell):
        end += len(slot.closing)
    return start, end, pieces


def _take_mark(pieces: list[Piece], end: int, name: str, slot: Slot, spell: Callable[[Token], str]) -> bool:
    """Whether a mark of the text belongs to the first or last unit (``end``: 0, -1), which gets it if it has none."""
    piece = pieces[end]
    if isinstance(piece, str):
        return False
    if isinstance(piece, Mark) and spell(piece.token) == name:
        return slot.once
    pieces.insert(len(pieces) if end else 0, Mark(piece.unit, name))
    return True


def _spelled(
    pieces: Sequence[Piece], at: int, first_unit: int, spell: Callable[[Token], str]
) -> tuple[str, list[MarkedPlace]]:
    out: list[str] = []
    places: list[MarkedPlace] = []
    for piece in pieces:
        name = piece if isinstance(piece, str) else spell(piece.token)
        if not isinstance(piece, str):
            count, is_row = (piece.count, True) if isinstance(piece, Rows) else (1, False)
            end, unit = at + len(name), first_unit + piece.unit
            places.append(MarkedPlace(at, end, unit, count, is_row))
        out.append(name)
        at += len(name)
    return "".join(out), places
