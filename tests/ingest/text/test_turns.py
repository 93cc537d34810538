"""Turns of a conversation that are learnt: all of them, the last alone, or each as the end of one of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chats import STYLES, make_folder, our_tokenizer, renderer_of

from preshard.packer_service.ingest import render as rendering
from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.packer_service.ingest.text.configured import with_template
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError
from preshard.schemas.sequence import IGNORE_INDEX

LATEST_THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROW: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "one"},
        {"role": "user", "content": "r"},
        {"role": "assistant", "content": "b", "reasoning_content": "two", "weight": 0},
        {"role": "user", "content": "s"},
        {"role": "assistant", "content": "c", "reasoning_content": "three"},
    ]
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    [style] = [style for style in STYLES if style.name == "qwen"]
    return with_template(our_tokenizer(make_folder(style, tmp_path_factory.mktemp("qwen"))), LATEST_THINKS)


@pytest.fixture
def packed(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Renders a document as a job with this value of ``turns`` does."""
    monkeypatch.setattr(rendering, "configured_renderer", lambda _config: renderer_of(tokenizer))

    def one(document: Document, turns: Any) -> RenderedDocument:
        [piece] = rendering.render_pieces(document, MediaReach.of(str(tmp_path)), PackConfig(turns=turns))
        return piece

    return one


def texts(tokenizer: Tokenizer, rendered: RenderedDocument) -> dict[int, tuple[str, str]]:
    """The text of each branch, and what of it carries loss."""
    found = {}
    for branch in np.unique(rendered.branch_ids).tolist():
        inside = rendered.branch_ids == branch
        labels = rendered.labels[inside]
        learnt = labels[labels != IGNORE_INDEX]
        found[branch] = tokenizer.decode(rendered.tokens[inside].tolist()), tokenizer.decode(learnt.tolist())
    return found


START, END = "<|im_start|>", "<|im_end|>"
FIRST = f"{START}user\nq{END}{START}assistant\n"
MIDDLE = f"a{END}{START}user\nr{END}{START}assistant\nb{END}{START}user\ns{END}{START}assistant\n"
LAST = f"<think>three</think>c{END}"


def test_all_turns_or_the_last_alone_are_learnt_in_one_text(tokenizer: Tokenizer, packed: Any) -> None:
    """Fails when ``last`` changes the text, or other turns than the last carry loss."""
    document = parse_row(ROW)
    assert texts(tokenizer, packed(document, "whole")) == {0: (FIRST + MIDDLE + LAST, f"a{END}{LAST}")}
    assert texts(tokenizer, packed(document, "last")) == {0: (FIRST + MIDDLE + LAST, LAST)}
    silent = {"messages": [*ROW["messages"][:5], {**ROW["messages"][5], "train": False}]}
    with pytest.raises(DocumentError, match="no token carries loss"):
        packed(parse_row(silent), "last")


def test_each_turn_ends_a_conversation_of_its_own(tokenizer: Tokenizer, packed: Any) -> None:
    """Fails when a turn is learnt without its reasoning, sees another one's, or one without loss gets its own."""
    rendered = packed(parse_row(ROW), "each")
    assert texts(tokenizer, rendered) == {
        1: (f"{FIRST}<think>one</think>a{END}", f"<think>one</think>a{END}"),
        2: (FIRST + MIDDLE + LAST, LAST),
    }
    assert (rendered.n_shared, rendered.n_branches) == (0, 2)
    for branch in (1, 2):
        positions = rendered.position_ids[0][rendered.branch_ids == branch]
        np.testing.assert_array_equal(positions, np.arange(len(positions)))
    one = parse_row({"messages": ROW["messages"][:2]})
    np.testing.assert_array_equal(packed(one, "each").tokens, packed(one, "whole").tokens)
    assert packed(one, "each").n_branches == 0


def test_each_turn_shows_the_images_before_it() -> None:
    """Fails when an image stands in the first of the conversations alone, or in one that ends before it."""
    image = [{"type": "image", "image": "x.jpg"}]
    turns: list[Any] = [{"role": "user", "content": image}, {"role": "assistant", "content": "a"}]
    document = parse_row({"messages": [*turns, {"role": "user", "content": "q"}, turns[1], *turns]})
    each = document.with_turns("each")
    assert [len([turn for turn in branch if turn.loss]) for branch in each.branches] == [1, 1, 1]
    assert [len(branch) for branch in each.branches] == [2, 4, 6]
    assert len(each.media()) == 1 + 1 + 2
    annotated = parse_row({"media": image, "annotations": [turns[1:], [*turns, *turns]]}).with_turns("each")
    assert [len(branch) for branch in annotated.branches] == [1, 2, 4]
    assert len(annotated.shared) == 1
