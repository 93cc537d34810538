"""Texts that are encoded in parts: where they are cut."""

from __future__ import annotations

import re

import pytest

from preshard.packer_service.ingest.text import encoded
from preshard.packer_service.ingest.text.encoded import encode_with_specials


class Letters:
    """A tokenizer with one token for each character, which remembers what it was given."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoded:
        assert not add_special_tokens
        self.parts.append(sequence)
        return Encoded(sequence)


class Encoded:
    """One id for each character of a text."""

    def __init__(self, text: str) -> None:
        self.ids = [ord(letter) for letter in text]
        self.offsets = [(at, at + 1) for at in range(len(text))]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("aaaaaa<>bbbbbb<>cc", ["aaaaaa", "<>bbbbbb", "<>cc"]),
        ("aa<>bb<>cccccc<>d", ["aa<>bb", "<>cccccc", "<>d"]),
        ("aaaaaaa <>bb<>c<>d", ["aaaaaaa <>bb", "<>c<>d"]),
        ("a<>b", ["a<>b"]),
    ],
)
def test_a_long_text_is_cut_before_special_tokens(text: str, parts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when ranges between special tokens grow past a part, or more cuts are made than needed."""
    monkeypatch.setattr(encoded, "PART", 10)
    monkeypatch.setattr(encoded, "text_parts", lambda text: iter([text]))  # which would cut what is longer still
    tokenizer = Letters()
    found = encode_with_specials(tokenizer, text, re.compile("<>"))
    assert tokenizer.parts == parts
    assert found.starts.tolist() == list(range(len(text)))
    assert found.ids.tolist() == [ord(letter) for letter in text]
