"""The special tokens around text: under which names tokenizers have them, and how turns and images are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.document import Role

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
