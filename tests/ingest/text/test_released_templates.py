"""Chat templates of released models, as ``trl`` carries them, against ``transformers`` and those for training."""

from __future__ import annotations

import pytest
from released_chats import KINDS, LEFT_OUT, Judge, by_hand, pairs

OF_EACH = 2
"""Conversations of each kind."""
DROPS_REASONING = {"qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6"}
OPENS_REASONING = {"nemotron_3_nano", "qwen3_5_think", "qwen3_8"}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(tmp_path_factory.mktemp("released"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.slow] * (number % 3 > 0 and name not in DROPS_REASONING | OPENS_REASONING)
        )
        for number, name in enumerate(pairs())
    ],
)
def test_released_templates_are_packed_as_their_models_are_trained(judge: Judge, name: str) -> None:
    """Fails when a template cannot be packed, or other tokens carry loss than those that ``trl`` marks."""
    found = judge.compare(name, OF_EACH)
    refused = sum(count for what, count in found.items() if what.startswith("refused"))
    asked = OF_EACH * (len(KINDS) - len(LEFT_OUT.get(name, ())))
    assert found["compared"] + refused == asked
    assert found["compared"] >= 2 * OF_EACH
    assert (found["without reasoning"] > 0) == (name in DROPS_REASONING)
    if name in OPENS_REASONING:
        assert found["without the prompt"] > 0


@pytest.mark.parametrize("name", by_hand())
def test_answers_of_other_released_templates_carry_loss_to_their_end(judge: Judge, name: str) -> None:
    """Fails when an answer's header carries loss, or the token that ends it does not."""
    found = judge.count_by_hand(name, OF_EACH)
    assert found["compared"] == 3 * OF_EACH
    assert found["equal"] > found["compared"]
