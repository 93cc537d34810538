"""Rows of every form, and every way in which a row can be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.ingest.document import Document, Medium, Message
from preshard.packer_service.ingest.source.rows import parse_document, row_identity
from preshard.schemas.errors import DocumentError

ANSWER = {"role": "assistant", "content": "yes"}


def test_the_three_forms() -> None:
    """Fails when a form of the source is read as another."""
    assert parse_document({"id": "x", "text": "words"}) == Document(text="words")
    chat = parse_document({"messages": [{"role": "user", "content": "why"}, ANSWER], "text": None, "media": None})
    assert chat.branches == ((Message(role="user", parts=("why",)), Message(role="assistant", parts=("yes",))),)
    assert not chat.annotated
    tree = parse_document(
        {"media": [{"type": "video", "video": "v.mp4", "start": 1, "end": 2.5}], "annotations": [[ANSWER], [ANSWER]]}
    )
    assert tree.annotated
    assert tree.shared == (Medium(kind="video", uri="v.mp4", start=1.0, end=2.5),)
    assert len(tree.branches) == 2


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "bytes": b"x"},
        {"type": "image", "image": b"x"},
        {"type": "image", "image": {"bytes": b"x", "path": None}},
        {"type": "image", "image": {"bytes": b"x", "path": "x.png"}, "text": None, "start": None},
    ],
)
def test_inline_bytes_in_every_form_that_parquet_has(part: dict[str, Any]) -> None:
    """Fails when an image column of Hugging Face's datasets, or null fields beside it, is not understood."""
    document = parse_document({"messages": [{"role": "user", "content": [part]}, ANSWER]})
    assert document.media() == [Medium(kind="image", data=b"x")]


def messages(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}, ANSWER]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "the row is a list"),
        ({}, "has none of text, messages, annotations"),
        ({"text": "a", "messages": []}, "has text and messages"),
        ({"id": 0.5, "text": "a"}, "id is 0.5"),
        ({"source": ["a"], "text": "a"}, "source is"),
        ({"id": "i" * 1001, "text": "a"}, "id is 'iii.*at most 1000 characters"),
        ({"source": "s" * 1001, "text": "a"}, "source is 'sss.*at most 1000 characters"),
        ({"text": 3}, "text is a int"),
        ({"text": "a\ud800"}, "lone surrogate"),
        ({"text": "a", "media": []}, "media is legal only beside annotations"),
        ({"messages": "hello"}, "messages is a str"),
        ({"annotations": [[ANSWER], []]}, r"annotations\[1\] has no messages"),
        ({"messages": [3]}, r"messages\[0\] is a int"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "legal are system, developer, user, assistant, tool"),
        (messages(None), r"messages\[0\].content is a null"),
        (messages([{"type": "audio"}]), "legal are text, image, video"),
        (messages([{"type": "text", "text": None}]), r"content\[0\].text is a null"),
        (messages([{"type": "image"}]), r"messages\[0\].content has a part of type image without a file"),
        (messages([{"type": "image", "image": ""}]), "not the path or URI"),
        (messages([{"type": "image", "image": "x" * 8001}]), "at most 8000 characters"),
        (messages([{"type": "image", "bytes": "x"}]), "bytes is a str"),
        (messages([{"type": "video", "video": "v", "start": "1"}]), "start is '1'"),
        (messages([{"type": "video", "video": "v", "end": float("nan")}]), "end is nan"),
        (messages([{"type": "video", "video": "v", "end": True}]), "end is True"),
    ],
)
def test_bad_rows_name_field_value_and_what_is_legal(row: Any, message: str) -> None:
    """Fails when a malformed row crashes the task or is packed as something else."""
    with pytest.raises(DocumentError, match=message) as caught:
        parse_document(row)
    assert caught.value.code == "bad_row"


@pytest.mark.parametrize(
    "row",
    [
        {"text": " \n"},
        {"messages": []},
        {"messages": [{"role": "user", "content": "only a question"}]},
        {"messages": [{"role": "assistant", "content": " "}]},
        {"annotations": []},
    ],
)
def test_documents_without_loss_are_empty(row: dict[str, Any]) -> None:
    """Fails when a document that trains nothing takes up a pack."""
    with pytest.raises(DocumentError) as caught:
        parse_document(row)
    assert caught.value.code == "empty"


FIELDS = ["id", "source", "text", "messages", "annotations", "media", "role", "content", "type", "image"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(FIELDS) | st.text(max_size=3),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(ANYTHING)
def test_any_row_is_a_document_or_a_reject(row: Any) -> None:
    """Fails when some row raises anything but DocumentError."""
    doc_id, source = row_identity(row)
    assert doc_id is None or doc_id
    assert source
    outcome: object
    try:
        outcome = parse_document(row)
    except DocumentError as error:
        outcome = error.code
    assert isinstance(outcome, Document) or outcome in ("bad_row", "empty")


def test_a_row_says_what_its_document_counts() -> None:
    """Fails when a weight is lost in a form or a table of text, or one that nobody can mean is taken."""
    answer = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So.", "weight": 0.5}]
    rows: list[tuple[str, dict[str, Any]]] = [("messages", {"text": "a"}), ("messages", {"messages": answer})]
    rows += [("alpaca", {"instruction": "a", "output": "b"}), ("caption", {"image": "a.png", "caption": "b"})]
    for form, row in rows:
        assert parse_document(row, form).weight == 1
        for value in (0.25, "0.25", 2):
            assert parse_document({**row, "document_weight": value}, form).weight == float(value)
    for value, message in (
        (-1, "legal are 0 and"),
        ("much", "document_weight is 'much'"),
        ("nan", "is nan"),
        (0, "no token"),
    ):
        with pytest.raises(DocumentError, match=message):
            parse_document({"text": "a", "document_weight": value})
    with pytest.raises(DocumentError, match="no token would carry loss"):
        parse_document({"text": "a", "document_weight": 0})
