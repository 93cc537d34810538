"""Language models that are followed, by the ``model_type`` of their settings: facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from preshard.schemas.model.families import BIDIRECTIONAL, FAMILIES, HEAD, Option, Version

Windowed = Callable[[Mapping[str, Any], int], int]
"""Function that counts the layers with a window, by a model's settings."""

DIVISOR = "logits_scaling"
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
"""Keys of soft caps: of the scores of attention, and of the logits."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

USED_EXPERTS = ("top_k_experts", "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
"""Names of the number of a layer's experts, and of those that a token is sent to; some models list them by layer."""


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """A causal language model whose every layer keeps the documents of a pack apart, as it was measured.

    Attributes:
        left_out: what keys mean, of those that are checked or counted, where ``config.json`` leaves them out.
        windowed: layers with a window where ``layer_types`` is left out; None if it must not be.
        passes_window: whether layers pass their window to attention (``sliding_window``).
        groups: layers in which the images of a document see each other in both directions.
        has_states: whether layers may be ``linear_attention``: a gated delta rule, whose state starts with a document.
        caps: settings of scores and logits that the model applies, where attention and the loss follow them: soft caps
            of both, and what logits are divided by.
        options: settings that only this model has, or of which it follows other values.
        attentions: how often a layer calls attention, with queries and keys of all heads.
        mlp_matrices: of an MLP: 3 where one of them gates, else 2.
        gated: whether a projection as wide as the queries gates what attention gives.
        routes_heads: whether queries and attention's output are of experts, too.
        window_keys: multiple of key heads that layers with a window have.
        own_mask: whether ``transformers`` makes its mask without ``position_ids``, in which it finds packed documents.
        positions: the key that says how many positions are learnt, of a model that has an embedding for each.
        hidden_kept: see :class:`preshard.schemas.model.dimensions.ModelDimensions`; as a dry run counts it.
        since: the first version of ``transformers`` in which it trains.
        alone: whether it is a model of its own, too, and not only part of one that reads images.
    """

    left_out: Mapping[str, Any] = field(default_factory=dict)
    windowed: Windowed | None = None
    passes_window: bool = False
    groups: Literal["all", "window"] = "all"
    has_states: bool = False
    caps: tuple[str, ...] = ()
    options: Mapping[str, Option] = field(default_factory=dict)
    attentions: int = 1
    mlp_matrices: int = 3
    gated: bool = False
    routes_heads: bool = False
    window_keys: int = 1
    own_mask: bool = False
    positions: str = ""
    hidden_kept: int = 8
    since: Version = (5, 0)
    alone: bool = True


def _all(_: Mapping[str, Any], layers: int) -> int:
    return layers


def _but_every(period: int, key: str = "") -> Windowed:
    """Every ``period``-th layer sees all; the period may stand under a key."""
    return lambda text, layers: layers - layers // int(text.get(key) or period)


def _but_first_of(period: int) -> Windowed:
    """The first of each ``period`` layers sees all."""
    return lambda _, layers: layers - -(-layers // period)


def _behind(text: Mapping[str, Any], layers: int) -> int:
    """Layers from ``max_window_layers`` on have a window."""
    return max(0, layers - int(text.get("max_window_layers", 28)))


def _window(tokens: int, windowed: Windowed | None = None, **left_out: Any) -> LanguageModel:
    """A model whose layers with a window say so."""
    return LanguageModel(left_out={"sliding_window": tokens, **left_out}, windowed=windowed, passes_window=True)


def _learnt(key: str, positions: int, **left_out: Any) -> LanguageModel:
    """A model with an embedding for each position."""
    return LanguageModel(left_out={key: positions, **left_out}, positions=key, mlp_matrices=2)


def _latent(queries: int, latent: int, plain: int, turned: int, values: int, **left_out: Any) -> LanguageModel:
    """A model whose keys and values are expanded from one latent of each token: a part of the keys, which is not turned
    by positions, and the values; the turned part is that of all heads (DeepSeek-AI 2024, DeepSeek-V2, section 2.1).
    """
    sizes = {"q_lora_rank": queries, "kv_lora_rank": latent, "qk_nope_head_dim": plain, "qk_rope_head_dim": turned}
    return LanguageModel(left_out={**sizes, "v_head_dim": values, **left_out}, since=(5, 23))


_PLAIN = LanguageModel()

_UNGATED = LanguageModel(mlp_matrices=2)

_UNUSED: Mapping[str, Any] = {"use_sliding_window": False, "sliding_window": 4096}

_FULL = ["full_attention"]

_GEMMA: Mapping[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}

_STATES = LanguageModel(
    left_out={
        **{"full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32},
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 128),
    },
    has_states=True,
    gated=True,
    since=(5, 23),
)

_DEEPSEEK_V3 = _latent(1536, 512, 128, 64, 128, first_k_dense_replace=3)

LANGUAGES: dict[str, LanguageModel] = {
    **dict.fromkeys(("aria_text", "bitnet", "ernie4_5", "flex_olmo", "gemma", "glm", "glm4", "glm4_moe"), _PLAIN),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), LanguageModel(caps=(DIVISOR,))),
    **dict.fromkeys(("helium", "hunyuan_v1_dense", "hy_v3", "hyperclovax", "solar_open"), _PLAIN),
    **dict.fromkeys(("internlm3", "iquestcoder", "llama", "minimax_m2", "olmo", "olmo2", "olmoe"), _PLAIN),
    **dict.fromkeys(("apertus", "arcee", "gpt_neox", "jais2", "persimmon"), _UNGATED),
    **dict.fromkeys(("mixtral", "phi3"), LanguageModel(windowed=_all, passes_window=True)),
    "starcoder2": LanguageModel(windowed=_all, passes_window=True, mlp_matrices=2),
    **dict.fromkeys(("qwen2", "qwen3"), LanguageModel(left_out=_UNUSED, windowed=_behind, passes_window=True)),
    **dict.fromkeys(("qwen3_moe", "smollm3"), LanguageModel(left_out=_UNUSED, passes_window=True)),
    **dict.fromkeys(("exaone4", "exaone_moe"), _window(4096)),
    **dict.fromkeys(("ministral", "mistral"), _window(4096, _all)),
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), replace(_window(128, _but_first_of(4)), caps=(DIVISOR,))),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _STATES),
    "afmoe": replace(_window(1024, _but_every(4, "global_attn_every_n_layers")), own_mask=True, gated=True),
    "biogpt": replace(_learnt("max_position_embeddings", 1024, attention_probs_dropout_prob=0.1), own_mask=True),
    "axk1": _latent(1536, 512, 128, 64, 128, first_k_dense_replace=1),
    "cwm": _window(8192),
    **dict.fromkeys(("deepseek_v2", "youtu"), _latent(1536, 512, 128, 64, 128)),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": replace(_DEEPSEEK_V3, alone=False),  # what deepseek_v3 was called in kimi_k25 at first
    "diffllama": LanguageModel(attentions=2),
    "dots1": _window(4096, layer_types=_FULL),
    "exaone4_5_text": replace(_window(4096), alone=False),  # what exaone4 was called in it at first
    "ernie4_5_moe": LanguageModel(options={"use_bias": ((None, False), *HEAD[1:])}),  # of the output projection, too
    "flint": _window(513),
    **dict.fromkeys(("gemma2", "vaultgemma"), replace(_window(4096, _but_every(2), **_GEMMA), caps=CAPS)),
    "gemma3_text": replace(
        _window(4096, _but_every(6, "sliding_window_pattern"), vocab_size=262_208, **_GEMMA), hidden_kept=18
    ),
    "glm4_moe_lite": _latent(768, 512, 192, 64, 256, first_k_dense_replace=1),
    "gemma4_text": LanguageModel(
        left_out={"sliding_window": 512, "full_attention_interval": 6, "global_head_dim": 512},
        windowed=lambda _, layers: layers - -(-layers // 6),  # the last one sees all, too
        passes_window=True,
        groups="window",
        caps=CAPS[1:],
        options={"use_bidirectional_attention": ((None, False, "vision"), *BIDIRECTIONAL[1:])},
    ),
    "gpt2": _learnt("n_positions", 1024, attn_pdrop=0.1),
    "gpt_bigcode": _learnt("n_positions", 1024, attn_pdrop=0.1),
    "gpt_oss": replace(_window(128, _but_every(2)), own_mask=True),
    "hunyuan_v1_moe": LanguageModel(left_out={"num_shared_experts": 1}),
    "kolibri1": _window(513, _but_every(5)),
    "jetmoe": LanguageModel(routes_heads=True),
    "laguna": _window(512, layer_types=_FULL),
    "mellum": _window(1024, layer_types=_FULL),
    "mimo_v2_flash": replace(_window(129, lambda _, n: n - 1 - n // 6), window_keys=2, since=(5, 23)),
    "minicpm3": replace(_latent(768, 256, 64, 32, 64), caps=(DIVISOR,)),
    "ministral3": LanguageModel(passes_window=True),
    "mistral4": replace(_latent(1024, 256, 64, 64, 128), alone=False),
    "olmo3": _window(4096, _but_every(4)),
    "opt": replace(_learnt("max_position_embeddings", 2048), own_mask=True),
    "phimoe": LanguageModel(windowed=_all),
    "qwen2_5_vl_text": LanguageModel(left_out=_UNUSED, windowed=_behind, alone=False),
    "qwen2_moe": LanguageModel(left_out=_UNUSED),
    "seed_oss": LanguageModel(left_out={"attention_dropout": 0.1}),
}
"""Language models that are followed; :data:`PART` is what one is that only stands in a family below."""

PART = LanguageModel(left_out=_UNUSED, alone=False)


def language_model(model_type: str) -> LanguageModel:
    """Returns the entry of a language model that is followed."""
    return LANGUAGES.get(model_type, PART)


def of_layer(text: Mapping[str, Any], names: Sequence[str], layer: int) -> int:
    """A setting that has one of several names, for a layer; 0 if it is left out."""
    found = next((value for name in names if (value := text.get(name))), 0)
    return int(found[layer] if isinstance(found, list | tuple) else found)


LAYERS = ("full_attention", "sliding_attention")
"""Kinds of layers, as ``layer_types`` names them. Those with a window see a whole pack that is no longer than it."""


def window_of(config: Mapping[str, Any]) -> int | None:
    """The tokens that a layer with a sliding window sees, None if no layer has one.

    Args:
        config: of a followed model, as for :func:`check_followed`.
    """
    text, _ = text_of(config)
    kinds = text.get("layer_types") or LAYERS
    has_windows = "sliding_attention" in kinds and text.get("use_sliding_window") in (None, True)
    window: int | None = text.get("sliding_window") if has_windows else None
    return window


def text_of(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The language part's settings with the defaults that matter, and its ``model_type``."""
    outer = str(config.get("model_type", ""))
    if outer not in FAMILIES:
        known = LANGUAGES.get(outer)
        return {**(known.left_out if known else {}), **config}, outer
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else {**config, "model_type": None}
    kind = str(text.get("model_type") or FAMILIES[outer].text[0])
    return {**language_model(kind).left_out, **text}, kind
