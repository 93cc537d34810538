"""Each kind of adapter that ``peft`` lists trains on packs as on the documents alone, or is refused by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from scripts import load_script
from transformers_alone import load_transformers

from preshard.schemas.errors import ConfigError
from preshard.trainer.extra.adapters import FOLLOWED, check_peft

CLOSE = 1e-6
"""Tolerance in float64; the model's own loss is in float32."""

SOME = [
    *(("LORA", place, "before", True, "") for place in ("projections", "experts", "saved output", "tokens")),
    ("LORA", "embedding", "after", False, ""),
    ("LORA", "output", "before", False, "has an adapter of its output projection"),
    ("LORA", "output", "after", False, "has an adapter of its output projection"),
    ("LORA", "saved both", "before", True, ""),
    ("LORA", "saved both", "after", True, "modules_to_save with ensure_weight_tying were added after take_packs"),
    ("LORA", "tokens", "after", True, "trainable_token_indices were added after take_packs"),
    ("TRAINABLE_TOKENS", "embedding", "before", True, "has an adapter of its output projection"),
    ("IA3", "projections", "after", True, ""),
    ("LILY", "projections", "before", False, "peft_type LILY, which weighs its experts by a mean over all tokens"),
    ("PVERA", "projections", "after", False, "peft_type PVERA, which draws noise"),
    ("ADALORA", "projections", "before", False, "peft_type ADALORA, which adds a part of its own to the loss"),
    ("PROMPT_TUNING", "projections", "before", False, "PROMPT_TUNING, which puts tokens or keys of its own"),
]
"""One of each that differs: kind, place, order, whether the embedding is the output projection, and what is said."""


@cache
def adapters() -> Any:
    load_transformers()
    return load_script(Path(__file__).with_name("adapters.py"))


@pytest.mark.parametrize(("kind", "place", "order", "tied", "said"), SOME)
def test_adapters_train_as_on_documents_or_are_refused(
    kind: str, place: str, order: str, tied: bool, said: str
) -> None:
    """Fails when the loss goes past an adapter, or one that mixes documents or ranks is taken."""
    pytest.importorskip("peft")
    found = adapters().measure(kind, place, order, tied=tied)
    if said:
        assert said in str(found)
        assert "\n" not in found
    else:
        assert isinstance(found, float)
        assert found < CLOSE


@pytest.mark.slow
@pytest.mark.process  # a compiled kernel asks for ninja
def test_every_kind_trains_as_on_documents_or_is_refused() -> None:
    """The same for each kind of the installed ``peft``, in each place, in both orders, tied and not."""
    equal, wrong = set(), {}
    for kind, place, order, tied in adapters().cases():
        found = adapters().measure(kind, place, order, tied=tied)
        if isinstance(found, float):
            equal.add(kind)
            if not found < CLOSE:
                wrong[kind, place, order, tied] = found
    assert not wrong
    assert equal == FOLLOWED


@pytest.mark.parametrize(
    ("option", "value"), [("alora_invocation_tokens", [5]), ("velora_config", {"rank": 1}), ("arrow_config", {"k": 1})]
)
def test_options_that_make_another_adapter_are_refused(option: str, value: Any) -> None:
    """Fails when an option of LoRA that looks at the sequence, or keeps less than it, is taken for LoRA."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"])
    setattr(config, option, value)

    class Model:
        peft_config = {"default": config}  # noqa: RUF012

    with pytest.raises(ConfigError, match=f"peft_type LORA with {option}, which"):
        check_peft(Model())
