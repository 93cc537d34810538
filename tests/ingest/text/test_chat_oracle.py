"""Conversations by chat templates, against ``apply_chat_template`` of ``transformers``: ids, and what carries loss."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chats import STYLES, Row, Style, draw_row, make_folder, our_tokenizer, renderer_of

from preshard.packer_service.ingest.render import render
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.schemas.config import PackConfig
from preshard.schemas.sections import SpecialTokensConfig
from preshard.schemas.sequence import IGNORE_INDEX

CONVERSATIONS = 80


def as_template_takes(style: Style, row: Row) -> list[Row]:
    """The messages as a user would write them for this template: strings where it takes no lists."""
    turns = [{name: value for name, value in turn.items() if name != "weight"} for turn in row["messages"]]
    if not style.lists:
        for turn in turns:
            if isinstance(turn["content"], list):
                turn["content"] = "".join(part["text"] for part in turn["content"])
    return turns


def loss_of(oracle: Any, turns: list[Row], row: Row, ids: list[int], mask: list[int] | None) -> np.ndarray:
    """Tokens that carry loss: the oracle's own mask, or the characters between its texts of two prefixes."""

    def text(n: int, prompt: bool = False) -> str:
        if not n:
            return ""
        return oracle.apply_chat_template(
            turns[:n], tools=row.get("tools"), add_generation_prompt=prompt, tokenize=False
        )

    offsets = np.array(oracle(text(len(turns)), add_special_tokens=False, return_offsets_mapping=True).offset_mapping)
    assert len(offsets) == len(ids)
    loss = np.zeros(len(ids), np.bool_) if mask is None else np.array(mask, np.bool_)
    for number, turn in enumerate(row["messages"]):
        if turn["role"] != "assistant" or (mask is not None and turn.get("weight") != 0):
            continue
        start, end = len(text(number, prompt=mask is None)), len(text(number + 1))
        inside = (offsets[:, 0] < end) & (offsets[:, 1] > start)
        loss[inside] = mask is None and (turn.get("weight") != 0 or loss[inside])
    return loss


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_conversations_are_what_transformers_makes_of_them(style: Style, tmp_path: Path) -> None:
    """Fails when a token or a place of loss differs from ``apply_chat_template`` in any conversation."""
    from transformers import AutoTokenizer

    folder = make_folder(style, tmp_path / style.name)
    tokenizer = our_tokenizer(folder)
    oracle = AutoTokenizer.from_pretrained(folder)
    marked = "{%- generation" in oracle.chat_template
    renderer = renderer_of(tokenizer)
    draw = random.Random(style.name)
    n_unweighted = 0
    for _ in range(CONVERSATIONS):
        row = draw_row(style, draw)
        turns = as_template_takes(style, row)
        expected = oracle.apply_chat_template(
            turns, tools=row.get("tools"), return_dict=True, return_assistant_tokens_mask=marked
        )
        rendered = render(renderer, parse_row(row), [])
        assert rendered.tokens.tolist() == expected["input_ids"]
        loss = loss_of(oracle, turns, row, expected["input_ids"], expected["assistant_masks"] if marked else None)
        np.testing.assert_array_equal(rendered.labels[:-1] != IGNORE_INDEX, loss[1:])
        np.testing.assert_array_equal(rendered.labels[:-1][loss[1:]], rendered.tokens[1:][loss[1:]])
        n_unweighted += any(turn.get("weight") == 0 for turn in row["messages"])
    assert n_unweighted > CONVERSATIONS // 40


def test_special_tokens_that_rows_may_spell_are_those_of_transformers(tmp_path: Path) -> None:
    """Fails when boxes of Qwen's grounding, or what a UI agent writes, become text, or a row may end its own turn."""
    from transformers import AutoTokenizer

    [style] = [style for style in STYLES if style.name == "qwen"]
    folder = make_folder(style, tmp_path)
    turns = [{"role": "user", "content": "a<|endoftext|>b"}, {"role": "assistant", "content": "<|endoftext|>"}]
    config = PackConfig(special_tokens=SpecialTokensConfig(in_text=("<|endoftext|>",)))
    written = render(renderer_of(our_tokenizer(folder), config=config), parse_row({"messages": turns}), [])
    oracle = AutoTokenizer.from_pretrained(folder)
    ids = oracle.apply_chat_template(turns, tokenize=True, return_dict=False)
    assert written.tokens.tolist() == ids
    assert ids.count(oracle.convert_tokens_to_ids("<|endoftext|>")) == 2
