"""Figures that follow from a model's dimensions: work of a token and of a tile, numbers of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TILE
from preshard.schemas.manifest import VisionEncoder
from preshard.schemas.model.languages import EXPERTS, USED_EXPERTS, language_model, of_layer
from preshard.schemas.model.projections import Heads, projected, shares_keys


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDimensions:
    """Dimensions of the model that will train.

    Attributes:
        hidden, layers, heads, kv_heads, vocab: of the decoder.
        head_dim, value_dim: width of a head of queries and keys, and of one of values.
        inner: width of the SwiGLU that a token passes, or of one with as many weights; of a mixture of experts, of all
            those that it passes; the mean of layers.
        stored_inner: the same of all experts.
        tied: whether the embedding is the output projection.
        vision_parameters: of the vision encoder and of what joins it to the decoder.
        vision_width, vision_layers: of the encoder.
        vision_rest: parameters of the encoder beside its layers.
        hidden_kept: numbers that a layer keeps of a token for the backward pass, beside those of its heads and its MLP,
            as a multiple of ``hidden``: 8 in Qwen3.
        more_projected: numbers that a layer projects of a token beside those of ``heads`` and ``kv_heads``: to gates,
            to states, and where layers have more, fewer or wider heads; the mean of layers.
        latent, shared: width of a token's latent, from which keys and values of all heads are expanded, and of the part
            of keys that the heads share; 0 where they are projected of the token itself.
        vision_row: numbers that the layers keep for the backward pass which make a row of patches.
        source: where the dimensions are from.
        more_embeddings: parameters of embeddings of layers (Gemma 4 E2B and E4B) and of positions (GPT-2).
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    vocab: int
    inner: int
    stored_inner: int
    tied: bool
    vision_parameters: int
    vision_width: int
    vision_layers: int
    source: str
    vision_row: int = 0
    more_embeddings: int = 0
    vision_rest: int = 0
    hidden_kept: int = 8
    more_projected: int = 0
    latent: int = 0
    shared: int = 0

    @property
    def key_and_value(self) -> int:
        """Numbers of a head's key and value, and as many as of a query and what attention gives for it."""
        return self.head_dim + self.value_dim

    @property
    def projected(self) -> int:
        """Numbers that a layer projects of a token to what attention or a state takes, and back from there."""
        return self.key_and_value * (self.heads + self.kv_heads) + self.more_projected

    @property
    def expanding(self) -> int:
        """Multiplications that expand the latent of a token in a layer."""
        return self.latent * self.heads * (self.key_and_value - self.shared)

    @property
    def layer_products(self) -> int:
        """Multiplications of one token with the weights of a layer, without attention's scores."""
        return self.hidden * (self.projected + 3 * self.inner)

    @property
    def head_products(self) -> int:
        """Multiplications of one token with the output projection."""
        return self.hidden * self.vocab

    @property
    def layer_parameters(self) -> int:
        return self.hidden * (self.projected + 3 * self.stored_inner)

    @property
    def embeddings(self) -> int:
        """Parameters of embeddings and of the output projection."""
        return self.hidden * self.vocab * (1 if self.tied else 2) + self.more_embeddings

    @property
    def parameters(self) -> int:
        """All of them but norms and biases."""
        return self.layers * self.layer_parameters + self.embeddings + self.vision_parameters

    @property
    def tile_flops(self) -> int:
        """Forward operations of one tile, over all layers and heads."""
        return 2 * TILE * TILE * self.heads * self.key_and_value * self.layers


def model_dimensions(config: Mapping[str, Any], encoder: VisionEncoder | None, source: str) -> ModelDimensions:
    """The dimensions of a model.

    Args:
        config: what its ``config.json`` holds.
        encoder: its vision encoder, if it has one.
        source: where the dimensions are from.

    Raises:
        ConfigError: a dimension is missing.
    """
    nested = config.get("text_config")
    given_text: Mapping[str, Any] = nested if isinstance(nested, dict) else config
    language = language_model(str(given_text.get("model_type")))
    text = {**language.left_out, **given_text}
    hidden, heads = _positive(text, "hidden_size", "n_embd"), _positive(text, "num_attention_heads", "n_head")
    layers = _positive(text, "num_hidden_layers", "n_layer")
    given = int(text.get("hidden_size_per_layer_input") or 0)
    rows = _positive(text, "vocab_size_per_layer_input") if given else 0
    places = _positive(text, language.positions) if language.positions else 0
    passed, stored = (language.mlp_matrices * width / (3 * layers) for width in _mlp_widths(text, hidden, layers))
    kv_heads = 1 if text.get("multi_query") else _positive(text, "num_key_value_heads", default=heads)
    latent = text.get("kv_lora_rank") is not None
    own = text["qk_nope_head_dim"] + text["qk_rope_head_dim"] if latent else None
    head_dim = own or _positive(text, "head_dim", "kv_channels", default=hidden // heads)
    value_dim = _positive(text, "v_head_dim", default=hidden // heads if latent else head_dim)
    each = Heads(heads, kv_heads, head_dim, value_dim)
    of_layers = sum(projected(text, language, layer, each) for layer in range(layers))
    if language.routes_heads:  # each expert has the heads of all keys, of which a token passes those of a few
        stored += 2 * kv_heads * head_dim * (of_layer(text, EXPERTS, 0) - of_layer(text, USED_EXPERTS, 0)) / 3
    return ModelDimensions(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        vocab=_positive(text, "vocab_size"),
        inner=round(passed),
        stored_inner=round(stored),
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        vision_parameters=encoder_parameters(encoder) if encoder else 0,
        vision_width=encoder.hidden_size if encoder else 0,
        vision_layers=encoder.layers + encoder.windowed_layers if encoder else 0,
        source=source,
        vision_row=row_width(encoder) if encoder else 0,
        more_embeddings=layers * given * (rows + 3 * hidden) + places * hidden,
        vision_rest=rest_parameters(encoder) if encoder else 0,
        hidden_kept=language.hidden_kept,
        more_projected=round(of_layers / layers) - (head_dim + value_dim) * (heads + kv_heads),
        latent=text["kv_lora_rank"] if latent else 0,
        shared=text["qk_rope_head_dim"] if latent else 0,
    )


def encoder_parameters(encoder: VisionEncoder) -> int:
    """Parameters of a vision encoder, and of what joins it to the decoder."""
    width = encoder.hidden_size
    layer = 4 * width * width + encoder.mlp_matrices * width * encoder.intermediate_size
    return (encoder.layers + encoder.windowed_layers) * layer + rest_parameters(encoder)


def rest_parameters(encoder: VisionEncoder) -> int:
    """Parameters of what embeds patches, and of what makes rows of them."""
    rows = encoder.row_inputs * encoder.row_hidden + encoder.row_hidden * encoder.row_outputs
    return encoder.patch_inputs * encoder.hidden_size + rows


def row_width(encoder: VisionEncoder) -> int:
    """Numbers that the layers keep of a row which make it of patches: their inputs, and both sides of the nonlinearity,
    as ``tests/benchmarks/advice_memory.py`` counts them for Qwen3-VL; and what they give, here and where its token is.
    """
    return 3 * encoder.row_inputs + 2 * encoder.row_outputs


SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
"""Names of the number of a layer's experts that every token passes, and of their width."""


def _mlp_widths(text: Mapping[str, Any], hidden: int, layers: int) -> tuple[int, int]:
    """Widths of what a token passes, and of all that is stored, summed over layers.

    Raises:
        ConfigError: a width or a number of experts is missing.
    """
    passed = stored = 0
    for layer in range(layers):
        experts = 0 if text.get("enable_moe_block") is False else of_layer(text, EXPERTS, layer)
        if not experts or _is_dense(text, layer):
            width = _positive(text, "intermediate_size", "n_inner", "ffn_dim", default=4 * hidden)
            width *= 2 if text.get("use_double_wide_mlp") and shares_keys(text, layer) else 1
            passed, stored = passed + width, stored + width
            continue
        width = _positive(text, "moe_intermediate_size", "intermediate_size")
        used = of_layer(text, USED_EXPERTS, layer)
        if used < 1:
            raise ConfigError(
                f"--model: config.json has {experts} experts, and none of {', '.join(USED_EXPERTS)} says how many a "
                "token is sent to"
            )
        shared = of_layer(text, SHARED_WIDTH, layer) or of_layer(text, SHARED_EXPERTS, layer) * width
        if text.get("enable_moe_block"):
            shared += _positive(text, "intermediate_size")
        passed, stored = passed + used * width + shared, stored + experts * width + shared
    return passed, stored


def _is_dense(text: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer of a mixture of experts has none."""
    kinds = text.get("mlp_layer_types")
    if kinds:
        return bool(kinds[layer] == "dense")
    first, last = (text.get(f"moe_layer_{end}_index") for end in ("start", "end"))
    return (
        layer < of_layer(text, ("first_k_dense_replace", "num_dense_layers"), layer)
        or layer in (text.get("mlp_only_layers") or ())
        or bool((layer + 1) % (text.get("decoder_sparse_step") or text.get("moe_layer_interval") or 1))
        or layer < (first or 0)
        or (last is not None and last >= 0 and layer > last)
    )


def _positive(values: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """The first of several keys that is there."""
    value = next((values[name] for name in names if values.get(name) is not None), default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"--model: {' or '.join(names)} of config.json is {value!r}; a whole number of at least 1 is legal"
        )
    return value
