"""Rows that are wrong in every field, and lines that are not rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np

_SCALARS = (
    *(None, True, False, 0, -1, 7, 10**40, -(10**400), 0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "text", "user", "image", "x.png", "\0", "\ud800", "ok\udfffok", "é", "\u202e", "a" * 300, "[INST]"),
)
_TEXTS = ("What?", "A word.", "<s>[INST]", " ", "二三 四", "One\nline, and another.")
_URIS = ("0.png", "0.png", "none.png", "file:///", "s3:", "gopher://x/y.png", "../0.png", ".", "0.png/x")
_TIMES = (0, 0.5, 1, None, -1, 1e300)


class RowGrammar:
    """Rows of a source with any value at all in any place.

    Args:
        rng: makes every choice. Hypothesis can be one (``st.randoms``), and then looks for the smallest row that fails.
        trouble: how often something else stands where a thing belongs.
    """

    def __init__(self, rng: Random, trouble: float = 0.02) -> None:
        self.rng = rng
        self.trouble = trouble

    def row(self) -> Any:
        kind = self.rng.choice(["text", "messages", "annotations"] * 3 + ["mixed"])
        fields: dict[str, Callable[[], Any]] = {
            "id": lambda: str(self.rng.randrange(5000)),
            "source": lambda: self.rng.choice(["one", "two"]),
            "other": self.anything,
            "text": self.text,
            "messages": self.messages,
            "annotations": lambda: self.several(self.messages),
            "media": lambda: self.several(self.media),
        }
        names = [kind] if kind != "mixed" else self.rng.sample(["text", "messages", "annotations", "media"], 2)
        names += self.rng.sample(["id", "source", "other"], self.rng.randrange(4))
        if kind == "annotations" and self.rng.random() < 0.7:
            names.append("media")
        return self.mostly(lambda: {name: self.mostly(fields[name]) for name in names})

    def mostly(self, make: Callable[[], Any]) -> Any:
        return self.anything() if self.rng.random() < self.trouble else make()

    def anything(self, depth: int = 0) -> Any:
        kind = self.rng.randrange(6 if depth < 4 else 4)
        if kind < 4:
            return self.rng.choice(_SCALARS)
        several = range(self.rng.randrange(4))
        if kind == 4:
            return [self.anything(depth + 1) for _ in several]
        return {
            self.rng.choice(["type", "text", "role", "bytes", "path", "?"]): self.anything(depth + 1) for _ in several
        }

    def several(self, make: Callable[[], Any]) -> list[Any]:
        return [self.mostly(make) for _ in range(self.rng.choice([0, 1, 1, 2, 3]))]

    def messages(self) -> list[Any]:
        question, answer = (self.message(role) for role in (["user", "system"], ["assistant", "assistant", "user"]))
        return [question, answer, *(self.several(lambda: self.message(["user", "assistant"] * 5 + ["robot"])))]

    def message(self, roles: list[str]) -> Any:
        role, content = self.mostly(lambda: self.rng.choice(roles)), self.mostly(self.content)
        return self.mostly(lambda: {"role": role, "content": content})

    def content(self) -> Any:
        return self.text() if self.rng.random() < 0.4 else self.several(self.part)

    def part(self) -> Any:
        return self.media() if self.rng.random() < 0.4 else {"type": "text", "text": self.mostly(self.text)}

    def media(self) -> dict[str, Any]:
        kind = self.rng.choice(["image"] * 8 + ["video"] * 2 + ["hologram"])
        part = {"type": self.mostly(lambda: kind), kind: self.mostly(lambda: self.rng.choice(_URIS))}
        if kind == "video":
            part |= {name: self.mostly(lambda: self.rng.choice(_TIMES)) for name in ("start", "end")}
        return part

    def text(self) -> str:
        return self.rng.choice(_TEXTS)


def drawn_lines(count: int, seed: int) -> list[bytes]:
    """Lines of rows, the same for the same seed."""
    grammar = RowGrammar(Random(seed))
    return [json.dumps(grammar.row()).encode() for _ in range(count)]


def large_lines() -> Iterator[bytes]:
    """Lines of 10 MB in every place of a row, and one of 100 MB."""
    size = 10**7
    words, solid = "A word, and more of it. " * (size // 24), "a" * size
    mixed = "".join(map(chr, np.random.default_rng(5).integers(0x21, 0x2FFF, size // 3)))
    answer = {"role": "assistant", "content": "yes"}
    for text in (words, solid, mixed):
        yield json.dumps({"text": text}, ensure_ascii=False).encode()
    yield json.dumps({"text": mixed}).encode()
    yield json.dumps({"messages": [{"role": "user", "content": words}, answer]}).encode()
    yield json.dumps({"messages": [{"role": solid, "content": "x"}, answer]}).encode()
    yield json.dumps({"messages": [{"role": "user", "content": [{"type": solid}]}, answer]}).encode()
    image = {"type": "image", "image": solid}
    yield json.dumps({"messages": [{"role": "user", "content": [image]}, answer]}).encode()
    yield json.dumps({"id": solid, "text": "a long id"}).encode()
    yield json.dumps({"source": solid, "text": "a long source"}).encode()
    yield json.dumps({solid: solid, "text": "a long key"}).encode()
    yield b'{"messages": [' + b"[]," * (size // 3) + b"[]]}"
    yield json.dumps({"messages": [answer] * (size // 50)}).encode()
    yield json.dumps({"annotations": [[answer]] * (size // 50)}).encode()
    yield b'{"text": "' + b"a word " * (10 * size // 7) + b'"}'


def broken_lines() -> list[bytes]:
    """Lines of JSON Lines that break parsers. None of them has a line break except at its end."""
    deep = 10_000
    text = {"text": "a text"}
    return [
        b"",
        b"   \t ",
        b"{",
        b"nul",
        b"[]",
        b"{}",
        b'"text"',
        b"NaN",
        b"1e999",
        b"-" * 1000,
        b"9" * 10_000,
        b'{"id": ' + b"9" * 10_000 + b', "text": "a"}',
        b'{"text": "a", "x": NaN, "y": Infinity, "z": -0}',
        b"[" * deep + b"]" * deep,
        b'{"text": "a", "x": ' + b"[" * deep + b"]" * deep + b"}",
        b'{"messages": ' + b'[{"role": "user", "content": ' * deep + b'""' + b"}]" * deep + b"}",
        b'{"a":' * deep + b"1" + b"}" * deep,
        b'{"id": "twice", "id": "again", "text": "first", "text": "second"}',
        b"\xef\xbb\xbf" + json.dumps(text).encode(),
        json.dumps(text).encode() + b"\r",
        json.dumps(text).encode("utf-16"),
        json.dumps(text).encode("utf-32-le"),
        b'{"text": "\xff\xfe broken"}',
        b'{"text": "\xed\xa0\x80 surrogate bytes"}',
        b'{"text": "\\ud800"}',
        b'{"id": "\\udfff", "text": "a"}',
        b'{"id": "a\\u0000b", "text": "null in an id"}',
        b'{"id": "a\\nb", "text": "break in an id"}',
        b'{"id": "' + b"i" * 100_000 + b'", "text": "a long id"}',
        b'{"source": "' + b"s" * 100_000 + b'", "text": "a long source"}',
        b"\x00" * 1000,
        b'{"text": "a"} {"text": "b"}',
        b'{"text": "a",}',
        b"{'text': 'a'}",
        b"\x1f\x8b\x08\x00" + bytes(range(32, 200)),
        b'{"text": "' + b"word " * 200_000 + b'"}',
        b'{"text": "' + b"a" * 300_000 + b'"}',
    ]
