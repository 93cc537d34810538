"""A document to the token arrays that it fills in a pack."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from packer_service.ingest.document import Document, Medium, Message, Part
from packer_service.ingest.families.family import Family, Piece, Placement
from packer_service.ingest.media.shape import PlacedMedium
from packer_service.ingest.stream import TokenStream
from packer_service.ingest.text.chat_input import Shown, conversation, refuse_special_text, spelled_by
from packer_service.ingest.text.chat_template import ChatTemplate, ChatText, Conversation
from packer_service.ingest.text.tokenizer import Tokenizer
from packer_service.ingest.written import Slot, TokenRun, run_of, write
from packer_service.packs.rendered import RenderedDocument
from schemas.errors import DocumentError
from schemas.sequence import IGNORE_INDEX

WriteChats = Callable[[ChatTemplate, Sequence[Conversation]], list[ChatText]]
"""Renders conversations; :func:`packer_service.ingest.text.chat_process.chat_texts` does so in a process of its own."""

TEMPLATE_REMEDY = "give one as chat_template=FILE.jinja"


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """What is the same for every document of a job.

    Attributes:
        tokenizer: encodes text, and has the marks and the chat template around it.
        family: what a model makes of images and videos.
        bidirectional: as in the configuration, where the family leaves it open.
        annotation_weight: ``none``, or ``sqrt`` to weigh each of n annotations by 1/sqrt(n).
        write_chats: renders conversations by the template.
    """

    tokenizer: Tokenizer
    family: Family
    bidirectional: str = "within_image"
    annotation_weight: str = "none"
    write_chats: WriteChats

    @property
    def is_generic(self) -> bool:
        """Whether images are squares with the tokenizer's own marks, for a model of one's own."""
        return self.family.model_type == "square"

    @cached_property
    def placeholders(self) -> tuple[str, ...]:
        """What a chat template writes for an image or a video; empty if there is nothing that it could write."""
        if self.is_generic:
            names = {name for name, number in self.tokenizer.token_ids.items() if number == self.tokenizer.image.token}
        else:
            names = {self.family.placeholder("image"), self.family.placeholder("video")}
        return tuple(sorted(names - {""}))

    @cached_property
    def unspeakable(self) -> re.Pattern[str] | None:
        """What no text in a conversation may spell."""
        return spelled_by([*self.tokenizer.specials, *self.placeholders])


def render(renderer: Renderer, document: Document, placed: Sequence[PlacedMedium]) -> RenderedDocument:
    """Renders a document as token arrays.

    Text is ``BOS text EOS`` with loss on all of it; interleaved text and media are the same, with a prompt's parts in
    front of them that carry no loss. A conversation is what its chat template writes or, without one, ``BOS`` and its
    turns, with loss on the assistant's content and the tokens that end it. Annotations follow the shared prefix, which
    ends with the shared media, one after the other; each continues the prefix's positions. A label is the next token of
    the same branch, so the last token of a prefix, of an annotation or of a document has none.

    Args:
        renderer: how it is written.
        document: the document.
        placed: what each of ``document.media()`` becomes, in order.

    Raises:
        DocumentError: ``too_long``: it has more than ``MAX_TOKENS`` tokens; ``bad_row``: it cannot be written, or text
            in it spells a special token that its chat template would make of it; ``empty``: nothing carries loss.
    """
    renderer.family.check([medium.kind for medium in document.media()])
    placements = [medium.placement for medium in placed]
    units = [(unit, number) for number, placement in enumerate(placements) for unit in placement.units]
    stream = TokenStream(
        tokenizer=renderer.tokenizer, units=[unit for unit, _ in units], media=[number for _, number in units]
    )
    if document.branches and renderer.tokenizer.template is not None:
        n_shared = _by_template(renderer, document, placements, stream)
    elif document.interleaved is not None and not renderer.is_generic:
        n_shared = _interleaved(renderer, document, placements, stream)
    else:
        n_shared = _by_tokens(renderer, document, placements, stream)
    n_branches = len(document.branches) if document.annotated else 0
    weighs = renderer.annotation_weight == "sqrt" and n_branches
    group_tokens = None if renderer.is_generic else map(renderer.tokenizer.token_id, renderer.family.group_tokens)
    rendered = stream.finish(
        group_tokens,
        renderer.bidirectional,
        weight=1 / math.sqrt(n_branches) if weighs else 1.0,
        axes=renderer.family.axes,
        merge=renderer.family.merge,
        media=tuple(zip(document.media(), placed, strict=True)),
        n_shared=n_shared,
        n_branches=n_branches,
    )
    if (rendered.labels == IGNORE_INDEX).all():
        raise DocumentError("empty", "no token carries loss")
    return rendered


def _by_tokens(renderer: Renderer, document: Document, placements: Sequence[Placement], stream: TokenStream) -> int:
    """Writes a text, interleaved parts or turns between the tokenizer's own marks."""
    _refuse_what_needs_a_template(renderer, document)
    tokenizer, waiting = renderer.tokenizer, iter(placements)

    def parts(given: Sequence[Part], loss: bool) -> None:
        for part in given:
            if isinstance(part, Medium):
                stream.placement(next(waiting))
            else:
                stream.text(part, loss=loss)

    def turns(messages: Sequence[Message]) -> None:
        chat = tokenizer.chat
        assert chat is not None, "refused before"
        for message in messages:
            stream.tokens_of(chat.before[message.role], loss=False)
            parts(message.parts, message.carries_loss)
            stream.tokens_of(chat.end[message.role], loss=message.carries_loss)
            stream.tokens_of(chat.after[message.role], loss=False)

    prefix = renderer.family.prefix
    stream.tokens_of([tokenizer.token_id(prefix)] if prefix else tokenizer.bos, loss=False)
    if document.text is not None:
        stream.text(document.text, loss=True)
        stream.tokens_of([tokenizer.entry.eos_id], loss=True)
    parts(document.prompt, False)
    if document.interleaved is not None:
        parts(document.interleaved, True)
        stream.tokens_of([tokenizer.entry.eos_id], loss=True)
    parts(document.shared, False)
    n_shared = stream.length if document.annotated else 0
    for number, branch in enumerate(document.branches, start=1):
        stream.branch = number if document.annotated else 0
        turns(branch)
    return n_shared


def _refuse_what_needs_a_template(renderer: Renderer, document: Document) -> None:
    """The forms written here have no tools and no other roles: nothing of a row may be left out in silence."""
    if document.branches and renderer.tokenizer.chat is None:
        raise DocumentError(
            "bad_row",
            f"the tokenizer has no chat template and no tokens of a chat form that is known; {TEMPLATE_REMEDY}",
        )
    if document.media() and not renderer.is_generic:
        raise DocumentError("bad_row", f"the model folder has no chat template that shows media; {TEMPLATE_REMEDY}")
    for name in ("tools", "documents", "template_kwargs"):
        if getattr(document, name) is not None:
            raise DocumentError("bad_row", f"{name} cannot be written without a chat template; {TEMPLATE_REMEDY}")
    for branch, messages in enumerate(document.branches):
        for number, message in enumerate(messages):
            where = f"annotations[{branch}][{number}]" if document.annotated else f"messages[{number}]"
            if message.role in ("developer", "tool") or message.fields:
                name = message.fields[0][0] if message.fields else f"role {message.role}"
                raise DocumentError(
                    "bad_row", f"{where}.{name} cannot be written without a chat template; {TEMPLATE_REMEDY}"
                )


def _by_template(renderer: Renderer, document: Document, placements: Sequence[Placement], stream: TokenStream) -> int:
    """Writes a conversation, or the shared prefix and each annotation, as the chat template does."""
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
        moved = tuple((start + len(prefix), end + len(prefix)) for start, end in chat.loss)
        chat = replace(chat, text=prefix + chat.text, loss=moved)
    written = write(chat.text, chat.loss, slots, tokenizer.spelled, renderer.placeholders)
    return run_of(written, tokenizer.encode_marked(written.text), as_marked=chat.marked)


def _interleaved(renderer: Renderer, document: Document, placements: Sequence[Placement], stream: TokenStream) -> int:
    """Writes text and media as a family's processor is given them, with no chat around."""
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
            loss += [(len(text), len(text) + len(part))] * has_loss
            text += part
    eos = tokenizer.spelled(tokenizer.entry.eos_id)
    loss.append((len(text), len(text) + len(eos)))
    stream.run(_run(renderer, ChatText(text=text + eos, loss=tuple(loss), marked=False), slots))
    return 0


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
