"""Unmodified models of ``transformers`` keep the documents of ``to_varlen`` apart, or are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hand_made import pack_of
from scripts import load_script
from transformers_alone import load_transformers

from preshard.schemas.errors import ReaderError
from preshard.schemas.manifest import ModelEntry
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.languages import LANGUAGES
from preshard.trainer.integrations.varlen import to_varlen

LENGTHS, VOCABULARY = (12, 20, 8), 96

CLOSE = 1e-5


@cache
def followed() -> Any:
    return load_script(Path(__file__).parents[1] / "models" / "followed.py")


def made(config: dict[str, Any], attention: str) -> Any:
    """A model with weights that matter; None where it has no such attention."""
    transformers = load_transformers()
    try:
        own = transformers.AutoConfig.for_model(**config)
        model = transformers.AutoModelForCausalLM.from_config(own, attn_implementation=attention, dtype=torch.float32)
    except ValueError as error:
        if "does not support an attention implementation" in str(error):
            return None
        raise
    followed()._randomise(model)
    return model.eval()


def apart(reader: Any, packed_for: ModelEntry | None = None, **given: Any) -> float:
    batch = replace(pack_of(LENGTHS, VOCABULARY), model=packed_for)
    with torch.no_grad():
        documents = (batch.tokens[batch.doc_ids == number][None] for number in range(len(LENGTHS)))
        alone = torch.cat([reader(input_ids=each, use_cache=False).logits[0] for each in documents])
        found = reader(**to_varlen(batch, **given)).logits[0]
    return float(followed()._apart(found, alone))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", [kind for kind, model in LANGUAGES.items() if model.own_mask])
def test_models_that_make_their_own_masks_get_one(kind: str, attention: str) -> None:
    """Fails when documents see each other in a model that makes its mask without positions."""
    model = made(followed().tiny_config(kind), attention)
    if model is None:
        assert (kind, attention) == ("gpt_oss", "sdpa")
        return
    plain = ModelEntry.model_construct(model_type="llama", row_ids=[])
    assert apart(model, plain) > 1000 * CLOSE, "without a mask nothing was mixed, so the mask changed nothing"
    assert apart(model, model=model) < CLOSE


def everyone() -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ((name, config) for name, config in followed().every_followed() if config["model_type"] not in FAMILIES)


@pytest.mark.slow
def test_every_followed_model_keeps_documents_apart() -> None:
    """The same for each model of text on the list; those with a state are refused without their kernels."""
    wrong, refused = {}, set()
    for name, config in everyone():
        for attention in ("eager", "sdpa"):
            model = made(config, attention)
            try:
                found = 0.0 if model is None else apart(model, model=model)
            except ReaderError:
                refused.add(name)
                continue
            if not found < CLOSE:
                wrong[name, attention] = found
    assert not wrong
    assert refused == {name for name, config in everyone() if "linear_attention" in (config.get("layer_types") or ())}


def test_what_a_model_would_mix_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a dataset's own kind of model is forgotten, packs for no model go to any, or images and videos go to a
    model that confuses them.
    """
    for kind, said in {
        None: "pack 0 was packed for no model",
        "gpt_oss": "gpt_oss makes its mask without position_ids",
        "qwen3_next": "qwen3_next may have layers that carry a state",
        "qwen3_5": "qwen3_5 may have layers that carry a state",
    }.items():
        entry = kind and ModelEntry.model_construct(model_type=kind, row_ids=[])
        with pytest.raises(ReaderError, match=rf"{said}.*: call to_varlen\(batch, model=model"):
            to_varlen(replace(pack_of(LENGTHS, VOCABULARY), model=entry))
    entry = ModelEntry.model_construct(model_type="glm4v", row_ids=[5])
    batch = replace(pack_of(LENGTHS, VOCABULARY), model=entry, units=("an image", "a video"))
    both: dict[str, Any] = dict.fromkeys(("pixel_values", "pixel_values_videos"))
    monkeypatch.setattr(type(batch), "model_inputs", lambda _: both)
    with pytest.raises(
        ReaderError, match="pack 0 has images and videos, whose features a glm4v model finds by the same"
    ):
        to_varlen(batch)
