"""Whole conversations of a model folder, rendered by us and by its processor: ids, loss, interleaved documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from chats import our_tokenizer, renderer_of
from model_oracle import Oracle, takes
from PIL import Image
from transformers_alone import video_metadata

from preshard.packer_service.ingest.document import Document, Medium, Message, Part
from preshard.packer_service.ingest.media.shape import ImageSize, MediumShape, VideoFrames, place
from preshard.packer_service.ingest.render import render
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.packer_service.packs.rendered import RenderedDocument

SIZES = {"small": (64, 48), "wide": (300, 100), "tall": (90, 400)}
TIMES = [0.0, 0.25, 1.0, 1.5]

CONVERSATIONS: list[list[str]] = [
    ["a ", "image small", " and ", "image wide", "?"],
    ["image tall", "image small", "what is it, héllo 你好 ?"],
    ["video wide", "when <t>?"],
    ["look:", "video small", " before", "video wide", "after", "image small"],
    ["no picture at all"],
]


@pytest.fixture(scope="module")
def tokenizer(oracle: Oracle) -> Tokenizer:
    return our_tokenizer(oracle.folder)


def part_of(text: str) -> Part:
    kind, _, size = text.partition(" ")
    return Medium(kind=kind, uri=size) if kind in ("image", "video") and size in SIZES else text  # type: ignore[arg-type]


def shape_of(medium: Medium) -> MediumShape:
    width, height = SIZES[medium.label]
    if medium.kind == "image":
        return ImageSize(width, height)
    return VideoFrames(pts=np.arange(len(TIMES)), timestamps=np.array(TIMES), width=width, height=height)


def ours(oracle: Oracle, tokenizer: Tokenizer, document: Document) -> RenderedDocument:
    placed = [place(oracle.family, medium, shape_of(medium)) for medium in document.media()]
    return render(renderer_of(tokenizer, family=oracle.family), document, placed)


def theirs(oracle: Oracle, text: str, media: Sequence[Medium]) -> list[int]:
    """The ids that the processor makes of a text with placeholders; pixels do not matter to it."""
    images, videos, metadata = [], [], []
    for medium in media:
        width, height = SIZES[medium.label]
        if medium.kind == "image":
            images.append(Image.new("RGB", (width, height)))
        else:
            videos.append(np.zeros((len(TIMES), height, width, 3), np.uint8))
            metadata.append(video_metadata(oracle.family.model_type, TIMES))
    given: dict[str, Any] = {"images": images} if images else {}
    if videos:
        given |= {"videos": videos, "video_metadata": metadata, "do_sample_frames": False}
    return oracle.processor(text=[text], **given, return_tensors="pt")["input_ids"][0].tolist()


@pytest.mark.parametrize("content", CONVERSATIONS, ids=lambda content: content[0])
def test_a_conversation_is_what_the_processor_makes_of_it(
    oracle: Oracle, tokenizer: Tokenizer, content: list[str]
) -> None:
    """Fails when a token of a conversation with several images, videos and turns differs, or loss is misplaced."""
    parts = tuple(map(part_of, content))
    media = [part for part in parts if isinstance(part, Medium)]
    if not takes(oracle.family, *(medium.kind for medium in media)):
        return
    answers = ("It's a cat 你好", "no")
    messages = (
        Message(role="system", parts=("Be kind.",)),
        Message(role="user", parts=parts, content_is_list=True),
        Message(role="assistant", parts=answers[:1]),
        Message(role="user", parts=("more",)),
        Message(role="assistant", parts=answers[1:]),
    )
    raw = [{"type": part.kind} if isinstance(part, Medium) else {"type": "text", "text": part} for part in parts]
    rows: list[dict[str, Any]] = [{"role": message.role, "content": message.parts[0]} for message in messages]
    rows[1]["content"] = raw
    text = oracle.processor.apply_chat_template(rows, tokenize=False)
    made = ours(oracle, tokenizer, Document(branches=(messages,)))
    assert made.tokens.tolist() == theirs(oracle, text, media)
    spoken = tokenizer.decode(made.labels[made.labels >= 0].tolist())
    assert spoken == "".join(f"{answer}<|im_end|>" for answer in answers)
    assert made.position_ids.shape == (oracle.family.axes, len(made))


def test_an_interleaved_document_is_what_the_processor_makes_of_it(oracle: Oracle, tokenizer: Tokenizer) -> None:
    """Fails when a document without a chat lacks the marks around its images, or loss lies on them or on its prompt."""
    parts = tuple(map(part_of, ["a photo", "image small", " and then ", "image wide", "héllo"]))
    media = [part for part in parts if isinstance(part, Medium)]
    shown = "".join(oracle.family.alone(part.kind) if isinstance(part, Medium) else part for part in parts)
    made = ours(oracle, tokenizer, Document(prompt=("Look.\n",), interleaved=parts))
    assert made.tokens.tolist() == theirs(oracle, f"Look.\n{shown}<|im_end|>", media)
    assert tokenizer.decode(made.labels[made.labels >= 0].tolist()) == "a photo and then héllo<|im_end|>"
