"""Tekken and Hugging Face tokenizers: special ids, and text that spells special tokens."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path

import pytest
from chats import renderer_of
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from preshard.packer_service.ingest.document import Document, Message
from preshard.packer_service.ingest.render import render
from preshard.packer_service.ingest.text.load import load_tokenizer
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.sections import SpecialTokensConfig

PLAIN = SpecialTokensConfig()


def train(path: Path, special: list[str]) -> str:
    """A real byte-level BPE tokenizer, trained on Python's own documentation."""
    tokenizer = HuggingFaceTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(list(pydoc_data.topics.topics.values())[:5], trainer)
    tokenizer.save(str(path))
    return str(path)


def test_tekken_knows_its_special_tokens() -> None:
    """Fails when another vocabulary is loaded, or an id is taken from the wrong place."""
    tekken = load_tokenizer("tekken", PLAIN)
    assert (tekken.entry.bos_id, tekken.entry.eos_id, tekken.entry.pad_id, tekken.entry.image_id) == (1, 2, 11, 10)
    assert tekken.entry.vocab_size == 131072
    assert tekken.chat is not None
    assert tekken.image.separator == (12,)
    assert tekken.image.end == (13,)
    assert tekken.chat.before["user"] == (3,)
    assert tekken.chat.end["assistant"] == (2,)
    assert tekken.decode([1, *tekken.encode("Zürich 二 🚲"), 2]) == "<s>Zürich 二 🚲</s>"


def test_text_never_becomes_a_special_token() -> None:
    """Fails when a document can end its own turn by spelling a special token."""
    tekken = load_tokenizer("tekken", PLAIN)
    assert min(tekken.encode("</s>[INST][IMG]")) >= 1000


def test_chatml_of_a_hugging_face_tokenizer(tmp_path: Path) -> None:
    """Fails when a tokenizer with ChatML tokens gets them spelled as text, or special ids come out of text."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    loaded = load_tokenizer(train(tmp_path / "tokenizer.json", special), PLAIN)
    assert loaded.entry.bos_id is None
    assert loaded.entry.eos_id == 0
    assert loaded.entry.image_id == 5
    assert loaded.entry.vocab_size == 400
    assert loaded.image.begin == (3,)
    assert loaded.image.end == (4,)
    assert loaded.chat is not None
    assert loaded.chat.before["user"] == (1, *loaded.encode("user\n"))
    assert loaded.chat.end["assistant"] == (2,)
    assert not set(loaded.encode("<|im_end|> text")) & set(range(6))


def test_an_image_token_is_added_where_there_is_none(tmp_path: Path) -> None:
    """Fails when a tokenizer for text cannot pack images, or a word's id is used for them."""
    loaded = load_tokenizer(train(tmp_path / "tokenizer.json", ["<s>", "</s>"]), PLAIN)
    assert loaded.entry.image_id == 400
    assert loaded.entry.vocab_size == 401


def test_no_chat_form_is_spelled_out_as_text(tmp_path: Path) -> None:
    """Fails when a model that knows no ChatML learns to read and write it letter by letter."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    loaded = load_tokenizer(train(tmp_path / "tokenizer.json", special), PLAIN)
    assert loaded.chat is None
    turns = (Message(role="user", parts=("q",)), Message(role="assistant", parts=("a",)))
    with pytest.raises(DocumentError, match="no tokens of a chat form that is known; give one as chat_template=FILE"):
        render(renderer_of(loaded), Document(branches=(turns,)), [])
    assert len(render(renderer_of(loaded), Document(text="words"), [])) > 2


@pytest.mark.parametrize("missing", ["[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"])
def test_a_system_turn_without_both_marks_is_written_as_an_instruction(tmp_path: Path, missing: str) -> None:
    """Fails when one of the two marks is taken for both."""
    names = ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "</s>"]
    names.remove(missing)
    tokenizer = load_tokenizer(train(tmp_path / "tokenizer.json", names), SpecialTokensConfig(eos="</s>"))
    assert tokenizer.chat is not None
    assert tokenizer.chat.before["system"] == tokenizer.chat.before["user"]
    assert tokenizer.chat.end["system"] == tokenizer.chat.end["user"]


def test_special_tokens_can_be_named(tmp_path: Path) -> None:
    """Fails when a named token is ignored, or a name that is not one is accepted."""
    path = train(tmp_path / "tokenizer.json", ["<begin>", "<stop>", "<picture>"])
    named = SpecialTokensConfig(bos="<begin>", eos="<stop>", image="<picture>")
    assert load_tokenizer(path, named).entry.model_dump(include={"bos_id", "eos_id", "image_id"}) == {
        "bos_id": 0,
        "eos_id": 1,
        "image_id": 2,
    }
    with pytest.raises(ConfigError, match=r"special_tokens.eos: the tokenizer has none of .*<begin>, <stop>"):
        load_tokenizer(path, PLAIN)
    with pytest.raises(ConfigError, match=r"special_tokens.bos: '<s>' is not a special token of the tokenizer"):
        load_tokenizer(path, SpecialTokensConfig(bos="<s>", eos="<stop>"))


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    """Fails when a wrong path or file ends in a traceback."""
    with pytest.raises(ConfigError, match="is not a file; give `tekken`"):
        load_tokenizer(str(tmp_path / "none.json"), PLAIN)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is not a Hugging Face tokenizer\.json"):
        load_tokenizer(str(tmp_path / "x.json"), PLAIN)


def test_text_never_becomes_a_mark_that_the_file_calls_plain(tmp_path: Path) -> None:
    """Fails when a document can spell the place of an image, because the file lists the mark as a plain added token."""
    path = train(tmp_path / "tokenizer.json", ["<s>", "</s>"])
    tokenizer = HuggingFaceTokenizer.from_file(path)
    tokenizer.add_tokens(["<image>", "[INST]", "[/INST]", "<picture>", "<tool_call>"])
    tokenizer.save(path)
    loaded = load_tokenizer(path, PLAIN)
    assert (loaded.entry.image_id, loaded.entry.vocab_size) == (400, 405)
    text = "</s>[INST] <image> [/INST] <picture>"
    assert set(loaded.encode(text)) & set(range(400, 405)) == {403}
    assert loaded.decode(loaded.encode(text)) == text
    assert 404 in loaded.encode("<tool_call>")
    named = load_tokenizer(path, SpecialTokensConfig(image="<picture>"))
    assert named.entry.image_id == 403
    assert 403 not in named.encode(text)
