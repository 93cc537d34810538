"""A chat template and what it is given. :mod:`preshard.packer_service.ingest.text.chat_render` renders it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)

RESERVED = frozenset(
    (
        *("messages", "tools", "documents", "add_generation_prompt", "chat_template", "conversations"),
        *("continue_final_message", "return_assistant_tokens_mask", "strftime_now"),
    )
)
"""Names that a row's own variables may not have: they are what the packer itself gives the template."""

Span = tuple[int, int]
"""Characters of a text: the first, and the one behind the last."""
LossSpan = tuple[int, int, float]
"""The same, with what the loss of each token in it counts."""

Turn = dict[str, Any]
"""One message as a template sees it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatTemplate:
    """A template's source, with the tokenizer's special tokens by their names in it, as JSON text.

    ``tokens`` are those besides the vocabulary, special or not: a text is never cut inside of one.
    """

    source: str
    special_tokens: str = "{}"
    tokens: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """Of the source alone; the special tokens are the tokenizer's."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def marks_answers(self) -> bool:
        """Whether the template itself says what an assistant writes, by ``{% generation %}``."""
        return GENERATION.search(COMMENT.sub("", self.source)) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """What a template is given: messages and, as JSON text, what the row has besides them.

    ``weights`` says what the loss of each message counts, 0 where the model is not trained to write it.
    """

    turns: tuple[Turn, ...]
    weights: tuple[float, ...]
    tools: str | None = None
    documents: str | None = None
    variables: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatText:
    """A rendered conversation.

    ``loss`` are the ranges of characters that carry loss, ascending and apart, each with what it counts. ``marked``
    says that the template's own ``{% generation %}`` gave them.
    """

    text: str
    loss: tuple[LossSpan, ...]
    marked: bool
