"""A document to the token arrays that it fills in a pack."""

from __future__ import annotations

import math
from collections.abc import Sequence

from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.media.shape import PlacedMedium
from preshard.packer_service.ingest.render_marks import write_marks
from preshard.packer_service.ingest.render_plain import render_plain
from preshard.packer_service.ingest.render_text import write_conversations, write_interleaved
from preshard.packer_service.ingest.renderer import Renderer
from preshard.packer_service.ingest.stream import TokenStream
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.errors import DocumentError
from preshard.schemas.sequence import IGNORE_INDEX


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
    if document.is_plain:
        return render_plain(renderer, document.text or "")
    document = document.without(renderer.ignore_fields)
    renderer.family.check([medium.kind for medium in document.media()])
    placements = [medium.placement for medium in placed]
    units = [(unit, number) for number, placement in enumerate(placements) for unit in placement.units]
    stream = TokenStream(
        tokenizer=renderer.tokenizer, units=[unit for unit, _ in units], media=[number for _, number in units]
    )
    n_shared = 0
    if document.branches and renderer.tokenizer.template is not None:
        n_shared = write_conversations(renderer, document, placements, stream)
    elif document.interleaved is not None and not renderer.is_generic:
        write_interleaved(renderer, document, placements, stream)
    else:
        n_shared = write_marks(renderer, document, placements, stream)
    n_branches = len(document.branches) if document.annotated else 0
    weighs = renderer.annotation_weight == "sqrt" and n_branches
    group_tokens = None if renderer.is_generic else map(renderer.tokenizer.token_id, renderer.family.group_tokens)
    rendered = stream.finish(
        group_tokens,
        renderer.bidirectional,
        weight=document.weight / math.sqrt(n_branches) if weighs else document.weight,
        axes=renderer.family.axes,
        merge=renderer.family.merge,
        media=tuple(zip(document.media(), placed, strict=True)),
        n_shared=n_shared,
        n_branches=n_branches,
    )
    if (rendered.labels == IGNORE_INDEX).all():
        raise DocumentError("empty", "no token carries loss")
    return rendered
