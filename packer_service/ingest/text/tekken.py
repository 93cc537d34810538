"""Mistral's Tekken, which the mistral-common package carries."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from jaxtyping import Int32
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from packer_service.ingest.text.marks import chat_format, image_format
from packer_service.ingest.text.special_ids import find_special_ids
from packer_service.ingest.text.tokenizer import TEKKEN, Tokenizer
from schemas.config import SpecialTokensConfig

TEKKEN_FILE = "tekken_240911.json"
"""The newest Tekken vocabulary in the mistral-common package; it has image and system-prompt tokens."""


class _ArrayTekkenizer(Tekkenizer):
    """Its own ``encode`` goes through a list twice, which takes as long as the tokens themselves."""

    def encode_text(self, text: str) -> Int32[np.ndarray, "tokens"]:
        """The tokens of a text, none of them special."""
        return np.array(self._model.encode_ordinary(text), np.int32) + np.int32(self.num_special_tokens)


def load_tekken(special: SpecialTokensConfig) -> Tokenizer:
    """The tokenizer, with special tokens that the configuration names.

    Raises:
        ConfigError: one of them is not in it.
    """
    path = Path(str(files("mistral_common") / "data" / TEKKEN_FILE))
    tekken = _ArrayTekkenizer.from_file(path)

    def decode(tokens: Sequence[int]) -> str:
        return tekken.decode(list(tokens), special_token_policy=SpecialTokenPolicy.KEEP)

    ids = {tekken.id_to_piece(i): i for i in range(tekken.num_special_tokens)}
    found = find_special_ids(ids, special, vocab_size=tekken.n_words)
    return Tokenizer(
        entry=found.entry(TEKKEN, hashlib.sha256(path.read_bytes()).hexdigest()),
        chat=chat_format(tekken.encode_text, ids, found.eos),
        image=image_format(ids, found.image),
        encode=tekken.encode_text,
        decode=decode,
        token_ids=ids,
    )
