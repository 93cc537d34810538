"""What is known of a tokenizer, which ``load`` makes: text to tokens and back, and the special tokens around text."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.document import Role
from preshard.packer_service.ingest.text.chat_template import ChatTemplate
from preshard.packer_service.ingest.text.encoded import EncodedText
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import TokenizerEntry
from preshard.schemas.sections import SpecialTokensConfig

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
    """How turns are written, as token ids.

    A turn is ``before[role]``, its content, ``end[role]`` and ``after[role]``. The content and ``end`` of an
    assistant's turn carry loss: the model must also learn to stop.
    """

    before: dict[Role, tuple[int, ...]]
    end: dict[Role, tuple[int, ...]]
    after: dict[Role, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFormat:
    """How a unit (a frame, or a still image with its crops) is written: ``begin``, crops of ``token``, ``end``.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialIds:
    """Their ids. ``vocab_size`` covers that of images, which may be a new one after the vocabulary."""

    bos: int | None
    eos: int
    pad: int
    image: int
    vocab_size: int

    def entry(self, name: str, sha256: str) -> TokenizerEntry:
        """The manifest's entry of a tokenizer, so far without a chat template."""
        return TokenizerEntry(
            name=name,
            sha256=sha256,
            vocab_size=self.vocab_size,
            bos_id=self.bos,
            eos_id=self.eos,
            pad_id=self.pad,
            image_id=self.image,
            chat_template_sha256=None,
        )

    def by_role(self, ids: Mapping[str, int]) -> str:
        """What chat templates find under ``bos_token`` and the like where no folder says it, as JSON text."""
        names = {number: name for name, number in ids.items()}
        roles = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad}
        return json.dumps({role: names[number] for role, number in roles.items() if number in names})


def find_special_ids(
    ids: Mapping[str, int], special: SpecialTokensConfig, *, vocab_size: int, special_tokens: str | None = None
) -> SpecialIds:
    """The ids that the configuration names, else those that the tokenizer's folder names, else by well-known names.

    Args:
        ids: the tokens besides the vocabulary, by how they are spelled.
        special: special tokens that the configuration names.
        vocab_size: of the tokenizer.
        special_tokens: special tokens by the names that ``transformers`` gives them (``bos_token`` ...), as JSON text;
            None if no folder says.

    Raises:
        ConfigError: one that is named is not there, or none ends a document.
    """
    own = json.loads(special_tokens or "{}")
    # a folder that names no token for the beginning means that there is none
    bos = _find(ids, special.bos or own.get("bos_token"), BOS_NAMES if special_tokens is None else (), "bos")
    eos = _find(ids, special.eos or own.get("eos_token"), EOS_NAMES, "eos")
    if eos is None:
        raise ConfigError(
            f"special_tokens.eos: the tokenizer has none of {', '.join(EOS_NAMES)}; name one of its special tokens: "
            f"{', '.join(list(ids)[:20]) or 'it has none'}"
        )
    pad = _find(ids, own.get("pad_token"), PAD_NAMES, "pad")
    image = _find(ids, special.image, IMAGE_NAMES, "image")
    if image is None:
        image, vocab_size = vocab_size, vocab_size + 1
    return SpecialIds(bos=bos, eos=eos, pad=eos if pad is None else pad, image=image, vocab_size=vocab_size)


def _find(ids: Mapping[str, int], given: str | None, names: Sequence[str], what: str) -> int | None:
    if given is not None:
        if given not in ids:
            raise ConfigError(
                f"special_tokens.{what}: {given!r} is not a special token of the tokenizer; it has: "
                f"{', '.join(list(ids)[:20]) or 'none'}"
            )
        return ids[given]
    return next((ids[name] for name in names if name in ids), None)


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
