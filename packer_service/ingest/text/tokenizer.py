"""Text to tokens and back, and the marks around text: what is known of a tokenizer. ``load`` makes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.text.chat_template import ChatTemplate
from preshard.packer_service.ingest.text.encoded import EncodedText
from preshard.packer_service.ingest.text.marks import ChatFormat, ImageFormat
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import TokenizerEntry

TEKKEN = "tekken"
"""Name of the one tokenizer that needs no file."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tokenizer:
    """A tokenizer with the ids that the packer writes around text.

    Attributes:
        entry: what the manifest says of it.
        chat: how turns are written without a chat template; None if the tokenizer has no tokens of a form we know.
        image: the marks of the generic way around an image.
        encode: text to ids; never yields a special token, even where the text spells one.
        decode: ids to text, special tokens spelled out.
        encode_marked: text to tokens as a rendered conversation is encoded, so that what spells a special token becomes
            it; None if the tokenizer cannot.
        token_ids: ids of the tokens besides the vocabulary, by how they are spelled.
        specials: those of them that no text in a conversation may spell.
        special_tokens: them by their names in templates (``bos_token`` ...), as JSON text.
        template: the chat template that writes conversations, if there is one.
        tool_template: the one for conversations with tools, where it is another one.
    """

    entry: TokenizerEntry
    chat: ChatFormat | None
    image: ImageFormat
    encode: Callable[[str], Int32[np.ndarray, "tokens"]]
    decode: Callable[[Sequence[int]], str]
    encode_marked: Callable[[str], EncodedText] | None = None
    token_ids: Mapping[str, int] = field(default_factory=dict)
    specials: Collection[str] = ()
    special_tokens: str = "{}"
    template: ChatTemplate | None = None
    tool_template: ChatTemplate | None = None

    def template_for(self, has_tools: bool) -> ChatTemplate | None:
        """The template of a conversation."""
        return self.tool_template if has_tools and self.tool_template is not None else self.template

    @property
    def bos(self) -> tuple[int, ...]:
        return () if self.entry.bos_id is None else (self.entry.bos_id,)

    def token_id(self, token: str | int) -> int:
        """A special token's id, given as it is spelled or as its id.

        Raises:
            ConfigError: the tokenizer has no such token.
        """
        if isinstance(token, int):
            return token
        if token not in self.token_ids:
            raise ConfigError(f"tokenizer: it has no token {token!r}, which the model's images need")
        return self.token_ids[token]

    def spelled(self, token: str | int) -> str:
        """A special token as a text spells it.

        Raises:
            ConfigError: the tokenizer has no such token.
        """
        if isinstance(token, str):
            self.token_id(token)
            return token
        names = [name for name, number in self.token_ids.items() if number == token]
        if not names:
            raise ConfigError(f"tokenizer: token {token} has no spelling that a chat template could write")
        return names[0]
