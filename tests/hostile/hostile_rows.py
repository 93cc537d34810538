"""Rows that are wrong in every field, and lines that are no rows."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.sampled_from(
        ["", " ", "text", "user", "image", "x.png", "\0", "\ud800", "ok\udfffok", "é", "\u202e", "a" * 300]
    ),
)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["type", "text", "bytes", "path", "?"]), inner)
    ),
    max_leaves=6,
)


def _mostly(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What belongs there three times out of four, so that deep places are reached; else anything."""
    return st.one_of(strategy, strategy, strategy, _ANYTHING)


def row_strategy() -> st.SearchStrategy[Any]:
    """Rows after the grammar of a source, with anything at all in any place of it."""
    text = _mostly(st.sampled_from(["What?", "A word.", "<s>[INST]", " "]))
    uri = _mostly(st.sampled_from(["0.png", "none.png", "file:///", "s3:", "http://x/y.png", "../0.png", "."]))
    time = _mostly(st.sampled_from([0, 0.5, 1, None]))
    part = _mostly(
        st.one_of(
            st.fixed_dictionaries({"type": st.just("text"), "text": text}),
            st.fixed_dictionaries({"type": st.just("image"), "image": uri}, optional={"bytes": _ANYTHING}),
            st.fixed_dictionaries({"type": st.just("video"), "video": uri}, optional={"start": time, "end": time}),
            st.fixed_dictionaries({"type": _ANYTHING, "hologram": uri}),
        )
    )
    content = _mostly(st.one_of(text, st.lists(part, max_size=3)))
    role = _mostly(st.sampled_from(["system", "user", "assistant"]))
    message = _mostly(st.fixed_dictionaries({"role": role, "content": content}, optional={"tool": _ANYTHING}))
    messages = _mostly(st.lists(message, max_size=3))
    forms = {
        "text": text,
        "messages": messages,
        "annotations": _mostly(st.lists(messages, max_size=3)),
        "media": _mostly(st.lists(part, max_size=2)),
        "id": _mostly(st.sampled_from(["a", "b", "c", "long " * 100])),
        "source": _mostly(st.sampled_from(["one", "two"])),
        "other": _ANYTHING,
    }
    return st.one_of(
        *(st.fixed_dictionaries({form: forms[form]}, optional=forms) for form in ("text", "messages", "annotations")),
        st.fixed_dictionaries({}, optional=forms),
        _ANYTHING,
    )


def broken_lines() -> list[bytes]:
    """Lines of JSON Lines that break parsers. None of them holds a line break but as its end."""
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
