"""Completions and preferences by chat templates carry loss where TRL's own preprocessing gives it to them."""

from __future__ import annotations

import random
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from chats import STYLES, Row, Style, draw_text, make_folder, our_tokenizer, renderer_of

from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.render import render
from preshard.packer_service.ingest.source.rows import parse_row

# This build of torchvision has operators for CUDA alone, and trl imports it.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

ROWS = 12
BEHIND_THE_MARK = """{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}{{- message['content'] + '<|im_end|>' -}}{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
OPENS_REASONING = BEHIND_THE_MARK.replace("'<|im_start|>assistant\\n' -", "'<|im_start|>assistant\\n<think>\\n' -")
MORE = {"behind the mark": BEHIND_THE_MARK, "opens reasoning": OPENS_REASONING}
CASES = [*((style, None) for style in STYLES), *((STYLES[3], name) for name in MORE)]


def make(style: Style, template: str | None, folder: Path) -> tuple[Any, Any]:
    """A folder's tokenizer as ``transformers`` loads it, and our renderer."""
    from transformers import AutoTokenizer

    made = make_folder(style, folder)
    if template is not None:
        (made / "chat_template.jinja").write_text(MORE[template], encoding="utf-8")
    return AutoTokenizer.from_pretrained(made), renderer_of(our_tokenizer(made))


def turn(style: Style, draw: random.Random, role: str) -> Row:
    text = draw_text(draw)
    return {"role": role, "content": text if style.strings else [{"type": "text", "text": text}]}


def turns(style: Style, draw: random.Random, questions: int) -> list[Row]:
    """Questions, each with its answer."""
    return [turn(style, draw, role) for _ in range(questions) for role in ("user", "assistant")]


def prepared(trainer: type, config: Any, rows: list[Row], tokenizer: Any) -> list[Row]:
    """Rows as a trainer of TRL prepares them before it trains."""
    from datasets import Dataset

    stub = SimpleNamespace(
        _tokenizer=tokenizer, chat_template=None, completion_only_loss=True, _is_vision_dataset=False
    )
    given = (False, None) if trainer.__name__ == "SFTTrainer" else ()
    return list(trainer._prepare_dataset(stub, Dataset.from_list(rows), tokenizer, config, *given, "train"))  # type: ignore[attr-defined]


def learnt(document: Document, renderer: Any) -> tuple[list[int], list[int]]:
    """A document's tokens, and the places of those that are learnt."""
    rendered = render(renderer, document, [])
    return rendered.tokens.tolist(), (np.nonzero(rendered.loss_weights)[0] + 1).tolist()


@pytest.mark.parametrize(("style", "template"), CASES, ids=lambda each: getattr(each, "name", each))
def test_a_completion_is_learnt_as_trl_learns_it(style: Style, template: str | None, tmp_path: Path) -> None:
    """Fails when what a template writes behind its mark, such as a line break, is not learnt, or a prompt's end is."""
    from trl import SFTConfig, SFTTrainer

    tokenizer, renderer = make(style, template, tmp_path / "model")
    draw = random.Random(f"{style.name} {template}")
    rows = []
    for number in range(ROWS):
        whole = turns(style, draw, 1 + number % 3)
        at = 2 * draw.randrange(len(whole) // 2) + 1  # later questions are the completion's
        rows.append({"prompt": whole[:at], "completion": whole[at:]})
    config = SFTConfig(str(tmp_path / "run"), max_length=None, use_cpu=True, bf16=False)
    assert any(len(row["completion"]) > 1 for row in rows)
    for row, right in zip(rows, prepared(SFTTrainer, config, rows, tokenizer), strict=True):
        tokens, places = learnt(parse_row(row, "prompt_completion"), renderer)
        assert tokens == right["input_ids"]
        assert places == [place for place, label in enumerate(right["labels"]) if label != -100]


@pytest.mark.parametrize(("style", "template"), CASES, ids=lambda each: getattr(each, "name", each))
def test_answers_of_a_preference_are_learnt_as_trl_learns_them(
    style: Style, template: str | None, tmp_path: Path
) -> None:
    """Fails when an answer has another first or last token than in TRL, which takes all that follows the prompt."""
    from trl import DPOConfig, DPOTrainer

    tokenizer, renderer = make(style, template, tmp_path / "model")
    draw = random.Random(f"{style.name} {template}")
    rows = []
    for number in range(ROWS):
        prompt = [*turns(style, draw, number % 2), turn(style, draw, "user")]
        rows.append({"prompt": prompt, **{side: [turn(style, draw, "assistant")] for side in ("chosen", "rejected")}})
    config = DPOConfig(str(tmp_path / "run"), max_length=None, use_cpu=True, bf16=False)
    for row, right in zip(rows, prepared(DPOTrainer, config, rows, tokenizer), strict=True):
        pair = parse_row(row, "preferences")
        assert pair.rejected is not None
        for side in ("chosen", "rejected"):
            alone = {"prompt": row["prompt"], "completion": row[side]}
            tokens, places = learnt(parse_row(alone, "prompt_completion"), renderer)
            prompt, answer = right["prompt_ids"], right[f"{side}_ids"]
            assert tokens == prompt + answer
            assert places == list(range(len(prompt), len(tokens)))


def test_turns_of_a_completion_are_learnt_each_as_a_completion(tmp_path: Path) -> None:
    """Fails when the last turn, or each, loses what its template writes behind the mark, or takes an earlier one."""
    _, renderer = make(STYLES[3], "behind the mark", tmp_path / "model")
    whole = turns(STYLES[3], random.Random(0), 2)
    row = {"prompt": whole[:1], "completion": whole[1:]}
    alone = [{"prompt": whole[:number], "completion": whole[number : number + 1]} for number in (1, 3)]
    first, last = (learnt(parse_row(each, "prompt_completion"), renderer) for each in alone)
    assert learnt(parse_row(row, "prompt_completion").with_turns("last"), renderer) == last
    tokens, places = learnt(parse_row(row, "prompt_completion").with_turns("each"), renderer)
    assert [tokens[place] for place in places] == [each[0][place] for each in (first, last) for place in each[1]]
