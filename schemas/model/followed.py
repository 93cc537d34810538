"""Which models train on packs, by their ``config.json`` alone: those whose every layer keeps documents apart.

Attention of packs sees a document at a time. Whatever else mixes tokens (a state or a convolution along the sequence, a
statistic of all tokens, a rotary frequency that follows the longest position) sees the neighbours in the pack, or on
the rank. So models are followed by name, each as it was measured (``tests/trainer/models/followed.py``), under
conditions on their options. A model with other layers needs an entry in :data:`TEXT`, and its kind one in
:data:`LAYERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import LayerMasks

LAYERS = ("full_attention", "sliding_attention")
"""Kinds of layers, as ``layer_types`` names them. Those with a window see a whole pack that is no longer than it."""

STATES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Models whose layers may also be ``linear_attention``: a gated delta rule, whose state starts anew with a document."""

ROTARY = ("default", "linear", "llama3", "yarn", "mrope", "proportional")
"""Rotary positions whose frequencies do not depend on a sequence's length."""

_NO_WINDOW: Mapping[str, Any] = {"use_sliding_window": False, "sliding_window": 4096}
_WINDOW_4096: Mapping[str, Any] = {"sliding_window": 4096}
_PLAIN: Mapping[str, Any] = {}

TEXT: dict[str, Mapping[str, Any]] = {
    **dict.fromkeys(("apertus", "arcee", "aria_text", "bitnet", "diffllama", "ernie4_5", "ernie4_5_moe"), _PLAIN),
    **dict.fromkeys(("flex_olmo", "gemma", "glm", "glm4", "glm4_moe", "gpt_neox", "granite", "granitemoe"), _PLAIN),
    **dict.fromkeys(("granitemoeshared", "helium", "hrm_text", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3"), _PLAIN),
    **dict.fromkeys(("hyperclovax", "internlm3", "iquestcoder", "jais2", "jetmoe", "llama", "minimax_m2"), _PLAIN),
    **dict.fromkeys(("ministral3", "mixtral", "olmo", "olmo2", "olmoe", "opt", "persimmon", "phi3"), _PLAIN),
    **dict.fromkeys(("phimoe", "solar_open", "starcoder2"), _PLAIN),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"), _NO_WINDOW),
    **dict.fromkeys(("exaone4", "exaone_moe", "gemma3_text", "ministral", "mistral", "olmo3"), _WINDOW_4096),
    **dict.fromkeys(STATES, _PLAIN),
    "gemma4_text": {"sliding_window": 512},
    "cwm": {"sliding_window": 8192},
    "afmoe": {"sliding_window": 1024},
    "dots1": {"sliding_window": 4096, "layer_types": ["full_attention"]},
    "kolibri1": {"sliding_window": 513},
    "laguna": {"sliding_window": 512, "layer_types": ["full_attention"]},
    "mellum": {"sliding_window": 1024, "layer_types": ["full_attention"]},
    "biogpt": {"attention_probs_dropout_prob": 0.1},
    "gpt2": {"attn_pdrop": 0.1},
    "gpt_bigcode": {"attn_pdrop": 0.1},
    "seed_oss": {"attention_dropout": 0.1},
    "flint": {"sliding_window": 513},
    "gpt_oss": {"sliding_window": 128},
    "granite_swa": {"sliding_window": 128},
    "granitemoe_swa": {"sliding_window": 128},
}
"""Causal language models by their ``model_type``, with what a key that is checked here means where it is left out."""


def _but_every(period: int, key: str = "") -> Callable[[Mapping[str, Any], int], int]:
    """Every ``period``-th layer sees all; the period may stand under a key."""
    return lambda text, layers: layers - layers // int(text.get(key) or period)


def _but_none(_: Mapping[str, Any], layers: int) -> int:
    return layers


def _but_first_of(period: int) -> Callable[[Mapping[str, Any], int], int]:
    """The first of each ``period`` layers sees all."""
    return lambda _, layers: layers - -(-layers // period)


def _behind(text: Mapping[str, Any], layers: int) -> int:
    """Layers from ``max_window_layers`` on have a window."""
    return max(0, layers - int(text.get("max_window_layers", 28)))


WINDOWED: dict[str, Callable[[Mapping[str, Any], int], int]] = {
    **dict.fromkeys(("ministral", "mistral", "mixtral", "phi3", "phimoe", "starcoder2"), _but_none),
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_5_vl_text"), _behind),
    "afmoe": _but_every(4, "global_attn_every_n_layers"),
    "gemma3_text": _but_every(6, "sliding_window_pattern"),
    "gemma4_text": lambda _, layers: layers - -(-layers // 6),  # the last one sees all, too
    "gpt_oss": _but_every(2),
    "granite_swa": _but_first_of(4),
    "granitemoe_swa": _but_first_of(4),
    "kolibri1": _but_every(5),
    "olmo3": _but_every(4),
}
"""Of how many layers, by the kind of model, `transformers` gives a window to where ``layer_types`` is left out."""

GROUPS_IN_WINDOWS = ("gemma4_text", "gemma4_unified_text")
"""Models whose images see each other in both directions in layers with a window alone."""

PASSES_WINDOW = frozenset(
    {
        *("afmoe", "cwm", "dots1", "exaone4", "exaone_moe", "gemma3_text", "gemma4_text", "kolibri1"),
        *("laguna", "mellum", "ministral", "ministral3", "mistral", "mixtral", "olmo3", "phi3", "qwen2"),
        *("qwen3", "qwen3_moe", "smollm3", "starcoder2", "flint", "gpt_oss", "granite_swa", "granitemoe_swa"),
    }
)
"""Language models whose layers pass their window to attention (``sliding_window``), as it was measured, too."""

IMAGES: dict[str, tuple[str, ...]] = {
    "qwen3_vl": ("qwen3_vl_text",),
    "qwen3_vl_moe": ("qwen3_vl_moe_text",),
    "qwen3_5": ("qwen3_5_text",),
    "qwen3_5_moe": ("qwen3_5_moe_text",),
    "qwen2_5_vl": ("qwen2_5_vl_text",),
    "molmo2": ("molmo2_text",),
    "internvl": ("qwen2", "qwen3", "qwen3_moe", "llama"),
    "glm4v": ("glm4v_text",),
    "glm4v_moe": ("glm4v_moe_text",),
    "glm46v": ("glm4v_text", "glm4v_moe_text"),
    "gemma3": ("gemma3_text",),
    "mistral3": ("mistral", "ministral3"),
    "gemma4": ("gemma4_text",),
}
"""Models that read images, with the language models that they may have; the first is the one of no other name."""

_CAP = ((None,), "which attention of packs does not compute", "take a model without")
_HEAD = ((None, 1, False), "which changes the logits after the output projection; the loss does not", _CAP[2])
_RANDOM = ((None, 0), "which packed attention does not implement", "set it to 0 in config.json")

OPTIONS: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "attn_logit_softcapping": _CAP,
    "final_logit_softcapping": ((None,), *_HEAD[1:]),
    "logit_scale": _HEAD,
    "logits_scaling": _HEAD,
    "lm_head_bias": ((None, False), *_HEAD[1:]),
    "attention_dropout": _RANDOM,
    "attn_pdrop": _RANDOM,
    "attention_probs_dropout_prob": _RANDOM,
    "layerdrop": ((None, 0), "by which ranks of one pack would skip different layers", _RANDOM[2]),
    "is_causal": ((None, True), "while packs of text are causal", "take a causal model"),
    "use_bidirectional_attention": ((None, False), "while packs of text are causal", "take a causal model"),
    "add_cross_attention": ((None, False), "and packs hold no second sequence", "take a model without"),
    "output_router_logits": (
        (None, False),
        "while the loss has no auxiliary part for the routers",
        "set it to false in config.json",
    ),
    "is_encoder_decoder": ((None, False), "and packs hold no second sequence", "take a causal language model"),
}
"""Settings of any model: values that are followed, what any other does, and what would work."""

OPTIONS_OF: dict[str, dict[str, tuple[tuple[Any, ...], str, str]]] = {
    "ernie4_5_moe": {"use_bias": OPTIONS["lm_head_bias"]},
    "mistral3": {
        "vision_feature_layer": ((None, -1), "while features are those of the encoder's last layer", _CAP[2]),
    },
    "gemma4_text": {
        "use_bidirectional_attention": ((None, False, "vision"), *OPTIONS["use_bidirectional_attention"][1:]),
    },
}
"""The same of one ``model_type``. The bias of Ernie is that of the output projection, too."""

CAPPED = ("gemma4_text",)
"""Models whose logits the loss caps as they do (``final_logit_softcapping``)."""

_CAPS = {("final_logit_softcapping", kind) for kind in CAPPED}

_STATE = "carry a state along the sequence, past the end of a document"
_LATENT = "have keys and values of different widths (multi-head latent attention)"
_CHUNKS = "attend in chunks of the pack's length, not of the document's"
_SHARED = "share keys and values with other layers"
_LOGITS = "are followed by logits that are not the output projection alone"
_BIAS = "add a bias to the scores of attention"
_OWN = "have an attention of their own, which does not ask for that of packs"

REASONS: dict[str, str] = {
    **dict.fromkeys(("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba"), _STATE),
    **dict.fromkeys(("kimi_linear", "lfm2", "lfm2_moe", "lfm3", "mamba", "mamba2", "minimax", "nemotron_h"), _STATE),
    **dict.fromkeys(("olmo_hybrid", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2"), _STATE),
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite"), _LATENT),
    **dict.fromkeys(("glm_moe_dsa", "longcat_flash", "mimo_v2_flash", "minicpm3", "youtu"), _LATENT),
    "deepseek_v4": "compress the keys of several tokens into one, past the end of a document",
    **dict.fromkeys(("gemma2", "vaultgemma"), "cap the scores of attention (attn_logit_softcapping)"),
    **dict.fromkeys(("llama4", "llama4_text"), _CHUNKS),
    **dict.fromkeys(("gemma3n", "gemma3n_text", "gemma4_unified_text"), _SHARED),
    **dict.fromkeys(("beam", "cohere", "cohere2", "cohere2_moe", "ctrl", "modernbert-decoder"), _LOGITS),
    **dict.fromkeys(("nanochat", "phi"), _LOGITS),
    **dict.fromkeys(("bloom", "falcon", "inkling_text", "inkling2_text", "mpt"), _BIAS),
    **dict.fromkeys(("codegen", "gpt_neox_japanese", "gptj", "nemotron", "stablelm", "xglm", "xlnet"), _OWN),
}
"""What is known of the layers of other models."""

_UNKNOWN = "are not known to keep the documents of a pack apart"


def check_followed(config: Mapping[str, Any], asked: str) -> None:
    """Refuses a model unless each of its layers is known to keep the documents of a pack apart, and to see all of it.

    Args:
        config: ``config.json``, as it lies in the folder or with every default.
        asked: what named the model, such as ``model``; messages begin with it.

    Raises:
        ConfigError: a kind of layer, or an option of one, is not on the lists above.
    """
    text, kind = _text_of(config)
    outer = str(config.get("model_type", ""))
    if kind not in IMAGES.get(outer, TEXT):
        inside = f" (text_config of {outer})" if outer in IMAGES else ""
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
    of_images = OPTIONS_OF.get(outer, {}) if outer in IMAGES else {}
    for values, options in ((text, {**OPTIONS, **OPTIONS_OF.get(kind, {})}), (config, of_images)):
        for key, (legal, why, remedy) in options.items():
            if (value := values.get(key)) not in legal and (key, kind) not in _CAPS:
                raise ConfigError(f"{asked}: {key} of config.json is {value!r}, {why}: {remedy}")
    for rotary in _rotary_of(text):
        if rotary not in ROTARY:
            raise ConfigError(
                f"{asked}: rope_type of config.json is {rotary!r}, whose frequencies depend on the sequence's length, "
                f"so on the other documents of a pack: take a model with one of {', '.join(ROTARY)}"
            )


def window_of(config: Mapping[str, Any]) -> int | None:
    """The tokens that a layer with a sliding window sees, None if no layer has one.

    Args:
        config: of a followed model, as for :func:`check_followed`.
    """
    text, _ = _text_of(config)
    kinds = text.get("layer_types") or LAYERS
    has_windows = "sliding_attention" in kinds and text.get("use_sliding_window") in (None, True)
    window: int | None = text.get("sliding_window") if has_windows else None
    return window


def layer_masks(config: Mapping[str, Any], asked: str) -> LayerMasks | None:
    """How many layers of a model have which mask; None if none has a window.

    Args:
        config: of a followed model, as for :func:`check_followed`. Where it has no ``layer_types``, they are those that
            `transformers` gives such a model.
        asked: what named the model; messages begin with it.

    Raises:
        ConfigError: neither ``layer_types`` nor the kind of model says which layers have a window.
    """
    text, kind = _text_of(config)
    window, kinds, layers = window_of(config), text.get("layer_types"), text.get("num_hidden_layers")
    if window is None:
        return None
    if isinstance(kinds, list):
        windowed, layers = kinds.count("sliding_attention"), len(kinds)
    elif kind not in WINDOWED or not isinstance(layers, int):
        missing = "layer_types" if isinstance(layers, int) else "num_hidden_layers"
        raise ConfigError(
            f"{asked}: config.json of {kind} has no {missing}, so it does not say how many layers have a sliding "
            "window: save it with save_pretrained, which writes them"
        )
    else:
        windowed = WINDOWED[kind](text, layers)
    if not windowed:
        return None
    groups: Literal["all", "window"] = "window" if kind in GROUPS_IN_WINDOWS else "all"
    return LayerMasks(full_layers=layers - windowed, window_layers=windowed, window=window, groups=groups)


def hidden_window_of(config: Mapping[str, Any]) -> int | None:
    """The window of layers that do not say which one they have, so that attention cannot follow it; None if none does.

    Args:
        config: of a followed model, as for :func:`check_followed`.
    """
    return None if _text_of(config)[1] in PASSES_WINDOW else window_of(config)


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


def _text_of(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The language part's settings with the defaults that matter, and its ``model_type``."""
    outer = str(config.get("model_type", ""))
    if outer not in IMAGES:
        return {**TEXT.get(outer, {}), **config}, outer
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else {**config, "model_type": None}
    kind = str(text.get("model_type") or IMAGES[outer][0])
    return {**TEXT.get(kind, _NO_WINDOW), **text}, kind


def _odd_layers(text: Mapping[str, Any], model_type: str) -> str:
    """What is said of layers of other kinds; empty if there are none."""
    kinds = text.get("layer_types")
    known = (*LAYERS, "linear_attention") if model_type in STATES else LAYERS
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
    if outer in IMAGES:
        return f"take one whose text_config is {' or '.join(IMAGES[outer])}"
    return (
        f"take one of {', '.join(IMAGES)}, or a model of text such as llama, mistral or qwen3 (docs/families.md: all)"
    )
