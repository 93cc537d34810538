"""A document as one text with images and videos in place, by a chat template or as a processor is given it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from preshard.packer_service.ingest.document import Document, Medium
from preshard.packer_service.ingest.families.family import Piece, Placement
from preshard.packer_service.ingest.renderer import Renderer
from preshard.packer_service.ingest.stream import TokenStream
from preshard.packer_service.ingest.text.chat_input import Shown, conversation, refuse_special_text
from preshard.packer_service.ingest.text.chat_template import ChatText
from preshard.packer_service.ingest.written import Slot, TokenRun, run_of, write
from preshard.schemas.errors import DocumentError


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
    stream.run(_part(runs[0], 0, end, slice(0, n_shared_units)))
    for number, run in enumerate(runs, start=1):
        stream.branch = number
        stream.run(_part(run, end, len(run), slice(n_shared_units, None)))
    return end


def _part(run: TokenRun, start: int, end: int, units: slice) -> TokenRun:
    return replace(
        run,
        ids=run.ids[start:end],
        loss=run.loss[start:end],
        unit_ids=run.unit_ids[start:end],
        units=run.units[units],
        edges=run.edges[units] - start,
    )


def _run(renderer: Renderer, chat: ChatText, slots: Sequence[Slot]) -> TokenRun:
    tokenizer, prefix = renderer.tokenizer, renderer.family.prefix
    assert tokenizer.encode_marked is not None, "only tokenizers that can have a template"
    if prefix and not chat.text.startswith(prefix):
        moved = tuple((start + len(prefix), end + len(prefix), weight) for start, end, weight in chat.loss)
        chat = replace(chat, text=prefix + chat.text, loss=moved)
    written = write(chat.text, chat.loss, slots, tokenizer.spelled, renderer.placeholders)
    return run_of(written, tokenizer.encode_marked(written.text), as_marked=chat.marked)


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
    """What replaces the placeholders that a template writes for an image or video."""
    family, marks = renderer.family, renderer.tokenizer.image
    if not renderer.is_generic:
        return [
            Slot(
                placeholder=family.placeholder(medium.kind),
                pieces=placement.pieces,
                first_unit=first_unit,
                opening=family.opening,
                closing=family.closing,
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
