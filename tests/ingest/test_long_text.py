"""Long texts in parts: nothing lost, and the same tokens wherever there are words."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_service.config import SpecialTokensConfig
from packer_service.ingest import long_text
from packer_service.ingest.long_text import PART, text_parts, utf8_size
from packer_service.ingest.render import render
from packer_service.ingest.tokenizer import load_tokenizer
from schemas.example import Document

WORDS = st.lists(st.sampled_from(["word", "Über", "42", "二", ",", "\n", "\n\n ", "  ", "it's", "a/b", "-", "."]))
TEKKEN = load_tokenizer("tekken", SpecialTokensConfig())


@pytest.mark.parametrize("text", ["", "a", "a" * PART, "a" * (2 * PART + 1), "ab " * PART, " " * (3 * PART)])
def test_parts_are_bounded_and_make_up_the_text(text: str) -> None:
    """Fails when a character is lost at an edge, or a part grows with the text."""
    parts = list(text_parts(text))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= PART


@given(words=WORDS, size=st.integers(4, 60))
def test_parts_give_the_tokens_of_the_whole(words: list[str], size: int) -> None:
    """Fails when an edge goes through what the tokenizer takes together."""
    text = " ".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_text, "PART", size)
        parts = list(text_parts(text))
    edges = [part[-1] + next_part[:2] for part, next_part in pairwise(parts)]
    if all(edge[1] == " " and edge[::2].isalnum() for edge in edges):  # else there was no place for an edge
        assert [token for part in parts for token in TEKKEN.encode(part)] == TEKKEN.encode(text)


def test_a_long_document_is_its_parts() -> None:
    """Fails when a part is rendered twice, left out, or ends the document."""
    text = "One word more. " * (PART // 7)
    assert len(list(text_parts(text))) > 2
    rendered = render(Document(text=text), [], TEKKEN, pooled_per_crop=1)
    assert rendered.tokens.tolist() == [*TEKKEN.bos, *TEKKEN.encode(text), TEKKEN.entry.eos_id]


def test_sizes_are_those_of_utf8() -> None:
    """Fails when texts of other scripts are let through at four times their size."""
    assert [utf8_size(text) for text in ("abc", "é", "二三", "😀")] == [3, 2, 6, 4]
