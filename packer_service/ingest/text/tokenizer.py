"""Text to tokens: Tekken as mistral-common ships it, or any Hugging Face ``tokenizer.json``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.text.chat_template import ChatTemplate
from preshard.packer_service.ingest.text.encoded import EncodedText
from preshard.packer_service.ingest.text.marks import ChatFormat, ImageFormat
from preshard.schemas.config import SpecialTokensConfig
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenDecoder:
    """What turns ids into text, special tokens spelled out, and the SHA-256 of its file."""

    decode: Callable[[Sequence[int]], str]
    sha256: str


@lru_cache(maxsize=2)
def load_tokenizer(name: str, special: SpecialTokensConfig) -> Tokenizer:
    """Loads ``tekken`` or the ``tokenizer.json`` at a path, each once per process.

    Raises:
        ConfigError: the file is missing or is not a tokenizer, or a special token is not in it.
    """
    if name == TEKKEN:
        from preshard.packer_service.ingest.text.tekken import load_tekken

        return load_tekken(special)
    from preshard.packer_service.ingest.text.hugging_face import load_file

    return load_file(Path(name), special)


@lru_cache(maxsize=2)
def load_decoder(name: str) -> TokenDecoder:
    """Loads what ``tekken`` or the ``tokenizer.json`` at a path needs to decode, each once per process.

    Raises:
        ConfigError: the file is missing or is not a tokenizer.
    """
    if name == TEKKEN:
        tekken = load_tokenizer(name, SpecialTokensConfig())
        return TokenDecoder(decode=tekken.decode, sha256=tekken.entry.sha256)
    from preshard.packer_service.ingest.text.hugging_face import file_content

    content = file_content(Path(name)).encode()
    return TokenDecoder(decode=parse_decoder(content), sha256=hashlib.sha256(content).hexdigest())


def parse_decoder(content: bytes) -> Callable[[Sequence[int]], str]:
    """What turns ids into text, from the bytes of a ``tokenizer.json``.

    Raises:
        ConfigError: it is not a tokenizer.
    """
    from preshard.packer_service.ingest.text.hugging_face import parsed

    loaded = parsed(content.decode(errors="replace"), "tokenizer.json")
    return lambda tokens: loaded.decode(list(tokens), skip_special_tokens=False)
