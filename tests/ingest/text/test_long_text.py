"""Long texts in parts: nothing lost, and the same tokens wherever there are words."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from chats import renderer_of
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.ingest import stream
from preshard.packer_service.ingest.document import Document, Message
from preshard.packer_service.ingest.render import Renderer, render
from preshard.packer_service.ingest.stream import MarkedPlace, run_of
from preshard.packer_service.ingest.text import encoded
from preshard.packer_service.ingest.text.chat_template import ChatText
from preshard.packer_service.ingest.text.encoded import PART, EncodedText, text_parts
from preshard.packer_service.ingest.text.load import load_tokenizer
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.schemas.errors import DocumentError
from preshard.schemas.sections import SpecialTokensConfig

WORDS = st.lists(st.sampled_from(["word", "Über", "42", "二", ",", "\n", "\n\n ", "  ", "it's", "a/b", "-", "."]))


@pytest.fixture(scope="module")
def tekken() -> Tokenizer:
    return load_tokenizer("tekken", SpecialTokensConfig())


@pytest.fixture(scope="module")
def renderer(tekken: Tokenizer) -> Renderer:
    return renderer_of(tekken)


@pytest.mark.parametrize("text", ["", "a", "a" * PART, "a" * (2 * PART + 1), "ab " * PART, " " * (3 * PART)])
def test_parts_are_bounded_and_make_up_the_text(text: str) -> None:
    """Fails when a character is lost at an edge, or a part grows with the text."""
    parts = list(text_parts(text))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= PART


@given(words=WORDS, size=st.integers(4, 60))
def test_parts_give_the_tokens_of_the_whole(tekken: Tokenizer, words: list[str], size: int) -> None:
    """Fails when an edge goes through what the tokenizer makes one token."""
    text = " ".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoded, "PART", size)
        parts = list(text_parts(text))
    edges = [part[-1] + next_part[:2] for part, next_part in pairwise(parts)]
    if all(edge[1] == " " and edge[::2].isalnum() for edge in edges):  # else there was no place for an edge
        assert [token for part in parts for token in tekken.encode(part)] == tekken.encode(text).tolist()


def test_a_long_document_is_its_parts(tekken: Tokenizer, renderer: Renderer) -> None:
    """Fails when a part is rendered twice, left out, or ends the document."""
    text = "One word more. " * (PART // 7)
    assert len(list(text_parts(text))) > 2
    rendered = render(renderer, Document(text=text), [])
    assert rendered.tokens.tolist() == [*tekken.bos, *tekken.encode(text), tekken.entry.eos_id]


def test_a_document_beyond_a_tasks_memory_is_too_long(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when memory grows with a text, or each of a document's texts is counted by itself."""
    monkeypatch.setattr(stream, "MAX_TOKENS", 50)
    turns = tuple(Message(role=role, parts=("one two three " * 6,)) for role in ("user", "assistant", "user"))
    assert len(render(renderer, Document(branches=(turns[:2],)), [])) > 30
    with pytest.raises(DocumentError, match="tokens, more than the limit of 50") as caught:
        render(renderer, Document(branches=(turns,)), [])
    assert caught.value.code == "too_long"


def test_rows_of_images_count_before_they_are_written_out() -> None:
    """Fails when only the first token's repetitions are held against the limit."""
    text = EncodedText(ids=np.array([7, 8], np.int32), starts=np.array([0, 1]), ends=np.array([1, 2]))
    place = MarkedPlace(start=1, end=2, unit=0, repeats=stream.MAX_TOKENS, is_row=True)
    with pytest.raises(DocumentError, match=f"has at least {stream.MAX_TOKENS + 1} tokens"):
        run_of(ChatText(text="ax", loss=(), marked=False), [place], text)
