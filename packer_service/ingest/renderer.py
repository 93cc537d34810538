"""What is the same for every document that a job renders."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from preshard.packer_service.ingest.families.family import Family
from preshard.packer_service.ingest.text.chat_input import spelled_by
from preshard.packer_service.ingest.text.chat_template import ChatTemplate, ChatText, Conversation
from preshard.packer_service.ingest.text.tokenizer import Tokenizer

WriteChats = Callable[[ChatTemplate, Sequence[Conversation]], list[ChatText]]
"""Renders conversations, as :func:`preshard.packer_service.ingest.text.chat_process.chat_texts` does in a process."""


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """How documents are written.

    Attributes:
        tokenizer: encodes text, and has the marks and the chat template around it.
        family: what a model makes of images and videos.
        bidirectional: as in the configuration, where the family leaves it open.
        annotation_weight: ``none``, or ``sqrt`` to weigh each of n annotations by 1/sqrt(n).
        ignore_fields: fields for chat templates that are left out.
        write_chats: renders conversations by the template.
    """

    tokenizer: Tokenizer
    family: Family
    bidirectional: str = "within_image"
    annotation_weight: str = "none"
    ignore_fields: tuple[str, ...] = ()
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
