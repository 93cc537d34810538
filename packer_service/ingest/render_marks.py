"""A document without a chat template: its parts between the marks that the tokenizer itself has."""

from __future__ import annotations

from collections.abc import Sequence

from preshard.packer_service.ingest.document import Document, Medium, Message, Part
from preshard.packer_service.ingest.families.family import Placement
from preshard.packer_service.ingest.renderer import Renderer
from preshard.packer_service.ingest.stream import TokenStream
from preshard.schemas.errors import DocumentError

TEMPLATE_REMEDY = "give one as chat_template=FILE.jinja"


def write_marks(renderer: Renderer, document: Document, placements: Sequence[Placement], stream: TokenStream) -> int:
    """Writes a text, interleaved parts or turns between the tokenizer's own marks.

    Returns:
        Tokens of the prefix that annotations share.

    Raises:
        DocumentError: ``bad_row``: only a chat template could write it.
    """
    _refuse_what_needs_a_template(renderer, document)
    tokenizer, waiting = renderer.tokenizer, iter(placements)

    def parts(given: Sequence[Part], loss: float) -> None:
        for part in given:
            if isinstance(part, Medium):
                stream.placement(next(waiting))
            else:
                stream.text(part, loss=loss)

    def turns(messages: Sequence[Message]) -> None:
        chat = tokenizer.chat
        assert chat is not None, "refused before"
        for message in messages:
            stream.tokens_of(chat.before[message.role], loss=0.0)
            parts(message.parts, message.loss)
            stream.tokens_of(chat.end[message.role], loss=message.loss)
            stream.tokens_of(chat.after[message.role], loss=0.0)

    prefix = renderer.family.prefix
    stream.tokens_of([tokenizer.token_id(prefix)] if prefix else tokenizer.bos, loss=0.0)
    if document.text is not None:
        stream.text(document.text, loss=1.0)
        stream.tokens_of([tokenizer.entry.eos_id], loss=1.0)
    parts(document.prompt, 0.0)
    if document.interleaved is not None:
        parts(document.interleaved, 1.0)
        stream.tokens_of([tokenizer.entry.eos_id], loss=1.0)
    parts(document.shared, 0.0)
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
