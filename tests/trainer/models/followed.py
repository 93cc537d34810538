"""Distance of each followed model on a pack from itself on the documents alone.

    python tests/trainer/models/followed.py          # the differences behind docs/families.md
    python tests/trainer/models/followed.py llama    # one of them

Each model is built from a tiny ``config.json`` with random weights, in float32, and read on two ranks in the layout
``zigzag``, so that no rank holds neighbours alone. ``transformers`` reads each document, and each annotation after what
it shares, by itself, with its own eager attention and positions. Windows are shorter than any document.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from thread_ranks import run_ranks
from transformers_alone import load_transformers

from preshard.packer_service.demo.model import model_config, tiny_model
from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.languages import LANGUAGES, language_model
from preshard.schemas.schemes import zigzag_runs
from preshard.schemas.sequence import CAUSAL_ONLY, MaskArrays
from preshard.trainer.attention.bind import Attend, bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.mask import MaskTensors, count_layers
from preshard.trainer.families.family import has_transformers
from preshard.trainer.models.interface import bind_states
from preshard.trainer.models.load import load_model, model_sizes

DOCUMENTS: tuple[tuple[int, ...], ...] = ((12,), (13, 8, 7), (8,))
"""Tokens of the documents of the pack; of the second, what two annotations share, and then each."""

LENGTHS = tuple(map(sum, DOCUMENTS))

VOCABULARY, RANKS = 96, 2

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "kv_channels"), 16),
    **{"vocab_size": VOCABULARY, "num_key_value_heads": 2, "head_dim": 8, "n_group": 1, "topk_group": 1},
    **{"num_global_key_value_heads": 1, "global_head_dim": 16},
    **{"q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6},
    "first_k_dense_replace": 1,
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
}
"""Sizes by the names that configurations have for them."""

RENAMED = {"exaone4_5_text": "exaone4", "kimi_k2": "deepseek_v3"}
"""Language models under names that they had at first, which ``transformers`` still takes."""

WINDOW = 5
"""Shorter than every document."""

ALL = {"sliding_window": WINDOW}
BOTH = {**ALL, "layer_types": ["sliding_attention", "full_attention"]}

CAPS = {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}
"""Settings that change scores and logits of the tiny models."""

DIVIDED = {"logits_scaling": 4.0}

LATENT = {"num_key_value_heads": 4}
"""A latent is expanded to the keys of all heads."""

STATE_AND_FULL = {"layer_types": ["linear_attention", "full_attention"]}

SPECIAL: dict[str, dict[str, Any]] = {
    **{"biogpt": {"attention_probs_dropout_prob": 0}, "seed_oss": {"attention_dropout": 0}},
    **{"gpt2": {"attn_pdrop": 0}, "gpt_bigcode": {"attn_pdrop": 0}},
    **dict.fromkeys(("afmoe", "cwm", "exaone4", "exaone_moe", "gemma3_text", "kolibri1"), BOTH),
    **dict.fromkeys(("laguna", "mellum", "ministral", "olmo3"), BOTH),
    **dict.fromkeys(("flint", "gpt_oss"), BOTH),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), DIVIDED),
    **{name: {**BOTH, **DIVIDED} for name in ("granite_swa", "granitemoe_swa")},
    **dict.fromkeys((name for name, model in LANGUAGES.items() if model.has_states), STATE_AND_FULL),
    **{name: {**BOTH, "use_sliding_window": True} for name in ("qwen2", "qwen3", "smollm3")},
    **dict.fromkeys(("mistral", "ministral3", "mixtral", "phi3", "starcoder2"), ALL),
    "gemma2": {**BOTH, **CAPS},
    "vaultgemma": {**BOTH, **CAPS},
    "qwen3_moe": {**ALL, "use_sliding_window": True},
    "gemma4_text": {**BOTH, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True},
    "dots1": {**BOTH, "n_shared_experts": 1},
    "mimo_v2_flash": BOTH,
    **dict.fromkeys((name for name, model in LANGUAGES.items() if "kv_lora_rank" in model.left_out), LATENT),
}
"""Settings that a model's defaults lack to be followed, or to have each kind of layer."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Relative differences: the largest of any token.

    Attributes:
        hidden, logits: of the pack from the documents alone.
        mixed: of a pack without edges of documents from the documents alone: what a fault would look like.
    """

    hidden: float
    logits: float
    mixed: float


def is_there(model_type: str) -> bool:
    """Whether the installed ``transformers`` has a model: some are newer than the oldest version that packs need."""
    since = (FAMILIES.get(model_type) or language_model(model_type)).since
    return model_type in load_transformers().CONFIG_MAPPING and has_transformers(since)


def tiny_config(model_type: str, **settings: Any) -> dict[str, Any]:
    """A small ``config.json``, with each key that the model's configuration has."""
    made = load_transformers().CONFIG_MAPPING[model_type]
    known = {*getattr(made, "__dataclass_fields__", ()), *inspect.signature(made.__init__).parameters}
    small = {name: value for name, value in SMALL.items() if name in known}
    return dict(made(**{**small, **SPECIAL.get(model_type, {}), **settings}).to_dict())


def tiny_with_images(model_type: str, text: str) -> dict[str, Any]:
    """The same for a model that reads images, with one of its language models."""
    family = text.removesuffix("_text") if text.endswith("_text") else model_type
    marks = {mark: number for number, mark in enumerate(tiny_model(family).marks, 3)}
    config = model_config(family, marks, VOCABULARY) | {"model_type": model_type}
    if model_type in ("exaone4_5", "internvl", "kimi_k25", "mistral3", "lighton_ocr"):
        config["text_config"] = tiny_config(RENAMED.get(text, text)) | {"model_type": text}
    if model_type in ("gemma3", "gemma4"):  # they scale embeddings by its root, of which float32 holds that of 64
        config["text_config"]["hidden_size"] = 72
    return config


def every_followed() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the tiny configuration of every model on the list that the installed ``transformers`` has."""
    yield from ((name, tiny_config(name)) for name, model in LANGUAGES.items() if model.alone and is_there(name))
    for name, facts in FAMILIES.items():
        for text in facts.text if is_there(name) else ():
            yield name if len(facts.text) == 1 else f"{name}, {text}", tiny_with_images(name, text)


def measure(config: dict[str, Any]) -> Found:
    """Compares a model on a pack with itself on the documents.

    Raises:
        ConfigError: the model is refused.
    """
    transformers = load_transformers()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        packed: Any = load_model(folder, from_scratch=True).eval()
    reads_images = config["model_type"] in FAMILIES
    auto = transformers.AutoModelForImageTextToText if reads_images else transformers.AutoModelForCausalLM
    own = copy.deepcopy(packed.config)
    plain = auto.from_config(own, attn_implementation="eager", dtype=torch.float32).eval()
    _randomise(plain)
    packed.load_state_dict(plain.state_dict())
    tokens = torch.randint(40, VOCABULARY, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        paths = [(tokens[path], new) for path, new in _paths()]
        alone = [_core(plain)(input_ids=path[None], use_cache=False)[0][0][new:] for path, new in paths]
        logits = [plain(input_ids=path[None], use_cache=False).logits[0][new:] for path, new in paths]
        mixed = _core(plain)(input_ids=tokens[None], use_cache=False)[0][0]
        hidden = _on_ranks(packed, tokens)
        sizes = model_sizes(packed.config)
        made, cap = hidden / sizes.divisor @ packed.get_output_embeddings().weight.T, sizes.softcap
        return Found(
            hidden=_apart(hidden, torch.cat(alone)),
            logits=_apart(made if cap is None else cap * torch.tanh(made / cap), torch.cat(logits)),
            mixed=_apart(mixed, torch.cat(alone)),
        )


def _paths() -> Iterator[tuple[Tensor, int]]:
    """Yields for each document, and each annotation after what it shares, its tokens and the first new one."""
    start = 0
    for shared, *branches in DOCUMENTS:
        prefix = torch.arange(start, start + shared)
        start, new = start + shared, 0
        for length in branches or [0]:
            yield torch.cat([prefix, torch.arange(start, start + length)]), new
            start, new = start + length, shared


def _core(model: Any) -> Any:
    core = model.base_model
    return core.language_model if model.config.model_type in FAMILIES else core


def _on_ranks(model: Any, tokens: Tensor) -> Tensor:
    """Last hidden states of the pack in natural order, each rank's from its own tokens."""
    edges = np.cumsum((0, *LENGTHS))
    layout = TokenLayout(
        scheme="zigzag",
        ring_degree=RANKS,
        block_size=len(tokens),
        runs=zigzag_runs(edges, RANKS),
        needs=np.ones((RANKS, 1), np.bool_),
    )
    doc_ids = np.repeat(np.arange(len(LENGTHS), dtype=np.int32), LENGTHS)
    branches = np.concatenate([np.repeat(np.arange(len(own), dtype=np.int32), own) for own in DOCUMENTS])
    group_ids = np.full_like(doc_ids, CAUSAL_ONLY)
    mask = MaskTensors.from_arrays(MaskArrays(doc_ids=doc_ids, branch_ids=branches, group_ids=group_ids))
    positions = torch.cat([torch.arange(len(path))[new:] for path, new in _paths()])
    slices = [torch.from_numpy(slice_positions(layout.runs, rank)) for rank in range(RANKS)]
    rotary = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    axes = 3 if "mrope_section" in rotary else 1

    @torch.no_grad()
    def on_rank(cp: ContextParallel) -> Tensor:
        mine, calls = slices[cp.cp_rank], []

        def count(attention: Attend) -> Attend:
            def attend(*given: Tensor, **options: Any) -> Tensor:
                calls.append(1)
                return attention(*given, **options)

            return attend

        sizes = model_sizes(model.config)
        masks = count_layers(sizes.windows, len(tokens), sizes.groups)
        cap = sizes.score_cap
        attends = {
            window: count(bind("ring", layout, mask.within(window, sizes.groups), cp, softcap=cap)) for window in masks
        }
        own = positions[mine].expand(axes, 1, -1) if axes > 1 else positions[mine][None]
        made = _core(model)(
            input_ids=tokens[mine][None],
            position_ids=own,
            use_cache=False,
            attend=attends.pop(None, None),
            in_windows=tuple(attends.items()),
            pack_length=len(tokens),
            score_cap=cap,
            **bind_states(model.config, layout, mask.host, cp, torch.device("cpu")),
        )
        assert calls, "no layer asked for the attention of packs"
        hidden: Tensor = made.last_hidden_state[0]
        return hidden

    natural = torch.argsort(torch.cat(slices))
    return torch.cat(run_ranks(1, RANKS, on_rank))[natural]


@torch.no_grad()
def _randomise(model: torch.nn.Module) -> None:
    """Weights by which each layer changes its tokens much: those of a new model hardly do."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.empty_like(parameter).normal_(generator=generator)
        if parameter.ndim < 2:
            parameter.add_(0.1 * noise)
        else:
            parameter.copy_(noise if "embed" in name else 0.5 * noise / parameter.shape[-1] ** 0.5)


def _apart(found: Tensor, right: Tensor) -> float:
    return float(((found - right).norm(dim=-1) / right.norm(dim=-1)).max())


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    for name, config in every_followed():
        if not wanted or name in wanted:
            found = measure(config)
            print(f"| {name} | {found.hidden:.1e} | {found.logits:.1e} | {found.mixed:.1e} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
