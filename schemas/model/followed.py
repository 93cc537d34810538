"""Models that train on packs, known by their ``config.json`` alone: those whose every layer keeps documents apart.

Attention of packs sees a document at a time. Whatever else mixes tokens (a state or a convolution along the sequence, a
statistic of all tokens, a rotary frequency that follows the longest position) sees the neighbours in the pack, or on
the rank. So models are followed by name (:mod:`preshard.schemas.model.families`), each as it was measured
(``tests/trainer/models/followed.py``), under conditions on their options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import LayerMasks
from preshard.schemas.model.families import BIDIRECTIONAL, FAMILIES, HEAD, Option
from preshard.schemas.model.languages import LAYERS, language_model, text_of, window_of

ROTARY = ("default", "linear", "llama3", "yarn", "mrope", "proportional")
"""Rotary positions whose frequencies do not depend on a sequence's length."""

_CAP = ((None,), "which is not followed for such models", "take a model without")
_RANDOM = ((None, 0), "which packed attention does not implement", "set it to 0 in config.json")

OPTIONS: dict[str, Option] = {
    "attn_logit_softcapping": _CAP,
    "final_logit_softcapping": ((None,), *HEAD[1:]),
    "logit_scale": HEAD,
    "logits_scaling": HEAD,
    "lm_head_bias": ((None, False), *HEAD[1:]),
    "attention_dropout": _RANDOM,
    "attn_pdrop": _RANDOM,
    "attention_probs_dropout_prob": _RANDOM,
    "layerdrop": ((None, 0), "by which ranks of one pack would skip different layers", _RANDOM[2]),
    "is_causal": ((None, True), "while packs of text are causal", "take a causal model"),
    "use_bidirectional_attention": BIDIRECTIONAL,
    "add_cross_attention": ((None, False), "and packs hold no second sequence", "take a model without"),
    "is_encoder_decoder": ((None, False), "and packs hold no second sequence", "take a causal language model"),
}
"""Settings of any model."""

_STATE = "carry a state along the sequence, past the end of a document"
_CHOSEN = "choose the keys that each token sees by scores of their own, past the end of a document"
_CHUNKS = "attend in chunks of the pack's length, not of the document's"
_SHARED = "share keys and values with other layers"
_LOGITS = "are followed by logits that are not the output projection alone"
_BIAS = "add a bias to the scores of attention"
_SAM = "read images through SAM's encoder, for which no family is written"
_OWN = "have an attention of their own, which does not ask for that of packs"

REASONS: dict[str, str] = {
    **dict.fromkeys(("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba"), _STATE),
    **dict.fromkeys(("kimi_linear", "lfm2", "lfm2_moe", "lfm3", "mamba", "mamba2", "minimax", "nemotron_h"), _STATE),
    **dict.fromkeys(("olmo_hybrid", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2"), _STATE),
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa"), _CHOSEN),
    "longcat_flash": "attend twice, with experts between that do nothing",
    **dict.fromkeys(("deepseek_ocr2", "unlimited_ocr"), _SAM),
    "hrm_text": "are passed several times, some of them without gradients",
    "deepseek_v4": "compress the keys of several tokens into one, past the end of a document",
    **dict.fromkeys(("llama4", "llama4_text"), _CHUNKS),
    **dict.fromkeys(("gemma3n", "gemma3n_text", "gemma4_unified_text"), _SHARED),
    **dict.fromkeys(("beam", "cohere", "cohere2", "cohere2_moe", "ctrl", "modernbert-decoder"), _LOGITS),
    **dict.fromkeys(("nanochat", "phi"), _LOGITS),
    **dict.fromkeys(("bloom", "falcon", "inkling_text", "inkling2_text", "mpt"), _BIAS),
    **dict.fromkeys(("codegen", "gpt_neox_japanese", "gptj", "nemotron", "stablelm", "xglm", "xlnet"), _OWN),
}
"""Known facts about the layers of other models."""

_UNKNOWN = "are not known to keep the documents of a pack apart"


def check_followed(config: Mapping[str, Any], asked: str) -> None:
    """Refuses a model unless each of its layers is known to keep the documents of a pack apart, and to see all of it.

    Args:
        config: ``config.json``, as it lies in the folder or with every default.
        asked: what named the model, such as ``model``; messages begin with it.

    Raises:
        ConfigError: a kind of layer, or an option of one, is not on the lists above.
    """
    text, kind = text_of(config)
    outer = str(config.get("model_type", ""))
    family, language = FAMILIES.get(outer), language_model(kind)
    if not (kind in family.text if family else language.alone):
        inside = f" (text_config of {outer})" if family else ""
        if config.get("auto_map"):
            raise ConfigError(
                f"{asked}: model_type {kind!r}{inside} of config.json is not supported: auto_map names code of the "
                f"folder, which is not run; {_takes(outer)}"
            )
        raise ConfigError(
            f"{asked}: model_type {kind!r}{inside} of config.json is not supported: its layers "
            f"{_odd_layers(text, kind) or REASONS.get(kind, _UNKNOWN)}; {_takes(outer)}"
        )
    if _odd_layers(text, kind):
        raise ConfigError(
            f"{asked}: layer_types of config.json: layers of {kind} {_odd_layers(text, kind)}; {_takes(outer)}"
        )
    for values, options in ((text, {**OPTIONS, **language.options}), (config, family.options if family else {})):
        for key, (legal, why, remedy) in options.items():
            if (value := values.get(key)) not in legal and key not in language.caps:
                raise ConfigError(f"{asked}: {key} of config.json is {value!r}, {why}: {remedy}")
    for rotary in _rotary_of(text):
        if rotary not in ROTARY:
            raise ConfigError(
                f"{asked}: rope_type of config.json is {rotary!r}, whose frequencies depend on the sequence's length, "
                f"so on the other documents of a pack: take a model with one of {', '.join(ROTARY)}"
            )


def layer_masks(config: Mapping[str, Any], seq_len: int, asked: str) -> LayerMasks | None:
    """Numbers of a model's layers with each mask; None if none has a window that is shorter than packs.

    Args:
        config: of a followed model, as for :func:`check_followed`. Where it has no ``layer_types``, they are those that
            `transformers` gives such a model.
        seq_len: tokens of a pack.
        asked: what named the model; messages begin with it.

    Raises:
        ConfigError: neither ``layer_types`` nor the kind of model says which layers have a window.
    """
    text, kind = text_of(config)
    language, window = language_model(kind), window_of(config)
    kinds, layers = text.get("layer_types"), text.get("num_hidden_layers")
    if window is None or window >= seq_len:
        return None
    if isinstance(kinds, list):
        windowed, layers = kinds.count("sliding_attention"), len(kinds)
    elif language.windowed is None or not isinstance(layers, int):
        missing = "layer_types" if isinstance(layers, int) else "num_hidden_layers"
        raise ConfigError(
            f"{asked}: config.json of {kind} has no {missing}, so it does not say how many layers have a sliding "
            "window: save it with save_pretrained, which writes them"
        )
    else:
        windowed = language.windowed(text, layers)
    if not windowed:
        return None
    return LayerMasks(full_layers=layers - windowed, window_layers=windowed, window=window, groups=language.groups)


def hidden_window_of(config: Mapping[str, Any]) -> int | None:
    """The window of layers that do not say which one they have, so that attention cannot follow it; None if none does.

    Args:
        config: of a followed model, as for :func:`check_followed`.
    """
    return None if language_model(text_of(config)[1]).passes_window else window_of(config)


def check_window(window: int | None, seq_len: int, asked: str) -> None:
    """Refuses a model whose layers have a window that attention does not learn of.

    Args:
        window: see :func:`hidden_window_of`.
        seq_len: tokens of a pack.
        asked: what named the model.

    Raises:
        ConfigError: the window is shorter than packs.
    """
    if window is not None and window < seq_len:
        raise ConfigError(
            f"{asked} has a sliding_window of {window} tokens, shorter than packs of {seq_len}, which its "
            "layers do not pass to attention: pack with a smaller seq_len, or take a model without"
        )


def check_positions(config: Mapping[str, Any], seq_len: int, asked: str) -> None:
    """Refuses packs whose documents may be longer than a model has learnt positions.

    Args:
        config: of a followed model, as for :func:`check_followed`.
        seq_len: tokens of a pack.
        asked: what named the model.

    Raises:
        ConfigError: they may.
    """
    text, kind = text_of(config)
    key = language_model(kind).positions
    positions = text.get(key)
    if isinstance(positions, int) and positions < seq_len:
        raise ConfigError(
            f"{asked} has learnt {positions} positions ({key} of config.json), and documents in packs of {seq_len} "
            f"tokens may be longer: pack with seq_len={positions} or less"
        )


def _odd_layers(text: Mapping[str, Any], model_type: str) -> str:
    """Reason why layers of other kinds are refused; empty if the model has no such layers."""
    kinds = text.get("layer_types")
    known = (*LAYERS, "linear_attention") if language_model(model_type).has_states else LAYERS
    if not isinstance(kinds, list) or all(kind in known for kind in kinds):
        return ""
    number, kind = next((number, kind) for number, kind in enumerate(kinds) if kind not in known)
    return f"are of kinds that packs do not follow (layer_types[{number}] is {kind!r})"


def _rotary_of(text: Mapping[str, Any]) -> list[str]:
    """Kinds of rotary positions: of all layers, or of each kind of layers, in the words of any version."""
    found = [text.get(key) for key in ("rope_parameters", "rope_scaling")]
    found += [part for each in found if isinstance(each, dict) for part in each.values()]
    return [str(each.get("rope_type") or each.get("type") or "default") for each in found if isinstance(each, dict)]


def _takes(outer: str) -> str:
    if outer in FAMILIES:
        return f"take one whose text_config is {' or '.join(FAMILIES[outer].text)}"
    return (
        f"take one of {', '.join(FAMILIES)}, or a model of text such as llama, mistral or qwen3 (docs/families.md: all)"
    )
