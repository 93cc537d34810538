"""The stored pack that some documents were taken out of, for a pack that may turn out to be the same again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from preshard.packer_service.ingest.packed.dataset import StoredPack
from preshard.packer_service.packs.known import KnownPack
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.checksum import check_member
from preshard.schemas.codec import LAYOUTS, decode_layouts, sample_key
from preshard.schemas.errors import FormatError
from preshard.schemas.header import read_member, stored_checksum
from preshard.schemas.layout import TokenLayout
from preshard.schemas.schemes import segment_edges
from preshard.schemas.version import VERSION


def known_pack(documents: Sequence[RenderedDocument]) -> KnownPack | None:
    """The pack that all of these documents, and no others, were taken out of; None if there is none.

    Nor if another version of preshard wrote it, whose arrays may be compressed, or its layouts searched for, otherwise.
    """
    stored = documents[0].origin if documents else None
    if not isinstance(stored, StoredPack) or len(stored.head.documents) != len(documents):
        return None
    if any(document.origin is not stored for document in documents):
        return None
    if stored.dataset.manifest.preshard_version != VERSION:
        return None
    spans, config = stored.head.documents, stored.dataset.config
    starts, lengths = (np.array([getattr(span, name) for span in spans]) for name in ("start", "aligned_length"))
    return KnownPack(
        sequence=stored.sequence,
        encoded_sequence=stored.encoded_sequence,
        segment_edges=segment_edges(starts, lengths, config.seq_len),
        block_size=config.block_size,
        read_layouts=partial(stored_layouts, stored),
    )


def stored_layouts(stored: StoredPack) -> tuple[Mapping[str, TokenLayout], bytes]:
    """A pack's layouts and the member that holds them. Damaged ones are no loss: they are searched for again."""
    config, where = stored.dataset.config, f"{stored.where}.{LAYOUTS}"
    try:
        encoded, _ = read_member(stored.behind, 0, f"{sample_key(stored.head.pack_id)}.{LAYOUTS}", where)
        check_member(encoded, stored_checksum(stored.head, LAYOUTS, stored.where), where)
        return decode_layouts(encoded, config.seq_len, config.block_size, where), encoded
    except FormatError:
        return {}, b""
