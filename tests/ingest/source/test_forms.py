"""Every form of rows: what it becomes, some thirty ways in which a row of it can be wrong, and any value anywhere."""

from __future__ import annotations

import base64
import json
import re
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from preshard.packer_service.ingest.document import Document, Medium, Message
from preshard.packer_service.ingest.source.forms.detect import (
    FORMS,
    Columns,
    detect,
    formless,
    kind_of_value,
    kinds_of_row,
)
from preshard.packer_service.ingest.source.forms.overlooked import is_telling
from preshard.packer_service.ingest.source.rows import parse_row, row_identity
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError

Row = dict[str, Any]
Place = tuple[str | int, ...]

NO_TEXT = (3, True, ["a"], {"a": "b"}, "a\ud800")
NO_LIST = (3, "words", {"a": 1}, False)
NO_OBJECT = (3, "words", ["a"], None)
NO_FILE = (3, "", "x" * 8001, "a\0b", {"file": "x"}, {"bytes": "x"}, "data:image/png;base64,***")
NO_TIME = ("1", True, [1], float("nan"), 10**400)
UNKNOWN = ("?",)  # stands for a key that no form knows
OF_A_CHAT: list[tuple[Place, tuple[Any, ...]]] = [
    (("system_prompt",), ("Be short.",)),
    (("functions",), ([{"name": "zoom"}],)),
    (("kto_tag",), (True, False)),
    (("label",), (True, False)),
    (("rejected_response",), ("A dog.",)),
]

ROWS: dict[str, Row] = {
    "tokens": {
        "input_ids": [7, 8, 9],
        "labels": [-100, 8, 9],
        "loss_mask": [1, 0.5, 1],
        "completion_mask": [0, 1, 1],
        "attention_mask": [1, 1, 1],
        "position_ids": [0, 1, 0],
        "seq_lengths": [2, 1],
    },
    "messages": {
        "messages": [
            {"role": "system", "content": "Be short."},
            {
                "role": "user",
                "content": [
                    {"type": "image"},
                    {"type": "text", "text": "What <image> shows?"},
                    {"type": "video", "video": "v.mp4", "start": 0, "end": 1.5, "fps": 1, "max_frames": 4},
                    {"type": "image_url", "image_url": {"url": "1.png", "detail": "auto"}},
                ],
            },
            {"role": "assistant", "content": "A cat.", "weight": 1},
        ],
        "images": ["0.png", {"bytes": b"x", "path": "name.png"}],
    },
    "annotations": {
        "media": [{"type": "video", "video": "v.mp4", "video_start": 1.0}, {"type": "image", "path": "0.png"}],
        "annotations": [
            [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here."}],
            [{"role": "assistant", "content": "A street.", "train": True}],
        ],
    },
    "tools": {
        "messages": [
            {"role": "developer", "content": "Use tools."},
            {"role": "user", "content": "How warm is it?"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "A tool knows.",
                "tool_calls": [{"type": "function", "function": {"name": "warm", "arguments": {}}}],
            },
            {"role": "tool", "content": "20", "tool_call_id": "1", "name": "warm"},
            {"role": "assistant", "content": "20 degrees."},
        ],
        "tools": [{"type": "function", "function": {"name": "warm"}}],
        "documents": [{"title": "a"}],
        "chat_template_kwargs": {"thinking": True},
    },
    "sharegpt": {
        "system": "Be short.",
        "conversations": [
            {"from": "human", "value": "<image>\nWhat is it, <video>?"},
            {"from": "gpt", "value": "A cat.", "weight": 0},
            {"from": "function_call", "value": '{"name": "warm", "arguments": {}}'},
            {"from": "observation", "value": "20"},
            {"from": "gpt", "value": "20 degrees.", "train": True},
        ],
        "image": "0.png",
        "videos": ["v.mp4"],
    },
    "alpaca": {
        "instruction": "Translate <image>.",
        "input": "Katze",
        "output": "Cat",
        "system": "Be short.",
        "history": [["Hund", "Dog"]],
        "images": ["0.png"],
    },
    "question_answer": {
        "query": "What is it?",
        "response": "A cat.",
        "system": "Be short.",
        "history": [["Is it <video>?", "Yes."]],
        "frames": ["0.png", {"bytes": b"x", "path": "name.png"}],
        "fps": 2.0,
        "video_start": 0.5,
    },
    "cauldron": {
        "images": ["0.png", "1.png"],
        "texts": [
            {"user": "What is it?", "assistant": "A cat.", "source": "AI2D"},
            {"user": "And that?", "assistant": "A dog.", "source": "AI2D"},
        ],
    },
    "prompt_completion": {"prompt": "One <image> two,", "completion": " three.", "images": ["0.png"]},
    "preferences": {"prompt": "One <image> two,", "chosen": " three.", "rejected": " four.", "images": ["0.png"]},
    "prompt_messages": {
        "prompt": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Wait."}],
        "completion": [{"role": "assistant", "content": "So."}],
    },
    "text": {"raw_content": "Any text."},
    "caption": {"caption": "A cat.", "images": ["0.png", "1.png"], "video_path": "v.mp4"},
    "obelics": {"texts": ["First.", None, "Second."], "images": [None, "0.png", None]},
    "mmc4": {
        "text_list": ["One.", "Two."],
        "image_info": [{"image_name": "0.png", "matched_text_index": 1, "matched_sim": 0.3}],
    },
}
"""A whole row of each form."""

TURNS: list[tuple[Place, tuple[Any, ...]]] = [
    (("messages",), NO_LIST),
    (("messages", 0), NO_OBJECT),
    (("messages", 0, "role"), (None, 3, "robot", ["user"])),
    (("messages", 0, "content"), (None, 3, {"a": 1})),
    (("messages", 1, *UNKNOWN), ("x", 1)),
    (("messages", 1, "tool_calls"), ([{"a": 1}],)),
    (("messages", 2, "weight"), (-1, 1e7, 1e-9, float("nan"), "1", [0])),
    (("messages", 1, "weight"), (1,)),
    (("messages", 1, "content", 0), NO_OBJECT),
    (("messages", 1, "content", 0, "type"), (None, "hologram", 3, ["image"])),
    (("messages", 1, "content", 0, *UNKNOWN), ("x",)),
    (("messages", 1, "content", 0, "image"), NO_FILE),
    (("messages", 1, "content", 0, "base64"), ("***", 3)),
    (("messages", 1, "content", 0, "bytes"), ("x", 3)),
    (("messages", 1, "content", 1, "text"), (None, *NO_TEXT)),
    (("messages", 1, "content", 1, "image"), ("0.png",)),
    (("messages", 1, "content", 2, "start"), NO_TIME),
    (("messages", 1, "content", 2, "video_end"), (2.0,)),
    (("messages", 1, "content", 2, "fps"), (*NO_TIME, 0, -1, 1001)),
    (("messages", 1, "content", 2, "max_frames"), (*NO_TIME, 0, 1.5, 2**30)),
    (("messages", 1, "content", 2, "nframes"), (8,)),
    (("messages", 1, "content", 2, "sample_fps"), (1.0,)),
    (("messages", 1, "content", 2, "video"), ([], ["0.png", 3], [["0.png"]])),
    (("messages", 1, "content", 2, "index"), (0,)),
    (("messages", 1, "content", 0, "index"), (2, -1, 0.5, True, "0")),
    (("messages", 1, "content", 0, "min_pixels"), (*NO_TIME, 0, 0.5)),
    (("messages", 1, "content", 0, "resized_height"), (280,)),
    (("min_pixels",), (784, "784")),
    (("fps",), (2.0,)),
    (("frames",), (["0.png"],)),
    (("messages", 1, "content", 3, "image_url", "detail"), ("low", 3)),
    (("messages", 1, "content", 3, "image_url", "url"), (None, *NO_FILE)),
    (("images",), (3, ["0.png"], [], ["0.png"] * 3, [3, "0.png"], [None, "0.png"])),
    (("image",), ("0.png",)),
    (("videos",), (["v.mp4"],)),
    (("audio",), ("a.wav", ["a.wav"])),
    (("conversations",), ([{"from": "human", "value": "x"}],)),
    (("text",), ("Two documents in one.",)),
    (("id",), (True, 0.5, ["a"], "i" * 1001, "\ud800")),
    (("source",), (3, ["a"], "s" * 1001)),
]

WRONG: dict[str, list[tuple[Place, tuple[Any, ...]]]] = {
    "tokens": [
        (("input_ids",), (*NO_LIST, [7, 8], [])),
        (("input_ids", 1), ("8", True, 8.5, None, 10**400, [8], 7)),
        (("labels",), (*NO_LIST, [8])),
        (("labels", 1), ("8", True, 9)),
        (("loss_mask",), (*NO_LIST, [1], [[1], [1], [1]])),
        (("loss_mask", 1), ("1", None, -1, 1e7, float("nan"), 10**400, [1])),
        (("attention_mask", 1), (0, 2, "1", None)),
        (("position_ids", 1), (0, 2, "1", None)),
        (("position_ids", 2), (2, -1)),
        (("seq_lengths",), (*NO_LIST, [], [3], [1, 2], [0, 3], [2, 2])),
    ],
    "messages": TURNS,
    "annotations": [
        (("annotations",), NO_LIST),
        (("annotations", 0), (*NO_LIST, None, [])),
        (("annotations", 1, 0), NO_OBJECT),
        (("annotations", 1, 0, "role"), (None, "robot")),
        (("annotations", 1, 0, "train"), ("no", 2)),
        (("annotations", 1, 0, *UNKNOWN), (1,)),
        (("annotations", 0, 0, "content"), (None, 3, [{"type": "image"}])),
        (("media",), NO_LIST),
        (("media", 0), NO_OBJECT),
        (("media", 0, "type"), (None, "audio")),
        (("media", 0, "video_start"), NO_TIME),
        (("media", 0, "start"), (1,)),
        (("media", 0, "video"), (None, 3, "")),
        (("media", 1, "path"), NO_FILE),
        (("media", 1, "image"), ("1.png",)),
        (("images",), (["0.png"],)),
    ],
    "tools": [
        (("messages", 2, "tool_calls"), ("call", {"a": 1}, ["call"], [{"at": b"x"}], [{"at": float("nan")}])),
        (("messages", 2, "reasoning_content"), NO_TEXT),
        (("messages", 2, "tool_call_id"), ("1",)),
        (("messages", 3, "tool_calls"), ([{"function": {}}],)),
        (("messages", 3, "tool_call_id"), NO_TEXT),
        (("messages", 3, "name"), NO_TEXT),
        (("messages", 4, "function_call"), ({"name": "warm"},)),
        (("messages", 4, "content"), (None,)),
        (("tools",), (3, "words", {"a": 1}, "[", [{"a": b"x"}])),
        (("documents",), (3, "words", {"a": 1})),
        (("chat_template_kwargs",), (3, "words", [1])),
    ],
    "sharegpt": [
        (("conversations",), NO_LIST),
        (("conversations", 0), NO_OBJECT),
        (("conversations", 0, "from"), (None, 3, "robot", ["human"])),
        (("conversations", 0, "value"), (None, *NO_TEXT)),
        (("conversations", 0, *UNKNOWN), (1,)),
        (("conversations", 0, "weight"), (1,)),
        (("conversations", 1, "weight"), (-2, "0")),
        (("conversations", 2, "value"), ("call", '{"arguments": {}}', '{"name": 3}', "[1]", '{"name": "a", "x": 1}')),
        (("system",), NO_TEXT),
        (("tools",), (3, "words", {"a": 1})),
        (("image",), (3, "", ["0.png", "1.png"], [])),
        (("images",), (["0.png"],)),
        (("videos",), (["v.mp4", "w.mp4"], [3])),
        (("audios",), (["a.wav"],)),
        (("messages",), ([{"role": "user", "content": "x"}],)),
        *OF_A_CHAT,
    ],
    "alpaca": [
        *OF_A_CHAT,
        (("instruction",), (None, *NO_TEXT)),
        (("input",), NO_TEXT),
        (("output",), (None, *NO_TEXT)),
        (("system",), NO_TEXT),
        (("history",), NO_LIST),
        (("history", 0), (3, "words", ["a"], ["a", "b", "c"])),
        (("history", 0, 0), NO_TEXT),
        (("images",), (3, [], ["0.png", "1.png"], [""])),
        (("videos",), (["v.mp4"],)),
        (("tools",), (3, "words")),
    ],
    "question_answer": [
        (("query",), (None, *NO_TEXT)),
        (("question",), ("Two questions in one.",)),
        (("response",), (None, *NO_TEXT)),
        (("answer",), ("Two answers in one.",)),
        (("system",), NO_TEXT),
        (("system_prompt",), ("Two of them.",)),
        (("history",), NO_LIST),
        (("history", 0), (3, "words", ["a"])),
        (("frames",), ("0.png", [], [3], [["0.png"]])),
        (("fps",), (None, *NO_TIME, 0, 1001)),
        (("video_start",), NO_TIME),
        (("start",), (0,)),
        (("images",), (["0.png"],)),
        (("videos",), (["v.mp4"],)),
        (("nframes",), (8,)),
        (("max_frames",), (8,)),
        (("context",), ("It is said that",)),
        (("hint",), ("Look left.",)),
        (("choices",), (["A cat", "A dog"],)),
        (("rejected",), ("A dog.",)),
        (("label",), (True,)),
    ],
    "cauldron": [
        (("texts",), (*NO_LIST, None)),
        (("texts", 0), NO_OBJECT),
        (("texts", 0, "user"), (None, *NO_TEXT)),
        (("texts", 1, "assistant"), (None, *NO_TEXT)),
        (("texts", 1, "user"), NO_TEXT),
        (("texts", 0, *UNKNOWN), (1,)),
        (("images",), (3, [3], [None], {"a": 1}, [["0.png"]])),
        (("images", 0), (*NO_FILE, None)),
        (("videos",), (["v.mp4"],)),
        (("max_pixels",), (784,)),
    ],
    "prompt_completion": [
        (("prompt",), (None, 3, True, {"a": "b"}, "a\ud800", [])),
        (("completion",), (None, 3, True, {"a": "b"}, "a\ud800", [])),
        (("chosen",), ("a",)),
        (("rejected",), ("a",)),
        (("system",), ("Be short.",)),
        (("tools",), ([{"a": 1}],)),
        (("images",), (3, [], ["0.png", "1.png"], [""], "")),
        (("image",), ("0.png",)),
        (("videos",), (["v.mp4"],)),
        (("messages",), ([{"role": "user", "content": "x"}],)),
        (("documents",), ([{"a": 1}],)),
        (("audio",), ("a.wav", [])),
        (("conversation",), ([{"a": 1}],)),
        (("source",), (3, ["a"])),
        (("id",), (True, 0.5, ["a"], "i" * 1001)),
    ],
    "preferences": [
        (("prompt",), (3, True, {"a": "b"}, "a\ud800", [])),
        (("chosen",), (None, 3, True, {"a": "b"}, "a\ud800", [])),
        (("rejected",), (None, 3, True, {"a": "b"}, "a\ud800", [])),
        (("tools",), ([{"a": 1}],)),
        (("images",), (3, [], ["0.png", "1.png"], [""], "")),
        (("image",), ("0.png",)),
        (("videos",), (["v.mp4"],)),
        (("system",), ("Be brief.",)),
        (("source",), (3, ["a"])),
        (("id",), (True, 0.5)),
        (("conversation",), ([{"a": 1}],)),
    ],
    "prompt_messages": [
        (("prompt", 0), NO_OBJECT),
        (("prompt", 0, "role"), (None, "robot", 3)),
        (("prompt", 0, "content"), (None, 3, {"a": 1})),
        (("prompt", 0, *UNKNOWN), (1,)),
        (("completion", 0), NO_OBJECT),
        (("completion", 0, "role"), (None, "robot")),
        (("completion", 0, "content"), (None, 3)),
        (("completion", 0, "weight"), (-2, "1")),
        (("completion",), (3, "words", True)),
        (("prompt",), (3, "words", True)),
        (("images",), (["0.png"],)),
        (("tools",), (3, "words")),
    ],
    "text": [
        (("raw_content",), (None, *NO_TEXT, 0.5, b"x")),
        (("content",), ("Another text.",)),
        (("text",), ("Another text.",)),
        (("images",), (["0.png"], "0.png")),
        (("image",), ("0.png", {"bytes": b"x"})),
        (("video",), ("v.mp4",)),
        (("audio",), ("a.wav",)),
        (("messages",), ([], "words")),
        (("conversation",), ([{"role": "user"}],)),
        (("photos",), (["0.png"],)),
        (("image_path",), ("0.png",)),
        (("id",), (True, 0.5, ["a"], {"a": 1}, "i" * 1001, "\ud800", b"x")),
        (("source",), (3, ["a"], {"a": 1}, "s" * 1001, "\ud800", b"x")),
    ],
    "caption": [
        (("caption",), (None, *NO_TEXT)),
        (("text",), ("Another caption.", 3)),
        (("images",), (3, {"a": 1}, [3], [""], [None], [{"file": "x"}], ["x" * 8001])),
        (("images", 0), (*NO_FILE, None)),
        (("image",), ("2.png",)),
        (("video_path",), (3, "", [3], ["v.mp4", ""])),
        (("videos",), ("v.mp4",)),
        (("audio",), ("a.wav",)),
        (("messages",), ([],)),
    ],
    "obelics": [
        (("texts",), (*NO_LIST, None, [], ["a"])),
        (("images",), (*NO_LIST, None, [], [None] * 3, ["0.png"] * 3)),
        (("texts", 0), (None, *NO_TEXT)),
        (("texts", 1), ("Both.",)),
        (("images", 1), (None, *NO_FILE)),
        (("text_list",), (["a"],)),
        (("image_info",), ([],)),
        (("videos",), (["v.mp4"],)),
    ],
    "mmc4": [
        (("text_list",), (*NO_LIST, None)),
        (("text_list", 0), (None, *NO_TEXT)),
        (("image_info",), NO_LIST),
        (("image_info", 0), NO_OBJECT),
        (("image_info", 0, "matched_text_index"), (None, 2, -1, 0.5, "1", True)),
        (("image_info", 0, "image_name"), (None, *NO_FILE)),
        (("image_info", 0, *UNKNOWN), (1,)),
        (("images",), (["0.png"],)),
        (("texts",), (["a"],)),
        (("video",), ("v.mp4",)),
    ],
}
"""Places in each form's row, with values that must not stand there."""

FORM_OF = {
    **{name: name for name in ROWS},
    **{"annotations": "messages", "tools": "messages", "prompt_messages": "prompt_completion"},
    **{"obelics": "interleaved", "mmc4": "interleaved"},
}


def changed(row: Row, place: Place, value: Any) -> Row:
    """The row with another value in one place."""
    row = deepcopy(row)
    at: Any = row
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return row


def columns_of(row: Row) -> Columns:
    return {name: kind_of_value(value) for name, value in row.items()}


VARIANTS = [
    pytest.param(name, place, value, id=f"{name}-{'.'.join(map(str, place))}-{number}")
    for name, wrong in WRONG.items()
    for place, values in wrong
    for number, value in enumerate(values)
]


@pytest.mark.parametrize("name", ROWS)
def test_a_whole_row_is_a_document_of_its_form(name: str) -> None:
    """Fails when a form is taken for another one, or refuses what people write in it."""
    found = detect(columns_of(ROWS[name]))
    assert found is not None
    assert found.name == FORM_OF[name]
    assert parse_row(ROWS[name], FORM_OF[name])
    assert sum(len(values) for _, values in WRONG[name]) >= 30


@pytest.mark.parametrize(("name", "place", "value"), VARIANTS)
def test_a_wrong_row_is_a_reject_that_names_the_field(name: str, place: Place, value: Any) -> None:
    """Fails when something wrong in a row is packed as something else, or the reject does not say where it is."""
    with pytest.raises(DocumentError) as caught:
        parse_row(changed(ROWS[name], place, value), FORM_OF[name])
    named = next(step for step in reversed(place) if isinstance(step, str))
    assert caught.value.code == "bad_row"
    assert named in str(caught.value)
    assert len(str(caught.value)) < 500


one = parse_row
IMAGE, VIDEO = Medium(kind="image", uri="0.png"), Medium(kind="video", uri="v.mp4")


def test_columns_fill_placeholders_and_empty_parts_in_order() -> None:
    """Fails when images of a column are lost, swapped, or packed as the letters of a placeholder."""
    document = one(ROWS["messages"], "messages")
    _, user, _ = document.branches[0]
    clip = Medium(kind="video", uri="v.mp4", start=0.0, end=1.5, fps=1.0, max_frames=4)
    second, third = Medium(kind="image", data=b"x"), Medium(kind="image", uri="1.png")
    assert user.parts == (IMAGE, "What ", second, " shows?", clip, third)
    document = one(ROWS["sharegpt"], "sharegpt")
    assert document.branches[0][1].parts == (IMAGE, "\nWhat is it, ", VIDEO, "?")
    assert document.branches[0][1].content_is_list


def test_a_placeholder_without_a_column_is_text() -> None:
    """Fails when pages about HTML are refused or changed for its tag <video>."""
    row = {"messages": [{"role": "assistant", "content": "<video> is a tag, as <image> is not."}], "images": None}
    assert one(row, "messages").branches[0][0].parts == ("<video> is a tag, as <image> is not.",)


ANSWER = {"role": "assistant", "content": "A cat."}


def asked(content: Any, **columns: Any) -> Row:
    return {"messages": [{"role": "user", "content": content}, ANSWER], **columns}


def test_parts_of_trl_say_by_number_which_image_they_show() -> None:
    """Fails when images are taken in order although the parts name them, or one is left out in silence."""
    places = [{"index": i, "text": None, "type": "image"} for i in (1, 0, 1)]
    content = [*places, {"index": None, "text": "Which?", "type": "text"}]
    one_, two = IMAGE, Medium(kind="image", uri="1.png")
    document = one(asked(content, images=["0.png", "1.png"]), "messages")
    assert document.branches[0][0].parts == (two, one_, two, "Which?")
    with pytest.raises(DocumentError, match="images holds 3, but the row has 2 places"):
        one(asked(content, images=["0.png", "1.png", "2.png"]), "messages")


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        (asked("<image>\nWhat?", video="v.mp4"), (VIDEO, "\nWhat?")),
        (asked("<image> and <image>", videos=["v.mp4", "w.mp4"]), (VIDEO, " and ", Medium(kind="video", uri="w.mp4"))),
        (asked("<video>, no <image>", video="v.mp4"), (VIDEO, ", no <image>")),
        (asked([{"type": "video"}, {"type": "text", "text": "<image>"}], video="v.mp4"), (VIDEO, "<image>")),
        (asked("<image> <video>", video="v.mp4", image="0.png"), (IMAGE, " ", VIDEO)),
    ],
)
def test_an_image_placeholder_stands_for_a_video_where_nothing_else_does(row: Row, parts: Any) -> None:
    """Fails when LLaVA's rows of videos are rejected, or a tag <image> in a text about HTML becomes a video."""
    assert one(row, "messages").branches[0][0].parts == parts


def test_times_beside_a_video_are_those_of_its_clip() -> None:
    """Fails when the whole video is shown although the row names a part of it, or somebody's own column cuts it."""
    row = asked("<video>What?", video="v.mp4", start=1, video_end=2.5, fps=None)
    assert one(row, "messages").media() == [Medium(kind="video", uri="v.mp4", start=1.0, end=2.5)]
    with pytest.raises(DocumentError, match="start is read beside one video, and videos holds 2"):
        one(asked("<video><video>", videos=["v.mp4", "w.mp4"], start=1), "messages")
    with pytest.raises(DocumentError, match="a part with start, and so has the row"):
        one(asked([{"type": "video", "start": 1}], video="v.mp4", start=1), "messages")
    assert one(asked("What?", start=3, end="never"), "messages").media() == []


def test_a_list_of_frames_is_a_video() -> None:
    """Fails when frames are packed as images, or at a rate that nobody named."""
    frames = (IMAGE, Medium(kind="image", uri="1.png"))
    video = Medium(kind="video", frames=frames, fps=0.5)
    names = ["0.png", "1.png"]
    assert one(asked("<video>What?", frames=names, fps=0.5), "messages").media() == [video]
    for key in ("fps", "sample_fps"):
        assert one(asked([{"type": "video", "video": names, key: 0.5}]), "messages").media() == [video]
    with pytest.raises(DocumentError, match="fps is missing: the video is a list of frames"):
        one(asked([{"type": "video", "video": names}]), "messages")
    counted = asked("<video>What?", video="v.mp4", frames=120)
    assert one(counted, "messages").media() == [VIDEO], "their number is a column of the user's own"


def test_turns_without_loss_tools_and_calls() -> None:
    """Fails when a turn that must not be learnt is, or a chat template does not get what the row holds for it."""
    document = one(ROWS["sharegpt"], "sharegpt")
    roles = ["system", "user", "assistant", "assistant", "tool", "assistant"]
    assert [turn.role for turn in document.branches[0]] == roles
    assert [bool(turn.loss) for turn in document.branches[0]] == [False, False, False, True, False, True]
    call = document.branches[0][3]
    assert call.content_is_null
    assert call.fields == (("tool_calls", '[{"type": "function", "function": {"name": "warm", "arguments": {}}}]'),)
    document = one(ROWS["tools"], "messages")
    assert document.tools == '[{"type": "function", "function": {"name": "warm"}}]'
    assert (document.documents, document.template_kwargs) == ('[{"title": "a"}]', '{"thinking": true}')
    assert [name for name, _ in document.branches[0][3].fields] == ["tool_call_id", "name"]


def test_what_each_form_becomes() -> None:
    """Fails when the order of a form's parts changes, or what must not be learnt is."""
    assert one({"id": "x", "text": "words", "media": None}) == Document(text="words")
    document = one(ROWS["annotations"])
    assert document.annotated
    assert (document.shared, len(document.branches)) == ((Medium(kind="video", uri="v.mp4", start=1.0), IMAGE), 2)
    question, answer = Message(role="user", parts=("Hund",)), Message(role="assistant", parts=("Dog",))
    turns = one(ROWS["alpaca"], "alpaca").branches[0]
    assert turns[1:3] == (question, answer)
    assert turns[3].parts == ("Translate ", IMAGE, ".\nKatze")
    document = one(ROWS["prompt_completion"], "prompt_completion")
    assert (document.prompt, document.interleaved) == (("One ", IMAGE, " two,"), (" three.",))
    turns = one(ROWS["prompt_messages"], "prompt_completion").branches[0]
    assert [bool(turn.loss) for turn in turns] == [False, False, True]
    turns = one(ROWS["question_answer"], "question_answer").branches[0]
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "user", "assistant"]
    frames = (IMAGE, Medium(kind="image", data=b"x"))
    assert turns[1].parts == ("Is it ", Medium(kind="video", frames=frames, fps=2.0, start=0.5), "?")
    turns = one(ROWS["cauldron"], "cauldron").branches[0]
    assert [turn.parts for turn in turns] == [
        (IMAGE, Medium(kind="image", uri="1.png"), "What is it?"),
        *(("A cat.",), ("And that?",), ("A dog.",)),
    ]
    asked_of = {"question": "What is it?", "answer": "A cat.", "image": "0.png", "video": "v.mp4"}
    assert one(asked_of, "question_answer").branches[0][0].parts == (IMAGE, VIDEO, "What is it?")
    openorca = {"system_prompt": "Be short.", "question": "Why?", "response": "So."}
    assert [turn.parts for turn in one(openorca, "question_answer").branches[0]] == [
        ("Be short.",),
        ("Why?",),
        ("So.",),
    ]
    assert one(ROWS["caption"], "caption").interleaved == (IMAGE, Medium(kind="image", uri="1.png"), VIDEO, "A cat.")
    assert one(ROWS["obelics"], "interleaved").interleaved == ("First.", IMAGE, "Second.")
    assert one(ROWS["mmc4"], "interleaved").interleaved == ("One.", IMAGE, " Two.")
    two_texts = {"texts": ["a", "b"], "images": [None, None]}
    assert one(two_texts, "interleaved").interleaved == ("a", "\n\nb")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"x").decode()}},
        {"type": "image_url", "image_url": "data:;base64,eA=="},
        {"type": "image", "base64": "eA=="},
        {"type": "image", "url": "data:image/svg,x"},
        {"type": "image", "image": {"bytes": b"x", "path": "name.png"}, "text": None, "start": None},
        {"type": "image", "image": {"bytes": b"x", "path": None}},
        {"type": "image", "image": b"x"},
        {"type": "image", "bytes": b"x"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
        {"type": "image", "image": b"x", "annotations": [], "caption": ""},
    ],
)
def test_bytes_in_every_shape(part: Row) -> None:
    """Fails when an image inside of a row, or null fields beside it, are not understood."""
    assert one(asked([part]), "messages").media() == [Medium(kind="image", data=b"x")]


@pytest.mark.parametrize(
    ("name", "telling"),
    [
        *[(name, True) for name in ("image", "images", "Video", "videos", "audio", "conversations", "chat", "seg.png")],
        *[(name, True) for name in ("image_path", "img_url", "photo_files", "source_video", "messages", "media")],
        *[(name, True) for name in ("frames", "frame_paths")],
        *[(name, False) for name in ("text", "url", "meta", "n", "imagery", "video_id", "chatty", "label", "scores")],
    ],
)
def test_names_of_columns_that_hold_media(name: str, telling: bool) -> None:
    """Fails when a column of images is listed like any other one, or a column of labels ends the command."""
    assert is_telling(name) is telling


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a", "chosen": "b"}, "chosen alone is not a preference; the form preferences reads both answers"),
        ({"prompt": "a", "completions": ["b"], "labels": [True]}, "completions are steps"),
        ({"prompt": "a"}, "prompt alone is no form; the nearest, prompt_completion, needs completion beside it"),
        (
            {"question": "a", "label": 3},
            "question alone .* question_answer, needs output, answer or response",
        ),
        ({"conversation": []}, "no form reads the column conversation; the nearest is conversations"),
        ({"conversation_id": "x", "conversation": []}, "'rename_columns={conversation: conversations}'"),
        ({"a": 1, "b": 2}, "no form has the columns a, b"),
        ({"image": "a.jpg", "prefix": "q", "suffix": "a"}, "--set 'rename_columns={prefix: question, suffix: answer}'"),
        (
            {"Figure_path": "a.jpg", "Caption": "c", "Question": "q", "Choice A": "x", "Answer": "A"},
            "rename_columns={Figure_path: image, Question: question, Answer: answer}' does",
        ),
        (
            {"left.jpg": b"\xff\xd8\xff", "right.jpg": b"\xff\xd8\xff", "json.txt": "c"},
            '{"left.jpg": image_1, "right.jpg": image_2, "json.txt": caption}',
        ),
        (
            {"img_path": "a.jpg", "label_text": "c", "id": "x"},
            "'rename_columns={img_path: image, label_text: caption}'",
        ),
        ({"imgname": "a.png", "query": "q", "label": "a"}, "{imgname: image, query: question, label: answer}"),
        (
            {"images": ["a.png"], "problem": "q", "solution": "a"},
            "'rename_columns={problem: question, solution: answer}'",
        ),
    ],
)
def test_columns_without_a_form_are_told_with_the_nearest(row: Row, message: str) -> None:
    """Fails when a source that cannot be packed is measured to its end, or the reason names no way out."""
    assert detect(kinds_of_row(row)) is None
    assert message in formless(kinds_of_row(row)) or re.search(message, formless(kinds_of_row(row)))


def test_a_system_prompt_beside_messages_is_their_first_turn() -> None:
    """Fails when what Anthropic's and Bedrock's files say to the model is left out."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    [found] = one({"system": "Be short.", "messages": turns}, "messages").branches
    [written] = one({"messages": [{"role": "system", "content": "Be short."}, *turns]}, "messages").branches
    assert found == written
    assert one({"system": "", "messages": turns}, "messages") == one({"messages": turns}, "messages")


@pytest.mark.parametrize(("asked", "answered"), [("question", "answer"), ("prompt", "response")])
def test_a_question_beside_a_caption_is_not_left_out(asked: str, answered: str) -> None:
    """Fails when questions about pictures that also have a caption are packed as captions alone."""
    row = {"caption": "A cat.", "image": "0.png", asked: "What?", answered: "A cat."}
    form = detect(kinds_of_row(row))
    assert form is not None
    with pytest.raises(DocumentError, match=f"does not read {asked} and {answered}; --form question_answer does"):
        parse_row(row, form.name)
    assert parse_row(row, "question_answer").branches
    del row[asked]
    assert parse_row(row, form.name).interleaved  # an answer alone may be anything


@pytest.mark.parametrize("names", [("A", "B"), ("option_a", "option_b"), ("Choice A", "Choice B"), ("opa", "opb")])
def test_choices_in_columns_of_their_own_are_not_left_out(names: tuple[str, ...]) -> None:
    """Fails when a question of VLMEvalKit, MedMCQA or PMC-VQA is packed without what it asks to choose from."""
    row = {"question": "Which?", "answer": "A", **dict.fromkeys(names, "A cat")}
    with pytest.raises(DocumentError, match="is not read by questions and answers; write it into the question"):
        parse_row(row, "question_answer")
    assert parse_row({"question": "Which?", "answer": "A", "A": "1"}, "question_answer")  # one alone may be anything


@pytest.mark.parametrize(
    "mark", ["<|image_1|>", "<|image|>", "<img>0.png</img>", "<ImageHere>", "<start_of_image>", "<Image>", "<audio>"]
)
def test_placeholders_of_other_models_are_no_text(mark: str) -> None:
    """Fails when a placeholder that nothing fills is learnt, with or without an image in front of it."""
    turns = [{"role": "user", "content": f"{mark} a"}, {"role": "assistant", "content": "b"}]
    assert parse_row({"messages": turns}).unfilled[0] == mark
    for row, form in (
        ({"question": f"{mark} a", "answer": "b", "image": "0.png"}, "question_answer"),
        ({"caption": f"{mark} a", "image": "0.png"}, "caption"),
    ):
        with pytest.raises(DocumentError, match=re.escape(f"a text has {mark}, which stands for no image here")):
            parse_row(row, form)
    html = [{"role": "user", "content": 'Mend <img src="0.png"> and <imagine>.'}, turns[1]]
    assert parse_row({"messages": html}).unfilled == ()


def test_empty_fields_of_turns_that_have_none_leave_nothing_out() -> None:
    """Fails when what OpenAI's library and other writers put into every turn rejects all rows."""
    empty = {"annotations": [], "refusal": None, "function_call": None, "reasoning_content": "", "tool_call_id": ""}
    asked = {"role": "user", "content": "a"}
    turns = [{**asked, **empty}, {"role": "assistant", "content": "b", **empty, "reasoning_content": "c"}]
    plain = [asked, {"role": "assistant", "content": "b", "reasoning_content": "c"}]
    assert parse_row({"messages": turns}) == parse_row({"messages": plain})


def test_fields_of_turns_that_nobody_reads_are_left_out_on_demand() -> None:
    """Fails when who has rows of an agent's log, or of a service with caches, has to write them again."""
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    row = {"messages": [{"role": "user", "content": [part], "ts": 3}, {"role": "assistant", "content": "b", "ts": 4}]}
    with pytest.raises(DocumentError, match=re.escape("--set 'ignore_fields=[ts]' leaves it out")):
        parse_row(row)
    with pytest.raises(DocumentError, match=re.escape("--set 'ignore_fields=[cache_control]' leaves it out")):
        parse_row(row, config=PackConfig(ignore_fields=("ts",)))
    config = PackConfig(ignore_fields=("ts", "cache_control"))
    plain = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b"},
        ]
    }
    assert parse_row(row, config=config) == parse_row(plain)
    assert parse_row({"messages": json.dumps(row["messages"])}, config=config) == parse_row(plain)
    assert parse_row({"prompt": "[1", "completion": "{ts}"}, "prompt_completion", config).prompt == ("[1",)
    for name in ("images", "text", "function_call"):
        with pytest.raises(DocumentError) as error:
            parse_row({"messages": [{**row["messages"][1], name: "x"}]}, config=config)
        assert "ignore_fields" not in str(error.value)
    for name in ("content", "role", "tool_calls"):
        with pytest.raises(ValidationError, match="is what a message says"):
            PackConfig(ignore_fields=(name,))


@pytest.mark.parametrize(
    ("row", "program"),
    [
        ([{"role": "user", "content": "a"}], "{messages: .}"),
        ([{"from": "human", "value": "a"}], "{conversations: .}"),
        ([{"conversations": []}], ".[]"),
    ],
)
def test_a_row_that_is_a_list_says_what_makes_rows_of_it(row: Any, program: str) -> None:
    """Fails when somebody whose lines are conversations, or rows packed as by Qwen's trainer, is shown no way out."""
    with pytest.raises(DocumentError, match=re.escape(f"jq -c '{program}' does")):
        parse_row(row)


KEYS = ["type", "text", "role", "from", "value", "url", "name", "id", "messages", "content"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, at: Place = ()) -> list[Place]:
    """Every place inside of a row."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return (
        [at, *(place for key, item in inside for place in places(item, (*at, key)))]
        if at
        else [place for key, item in inside for place in places(item, (key,))]
    )


WITHOUT_EFFECT = ("detail", "matched_sim", "path", "source")
"""Fields that change nothing: how dear an image is to OpenAI, a score, the name of bytes, where turns are from."""


@settings(max_examples=200, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(ROWS)), value=ANY)
def test_any_value_in_any_place_is_in_the_document_or_in_a_reject(data: st.DataObject, name: str, value: Any) -> None:
    """Fails when some value raises an unforeseen error, or changes a row and not its document."""
    place = data.draw(st.sampled_from(places(ROWS[name])))
    row = changed(ROWS[name], place, value)
    outcome = outcome_of(row, FORM_OF[name])
    if isinstance(outcome, str):
        assert outcome in ("bad_row", "empty")
        return
    is_new = row != ROWS[name] and value is not None and value not in ([], {})
    if is_new and not (
        place[0] in ("image_info", "images", "messages", "frames", "texts") and place[-1] in WITHOUT_EFFECT
    ):
        assert outcome != parse_row(ROWS[name], FORM_OF[name])


def outcome_of(row: Row, form: str) -> Document | str:
    """A row's document, or the code of its reject."""
    try:
        return parse_row(row, form)
    except DocumentError as error:
        return error.code


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "the row is a list"),
        ({}, "has none of text, messages, annotations"),
        ({"text": "a", "messages": []}, "has text and messages"),
        ({"id": "i" * 1001, "text": "a"}, "id is 'iii.*at most 1000 characters"),
        ({"text": "a", "media": []}, "media is legal only beside annotations"),
        ({"annotations": [[ANSWER], []]}, r"annotations\[1\] has no messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "legal are system, developer, user, assistant, tool"),
        (asked([{"type": "audio"}]), "legal are text, image, video"),
        (asked([{"type": "image"}]), r"messages\[0\].content has a part of type image without a file"),
        (asked([{"type": "image", "image": "x" * 8001}]), "at most 8000 characters"),
        (asked([{"type": "video", "video": "v", "end": float("nan")}]), "end is nan"),
    ],
)
def test_bad_rows_name_value_and_what_is_legal(row: Any, message: str) -> None:
    """Fails when a reject does not say what would be right."""
    with pytest.raises(DocumentError, match=message):
        parse_row(row)


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
        parse_row(row)
    assert caught.value.code == "empty"


@given(ANY)
def test_any_row_is_a_document_or_a_reject(row: Any) -> None:
    """Fails when some row raises anything but DocumentError, or has no name of a source."""
    doc_id, source = row_identity(row)
    assert doc_id is None or doc_id
    assert source
    outcome = outcome_of(row, "messages")
    assert isinstance(outcome, Document) or outcome in ("bad_row", "empty")


def test_a_row_says_what_its_document_counts() -> None:
    """Fails when a weight is lost in a form or a table of text, or one that nobody can mean is taken."""
    answer = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So.", "weight": 0.5}]
    rows: list[tuple[str, dict[str, Any]]] = [("messages", {"text": "a"}), ("messages", {"messages": answer})]
    rows += [("alpaca", {"instruction": "a", "output": "b"}), ("caption", {"image": "a.png", "caption": "b"})]
    for form, row in rows:
        assert parse_row(row, form).weight == 1
        for value in (0.25, "0.25", 2):
            assert parse_row({**row, "document_weight": value}, form).weight == float(value)
    for value, message in (
        (-1, "legal are 0 and"),
        ("much", "document_weight is 'much'"),
        ("nan", "is nan"),
        (0, "no token"),
    ):
        with pytest.raises(DocumentError, match=message):
            parse_row({"text": "a", "document_weight": value})
    with pytest.raises(DocumentError, match="no token would carry loss"):
        parse_row({"text": "a", "document_weight": 0})


def test_every_form_is_here() -> None:
    """Fails when a form is added without its rows and its wrong rows."""
    assert {form.name for form in FORMS} == set(FORM_OF.values())
