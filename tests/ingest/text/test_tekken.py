"""Tekken as ``tiktoken`` makes it from mistral-common's file, compared with mistral-common's own tokenizer."""

from __future__ import annotations

import pydoc_data.topics
import random
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preshard.packer_service.ingest.text.load import TEKKEN_FILE, load_tekken
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.schemas.sections import SpecialTokensConfig

if TYPE_CHECKING:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

TEXTS = (
    "",
    " ",
    "\n\n\t  \r\n x",
    "Zürich 二 🚲👩‍👩‍👧 हिन्दी العربية ไทย \u0000\ufffd",
    "</s>[INST] <SPECIAL_20> [IMG]",
    "def f(x):\n    return {**x, 'a': [1, 22, 333, 4444]}\n",
    "e\u0301 é ﬁ A\u030a " * 20,
    "x" * 3000,
    "12345678901234567890",
    *list(pydoc_data.topics.topics.values())[:40],
)


@pytest.fixture(scope="module")
def oracle() -> Tekkenizer:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    return Tekkenizer.from_file(Path(str(files("mistral_common") / "data" / TEKKEN_FILE)))


@pytest.fixture(scope="module")
def tekken() -> Tokenizer:
    return load_tekken(SpecialTokensConfig())


def test_texts_are_the_tokens_of_mistral_common(oracle: Tekkenizer, tekken: Tokenizer) -> None:
    """Fails when another part of the vocabulary, another pattern or other ids are taken than mistral-common takes."""
    draw = random.Random(0)
    drawn = ["".join(chr(draw.randrange(0xD800)) for _ in range(60)) for _ in range(50)]
    for text in [*TEXTS, *drawn]:
        assert tekken.encode(text).tolist() == oracle.encode(text, bos=False, eos=False)


def test_every_id_is_spelled_as_mistral_common_spells_it(oracle: Tekkenizer, tekken: Tokenizer) -> None:
    """Fails when a special token has another name or id, or a token of the vocabulary another id."""
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

    assert tekken.entry.vocab_size == oracle.n_words
    assert dict(tekken.token_ids) == {oracle.id_to_piece(i): i for i in range(oracle.num_special_tokens)}
    ids = list(range(oracle.n_words))
    assert [tekken.decode([i]) for i in ids] == oracle.vocab()
    random.Random(0).shuffle(ids)
    for start in range(0, len(ids), 1000):
        some = ids[start : start + 1000]
        assert tekken.decode(some) == oracle.decode(some, special_token_policy=SpecialTokenPolicy.KEEP)
