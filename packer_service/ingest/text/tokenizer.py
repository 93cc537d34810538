"""Tokenizer that ``load`` makes: text to tokens and back, and the special tokens around text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.document import Role
from preshard.packer_service.ingest.text.chat_template import ChatTemplate
from preshard.packer_service.ingest.text.encoded import EncodedText
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import TokenizerEntry

BOS_NAMES = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]")
EOS_NAMES = ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "[SEP]")
PAD_NAMES = ("<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "<|endoftext|>", "[PAD]")
IMAGE_NAMES = ("[IMG]", "<|image_pad|>", "<image>", "<|image|>", "<im_patch>", "<image_soft_token>")
INSTRUCT_NAMES = ("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")
CHATML_NAMES = ("<|im_start|>", "<|im_end|>")
BEGIN_NAMES = ("<|vision_start|>", "<im_start>")
SEPARATOR_NAMES = ("[IMG_BREAK]", "<im_col>")
END_NAMES = ("[IMG_END]", "<|vision_end|>", "<im_end>")
MARKS = frozenset(
    (
        *(*BOS_NAMES, *EOS_NAMES, *PAD_NAMES, *IMAGE_NAMES, *INSTRUCT_NAMES, *CHATML_NAMES),
        *(*BEGIN_NAMES, *SEPARATOR_NAMES, *END_NAMES),
    )
)
"""Tokens that the packer may write around text; if a tokenizer has one, no text is encoded as it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatFormat:
    """Format of turns, as token ids.

    A turn is ``before[role]``, its content, ``end[role]`` and ``after[role]``. The content and ``end`` of an
    assistant's turn carry loss: the model must also learn to stop.
    """

    before: dict[Role, tuple[int, ...]]
    end: dict[Role, tuple[int, ...]]
    after: dict[Role, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFormat:
    """Format of a unit (a frame, or a still image with its crops): ``begin``, crops of ``token``, ``end``.

    ``separator`` stands between the crops of a still image.
    """

    begin: tuple[int, ...]
    token: int
    separator: tuple[int, ...]
    end: tuple[int, ...]


def chat_format(
    encode: Callable[[str], Int32[np.ndarray, "tokens"]], ids: dict[str, int], eos: int
) -> ChatFormat | None:
    """Mistral's instruct form or ChatML, if the tokenizer has its tokens.

    None if it has neither: a form that the model does not know must not be spelled out as ordinary text.
    """
    if "[INST]" in ids and "[/INST]" in ids:
        system = "[SYSTEM_PROMPT]" in ids and "[/SYSTEM_PROMPT]" in ids
        open_system = (ids["[SYSTEM_PROMPT]"],) if system else (ids["[INST]"],)
        close_system = (ids["[/SYSTEM_PROMPT]"],) if system else (ids["[/INST]"],)
        return ChatFormat(
            before={"system": open_system, "user": (ids["[INST]"],), "assistant": ()},
            end={"system": close_system, "user": (ids["[/INST]"],), "assistant": (eos,)},
            after={"system": (), "user": (), "assistant": ()},
        )
    if not all(name in ids for name in CHATML_NAMES):
        return None
    start, end = ids["<|im_start|>"], ids["<|im_end|>"]
    newline = tuple(encode("\n").tolist())
    roles: tuple[Role, ...] = ("system", "user", "assistant")
    return ChatFormat(
        before={role: (start, *encode(f"{role}\n").tolist()) for role in roles},
        end=dict.fromkeys(roles, (end,)),
        after=dict.fromkeys(roles, newline),
    )


def image_format(ids: dict[str, int], image: int) -> ImageFormat:
    """The marks that the tokenizer has: Mistral's break and end, Qwen's vision start and end, or none."""

    def mark(names: Sequence[str]) -> tuple[int, ...]:
        return next(((ids[name],) for name in names if name in ids), ())

    return ImageFormat(
        begin=mark(BEGIN_NAMES),
        token=image,
        separator=mark(SEPARATOR_NAMES),
        end=mark(END_NAMES),
    )


TEKKEN = "tekken"
"""Name of the one tokenizer that needs no file."""

TOKENIZER_FILE = "tokenizer.json"


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
