"""A document of one text, the most frequent and the shortest: its arrays without the stream that others need."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float32, Int32

from preshard.packer_service.ingest.renderer import Renderer
from preshard.packer_service.ingest.text.long_text import text_parts
from preshard.packer_service.ingest.written import MAX_TOKENS, too_long
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.packs.units import Units
from preshard.schemas.errors import DocumentError
from preshard.schemas.sequence import CAUSAL_ONLY, IGNORE_INDEX, NOT_POOLED

NO_UNITS = Units.none()
SHARED_TOKENS = 2**16
"""Tokens of the arrays that documents share, a MiB in all; a longer document has its own."""


def render_plain(renderer: Renderer, text: str) -> RenderedDocument:
    """``BOS text EOS``, with loss on the text and its end.

    Arrays that are alike in all such documents are parts of shared ones, which cannot be written into.

    Raises:
        DocumentError: ``too_long``, or ``empty`` where the tokenizer leaves nothing that carries loss.
    """
    tokenizer, family = renderer.tokenizer, renderer.family
    begin = [tokenizer.token_id(family.prefix)] if family.prefix else tokenizer.bos
    tokens = _tokens(renderer, text, begin)
    if len(tokens) < 2:
        raise DocumentError("empty", "no token carries loss")
    labels = np.empty_like(tokens)
    labels[:-1] = tokens[1:]  # at most one token stands before the text, so every label carries loss
    labels[-1] = IGNORE_INDEX
    n = len(tokens)
    zeros, weights, positions, nowhere = _shared() if n <= SHARED_TOKENS else _constant(n)
    return RenderedDocument(
        tokens=tokens,
        labels=labels,
        loss_weights=weights[-n:],
        position_ids=positions[: family.axes, :n],
        branch_ids=zeros[:n],
        group_ids=_groups(renderer, tokens, nowhere[:n]),
        unit_ids=nowhere[:n],
        units=NO_UNITS,
        n_shared=0,
        n_branches=0,
        merge=family.merge,
    )


def _tokens(renderer: Renderer, text: str, begin: Sequence[int]) -> Int32[np.ndarray, "doc"]:
    tokenizer, length = renderer.tokenizer, len(begin)
    parts: list[Int32[np.ndarray, "part"]] = []
    for part in text_parts(text):
        parts.append(tokenizer.encode(part))
        length += len(parts[-1])
        if length > MAX_TOKENS:  # checked in between, so that no text is encoded to its end in vain
            raise too_long(length)
    tokens = np.empty(length + 1, np.int32)
    tokens[: len(begin)] = begin
    np.concatenate(parts, out=tokens[len(begin) : -1])
    tokens[-1] = tokenizer.entry.eos_id
    return tokens


def _groups(
    renderer: Renderer, tokens: Int32[np.ndarray, "doc"], nowhere: Int32[np.ndarray, "doc"]
) -> Int32[np.ndarray, "doc"]:
    """A model may have tokens that see each other in both directions wherever they stand."""
    together = [] if renderer.is_generic else list(map(renderer.tokenizer.token_id, renderer.family.group_tokens))
    return np.where(np.isin(tokens, together), 0, CAUSAL_ONLY).astype(np.int32) if together else nowhere


Constant = tuple[
    Int32[np.ndarray, "length"],
    Float32[np.ndarray, "length"],
    Int32[np.ndarray, "3 length"],
    Int32[np.ndarray, "length"],
]


def _constant(length: int) -> Constant:
    """Branches, loss weights (of which the last is that of a token without label), positions, and no group or unit."""
    weights = np.ones(length, np.float32)
    weights[-1] = 0
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (3, length))
    arrays = np.zeros(length, np.int32), weights, positions, np.full(length, NOT_POOLED, np.int32)
    for array in arrays:
        array.flags.writeable = False
    return arrays


@cache
def _shared() -> Constant:
    return _constant(SHARED_TOKENS)


assert NOT_POOLED == CAUSAL_ONLY, "documents without units have one array for both"
