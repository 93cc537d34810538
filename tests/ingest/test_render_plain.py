"""A text alone is rendered without the stream that other documents need, and comes out as the stream writes it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from preshard.packer_service.ingest import render as rendering
from preshard.packer_service.ingest.document import Document, Message
from preshard.packer_service.ingest.families.folder import SquareFamily
from preshard.packer_service.ingest.model import Renderer
from preshard.packer_service.ingest.render import render
from preshard.packer_service.ingest.text.load import load_tokenizer
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError
from preshard.schemas.sections import SpecialTokensConfig

TEXTS = ("a", "Some words, and 二 🚲.", " \n and space ", "[INST] no mark </s>", "words " * 3000)


class Positioned(SquareFamily):
    """Family with three axes, a beginning of its own, and tokens that see each other in both directions."""

    model_type = "positioned"
    prefix, axes, group_tokens = "[INST]", 3, ("[INST]",)  # type: ignore[assignment]


def renderer_of(tokenizer: Tokenizer, family: type[SquareFamily]) -> Renderer:
    config = PackConfig()
    square = family(config.vision, tokenizer.image, 1)
    return Renderer(tokenizer=tokenizer, family=square, config=config, write_chats=lambda *_: [])


@pytest.mark.parametrize("family", [SquareFamily, Positioned])
@pytest.mark.parametrize("has_bos", [True, False])
def test_a_text_alone_has_the_arrays_that_the_stream_writes(
    monkeypatch: pytest.MonkeyPatch, family: type[SquareFamily], has_bos: bool
) -> None:
    """Fails when a corpus of text is packed in another way than a text with an (empty) prompt in front of it."""
    monkeypatch.setattr(rendering, "SHARED_TOKENS", 100)  # the longest text has arrays of its own
    tokenizer = load_tokenizer("tekken", SpecialTokensConfig())
    if not has_bos:
        tokenizer = replace(tokenizer, entry=tokenizer.entry.model_copy(update={"bos_id": None}))
    renderer = renderer_of(tokenizer, family)
    for text in TEXTS:
        alone, streamed = (
            render(renderer, Document(text=text), []),
            render(renderer, Document(text=text, prompt=("",)), []),
        )
        assert len(alone) > 100 or len(text) < 100
        for name in (field.name for field in fields(alone) if field.name != "units"):
            given, wanted = getattr(alone, name), getattr(streamed, name)
            assert np.array_equal(given, wanted) if isinstance(wanted, np.ndarray) else given == wanted, name
            assert getattr(given, "dtype", None) == getattr(wanted, "dtype", None), name
        for field in fields(alone.units):
            assert np.array_equal(getattr(alone.units, field.name), getattr(streamed.units, field.name))


def test_a_text_of_no_tokens_is_empty() -> None:
    """Fails when a pack gets a document that only its end mark stands for, from a tokenizer that drops its text."""
    tokenizer = load_tokenizer("tekken", SpecialTokensConfig())
    entry = tokenizer.entry.model_copy(update={"bos_id": None})
    dropping = replace(tokenizer, entry=entry, encode=lambda _: np.zeros(0, np.int32))
    with pytest.raises(DocumentError, match="no token carries loss"):
        render(renderer_of(dropping, SquareFamily), Document(text="\u200b"), [])


def test_only_a_text_without_anything_beside_it_is_plain() -> None:
    """Fails when a row of a form of one's own loses what it shows beside its text."""
    turn = Message(role="assistant", parts=("a",))
    assert Document(text="a").is_plain
    for beside in ({"prompt": ("p",)}, {"branches": ((turn,),)}, {"interleaved": ("a",)}, {"tools": "[]"}):
        assert not Document(text="a", **beside).is_plain  # type: ignore[arg-type]
    assert not Document(branches=((turn,),)).is_plain
