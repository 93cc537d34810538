"""What a model's dimensions come to: work of a token and of a tile, numbers of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TILE
from preshard.schemas.model.encoder import VisionEncoder
from preshard.schemas.model.families import language_model


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDimensions:
    """Dimensions of the model that will train.

    Attributes:
        hidden, layers, heads, kv_heads, head_dim, vocab: of the decoder.
        inner: width of the SwiGLU that a token passes; of a mixture of experts, of all those that it passes.
        stored_inner: the same of all experts.
        tied: whether the embedding is the output projection.
        vision_parameters: of the vision encoder and of what joins it to the decoder.
        vision_width, vision_layers: of the encoder.
        vision_rest: parameters of the encoder beside its layers.
        hidden_kept: numbers that a layer keeps of a token for the backward pass, beside those of its heads and its MLP,
            as a multiple of ``hidden``: 8 in Qwen3.
        vision_row: numbers that the layers keep for the backward pass which make a row of patches.
        source: where the dimensions are from.
        layer_embeddings: parameters by which layers get embeddings of their own (Gemma 4 E2B and E4B).
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    inner: int
    stored_inner: int
    tied: bool
    vision_parameters: int
    vision_width: int
    vision_layers: int
    source: str
    vision_row: int = 0
    layer_embeddings: int = 0
    vision_rest: int = 0
    hidden_kept: int = 8

    @property
    def layer_products(self) -> int:
        """Multiplications of one token with the weights of a layer, without attention's scores."""
        return self.hidden * (2 * self.head_dim * (self.heads + self.kv_heads) + 3 * self.inner)

    @property
    def head_products(self) -> int:
        """Multiplications of one token with the output projection."""
        return self.hidden * self.vocab

    @property
    def layer_parameters(self) -> int:
        return self.hidden * (2 * self.head_dim * (self.heads + self.kv_heads) + 3 * self.stored_inner)

    @property
    def embeddings(self) -> int:
        """Parameters of embeddings and of the output projection."""
        return self.hidden * self.vocab * (1 if self.tied else 2) + self.layer_embeddings

    @property
    def parameters(self) -> int:
        """All of them but norms and biases."""
        return self.layers * self.layer_parameters + self.embeddings + self.vision_parameters

    @property
    def tile_flops(self) -> int:
        """Forward operations of one tile, over all layers and heads."""
        return 4 * TILE * TILE * self.heads * self.head_dim * self.layers


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
    hidden, heads = _positive(text, "hidden_size"), _positive(text, "num_attention_heads")
    named = () if text.get("enable_moe_block") is False else ("num_experts", "num_local_experts")
    experts = next((text[name] for name in named if text.get(name)), None)
    of_expert = text.get("moe_intermediate_size") if experts else None
    expert_width = _positive(text, "intermediate_size" if of_expert is None else "moe_intermediate_size")
    used = "top_k_experts" if text.get("top_k_experts") else "num_experts_per_tok"
    beside = _positive(text, "intermediate_size") if text.get("enable_moe_block") else 0
    layers, given = _positive(text, "num_hidden_layers"), int(text.get("hidden_size_per_layer_input") or 0)
    rows = _positive(text, "vocab_size_per_layer_input") if given else 0
    return ModelDimensions(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_positive(text, "num_key_value_heads", heads),
        head_dim=_positive(text, "head_dim", hidden // heads),
        vocab=_positive(text, "vocab_size"),
        inner=expert_width * (_positive(text, used) if experts else 1) + beside,
        stored_inner=expert_width * (experts or 1) + beside,
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        vision_parameters=encoder_parameters(encoder) if encoder else 0,
        vision_width=encoder.hidden_size if encoder else 0,
        vision_layers=encoder.layers + encoder.windowed_layers if encoder else 0,
        source=source,
        vision_row=row_width(encoder) if encoder else 0,
        layer_embeddings=layers * given * (rows + 3 * hidden),
        vision_rest=rest_parameters(encoder) if encoder else 0,
        hidden_kept=language.hidden_kept,
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


def _positive(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = default if values.get(name) is None else values[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"--model: {name} of config.json is {value!r}; a whole number of at least 1 is legal")
    return value
