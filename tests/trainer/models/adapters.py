"""Distance between training on packs and on the documents alone, for each kind of adapter that ``peft`` lists.

    python tests/trainer/models/adapters.py          # the table behind docs/integrations.md
    python tests/trainer/models/adapters.py LORA     # of one kind

For each kind, place, order of the calls, and whether the embedding is the output projection: loss and gradients in
float64 on one rank, against ``peft`` around the model of ``transformers`` on each document by itself.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from hand_made import pack_of
from scripts import load_script
from transformers_alone import load_transformers

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.integrations.hugging_face import take_packs
from preshard.trainer.models.load import load_model

LENGTHS, VOCABULARY = (12, 20, 8), 96

TARGETS: dict[str, Any] = {
    "projections": {"target_modules": ["q_proj", "v_proj", "down_proj"]},
    "experts": {"target_modules": [], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
    "embedding": {"target_modules": ["embed_tokens"]},
    "output": {"target_modules": ["lm_head"]},
    "saved embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "saved output": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "saved both": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [10, 11, 12]},
}
"""Places of adapters. Kinds that put something before the tokens have no place, and count as ``projections``."""

OWN: dict[str, dict[str, Any]] = {
    "ADALORA": {"init_r": 4, "target_r": 2, "total_step": 10},
    "ADAPTION_PROMPT": {"adapter_len": 4, "adapter_layers": 1},
    "BOFT": {"boft_block_size": 4},
    "C3A": {"block_size": 8},
    "CPT": {"cpt_token_ids": [5, 6], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 2], "num_virtual_tokens": 2},
    "FOURIERFT": {"n_frequency": 8},
    "IA3": {"feedforward_modules": ["down_proj"]},
    "MULTITASK_PROMPT_TUNING": {"num_virtual_tokens": 4, "num_tasks": 1},
    "OFT": {"r": 0, "oft_block_size": 4},
    "RANDLORA": {"r": 4},
    "ROAD": {"group_size": 4},
    "SHIRA": {"r": 2},
    "UNILORA": {"theta_d_length": 16},
    "VBLORA": {"num_vectors": 8, "vector_length": 8, "r": 2},
    "VERA": {"r": 4},
    "WAVEFT": {"n_frequency": 8},
    "XLORA": {},
}
"""Settings that a kind needs, or has to have for matrices so small."""


def kinds() -> list[str]:
    """The kinds that the installed ``peft`` lists."""
    from peft import PeftType

    return sorted(kind.value for kind in PeftType)


def config_of(kind: str, place: str) -> Any:
    """A small adapter of a kind.

    Raises:
        Exception: ``peft`` has none such.
    """
    from dataclasses import fields

    from peft import PeftType
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    made = PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(kind)]
    known = {field.name for field in fields(made)}
    if "num_virtual_tokens" in known and place != "projections":
        raise ValueError(f"{kind} has no place")
    if "num_virtual_tokens" in known:
        return made(**{"num_virtual_tokens": 4, "task_type": "CAUSAL_LM", **OWN.get(kind, {})})
    given = dict(TARGETS[place])
    if kind == "IA3" and place != "projections":
        given["feedforward_modules"] = []
    if kind == "TRAINABLE_TOKENS":
        given = {**given, "token_indices": [10, 11, 12]}
    if kind == "LN_TUNING" and place == "projections":
        given["target_modules"] = ["input_layernorm", "norm"]
    if kind == "ADAPTION_PROMPT":
        given = {}
    own = {"r": 4} if "r" in known else {}
    return made(**{"task_type": "CAUSAL_LM", **own, **OWN.get(kind, {}), **given})


@cache
def folder_of(model_type: str, tied: bool) -> Path:
    """A tiny model with weights, in a folder that goes with the process."""
    followed = load_script(Path(__file__).with_name("followed.py"))
    folder = Path(_FOLDERS.name) / f"{model_type}-{tied}"
    folder.mkdir()
    config = followed.tiny_config(model_type, tie_word_embeddings=tied) | {"sliding_window": None, "layer_types": None}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    made: Any = load_model(folder, from_scratch=True, seed=1)
    made.save_pretrained(folder)
    return folder


_FOLDERS = tempfile.TemporaryDirectory()


def measure(kind: str, place: str, order: str, *, tied: bool) -> float | str | None:
    """The largest relative difference of the loss and of any gradient; or the line that refuses the adapter; or None
    where ``peft`` itself makes no such adapter of the model, or cannot train it.
    """
    transformers = load_transformers()
    folder = folder_of("qwen3_moe" if place == "experts" else "qwen3", tied)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
            right = _right(_eager(_wrap(plain, kind, place)))
        except Exception:  # each kind has errors of its own
            return None
        base, cp = _eager(load_model(folder, dtype=torch.float64)), ContextParallel()
        try:
            if order == "before":
                ours = take_packs(_wrap(base, kind, place), cp)
            else:
                ours = _wrap(take_packs(base, cp), kind, place)
            loss: Tensor = ours(batch=pack_of(LENGTHS, VOCABULARY)).loss
            loss.backward()
        except ConfigError as error:
            return str(error)
        except ValueError as error:  # of peft: it looks for tokens by itself, and GLORA for a plain projection
            if "input_ids" not in str(error) and place != "output":
                raise
            return " ".join(str(error).split())
    return _apart(right, (float(loss.detach()), _gradients(ours)))


def _eager(model: Any) -> Any:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    base.set_experts_implementation("eager")
    return model


def _wrap(model: Any, kind: str, place: str) -> Any:
    from peft import get_peft_model

    torch.manual_seed(0)
    if kind == "XLORA":
        raise NotImplementedError
    wrapped = get_peft_model(model, config_of(kind, place))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(wrapped.named_parameters()):
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_((0.05 * noise).to(parameter.dtype))
    return wrapped.train()


def _right(model: Any) -> tuple[float, dict[str, Tensor]]:
    batch = pack_of(LENGTHS, VOCABULARY)
    total = torch.zeros((), dtype=torch.float64)
    for number in range(len(LENGTHS)):
        own = torch.nonzero(batch.doc_ids == number)[:, 0]
        # the loss is the model's own, and so is what an adapter adds to it
        made = model(input_ids=batch.tokens[own][None], labels=batch.tokens[own][None], use_cache=False)
        total = total + made.loss * (len(own) - 1)
    total = total / batch.total_loss_weight
    total.backward()
    return float(total.detach()), _gradients(model)


def _gradients(model: Any) -> dict[str, Tensor]:
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None and each.requires_grad}


def _apart(right: tuple[float, dict[str, Tensor]], found: tuple[float, dict[str, Tensor]]) -> float:
    (loss, gradients), (our_loss, ours) = right, found
    if gradients.keys() != ours.keys():
        return float("inf")
    norm = torch.cat([each.double().flatten() for each in gradients.values()]).norm()
    apart = [float((ours[name] - each).norm() / norm) for name, each in gradients.items()]
    return max(abs(our_loss - loss) / loss, *apart)


def cases() -> Iterator[tuple[str, str, str, bool]]:
    """Every kind, place, order, and whether the embedding is the output projection."""
    for kind in kinds():
        for place in TARGETS:
            for tied in (False, True):
                yield from ((kind, place, order, tied) for order in ("before", "after"))


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    load_transformers()
    for kind, place, order, tied in cases():
        if not wanted or kind in wanted:
            found = measure(kind, place, order, tied=tied)
            if found is not None:
                print(f"| {kind} | {place} | {order} | {'tied' if tied else ''} | {found} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
