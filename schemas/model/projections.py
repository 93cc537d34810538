"""Numbers that a layer projects of a token for attention or a state, by a model's ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from preshard.schemas.model.languages import LanguageModel


class Heads(NamedTuple):
    """Heads of a layer's queries and of its keys, and the numbers of a head of both, and of one of values."""

    queries: int
    keys: int
    width: int
    values: int


def projected(text: Mapping[str, Any], language: LanguageModel, layer: int, heads: Heads) -> int:
    """Numbers that a layer projects of a token: to queries, keys, values and gates, or to a state, and back from them.

    Args:
        text: settings of the language model, and what those mean that are left out.
        language: its kind.
        layer: counted from 0.
        heads: those of a layer of which nothing else is said.
    """
    kind = _kind(text, language, layer)
    if kind == "linear_attention":
        keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
        values = text["linear_num_value_heads"] * text["linear_value_head_dim"]
        # queries and keys; values, their gates, and the output; a decay and a rate of each head
        return int(2 * keys + 3 * values + 2 * text["linear_num_value_heads"])
    if (latent := text.get("kv_lora_rank")) is not None:
        made, turned, given = text.get("q_lora_rank"), text["qk_rope_head_dim"], heads.queries * heads.width
        expanded = latent * heads.queries * (heads.width - turned + heads.values)
        of_queries = given if made is None else made + made * given / text["hidden_size"]
        return round(of_queries + latent + turned + expanded / text["hidden_size"] + heads.queries * heads.values)
    if kind == "sliding_attention":
        heads = heads._replace(keys=heads.keys * language.window_keys)
    keys_are_values = kind == "full_attention" and text.get("attention_k_eq_v") is True
    queries, keys, width, values = _heads(text, layer, heads, kind, shared=keys_are_values)
    sides = 0 if shares_keys(text, layer) else 1 if keys_are_values else 2
    gated = language.gated or text.get("gating") == "per-element"
    of_keys = keys * (width + values if sides == 2 else sides * width)
    return int(queries * (width + values * (2 if gated else 1)) + of_keys)


def shares_keys(text: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer takes the keys and values of one before it."""
    shared = text.get("num_kv_shared_layers") or 0
    return bool(shared and layer >= text["num_hidden_layers"] - shared)


def _heads(text: Mapping[str, Any], layer: int, heads: Heads, kind: str, *, shared: bool) -> Heads:
    if (listed := text.get("num_attention_heads_per_layer")) is not None:
        heads = heads._replace(queries=listed[layer])
    if (own := text.get("per_layer_config")) is not None:
        own = own.get(str(layer)) or own.get(layer) or {}
    elif kind == "full_attention" and text.get("global_head_dim"):
        own = {"head_dim": text["global_head_dim"]}
        if shared and text.get("num_global_key_value_heads"):
            own["num_key_value_heads"] = text["num_global_key_value_heads"]
    else:
        return heads
    width = own.get("head_dim", heads.width)
    return heads._replace(keys=own.get("num_key_value_heads", heads.keys), width=width, values=width)


def _kind(text: Mapping[str, Any], language: LanguageModel, layer: int) -> str:
    """A layer's entry of ``layer_types``, or what it is where they are left out."""
    if kinds := text.get("layer_types"):
        return str(kinds[layer])
    last, period = layer + 1 == text.get("num_hidden_layers"), text.get("full_attention_interval")
    if period is None or not (layer + 1) % period or (last and not language.has_states):
        return "full_attention"
    return "linear_attention" if language.has_states else "sliding_attention"
