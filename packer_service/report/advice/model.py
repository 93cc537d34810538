"""What a model's dimensions come to: work of a token and of a tile, numbers of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preshard.packer_service.ingest.families.folder import load_family
from preshard.packer_service.ingest.families.settings import ModelFolder
from preshard.schemas.config import CostConfig, VisionConfig
from preshard.schemas.encoder import VisionEncoder, encoder_of
from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TILE


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
        source: where the dimensions are from.
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
        """Parameters of the embedding and of the output projection."""
        return self.hidden * self.vocab * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All of them but norms and biases."""
        return self.layers * self.layer_parameters + self.embeddings + self.vision_parameters

    @property
    def tile_flops(self) -> int:
        """Forward operations of one tile, over all layers and heads."""
        return 4 * TILE * TILE * self.heads * self.head_dim * self.layers


def configured_sizes(
    cost: CostConfig, vision: VisionConfig, encoder: VisionEncoder | None, source: str
) -> ModelDimensions:
    """The dimensions of a configuration's ``cost``.

    Args:
        cost: the dimensions.
        vision: sizes of square crops.
        encoder: the encoder of the model folder that the dataset was packed for; else it is that of ``cost``.
        source: where the dimensions are from.
    """
    of_encoder = _encoder_parameters(encoder) if encoder else _configured_encoder(cost, vision)
    return ModelDimensions(
        hidden=cost.hidden_size,
        layers=cost.num_layers,
        heads=cost.num_attention_heads,
        kv_heads=cost.num_key_value_heads,
        head_dim=cost.head_dim,
        vocab=cost.vocab_size,
        inner=cost.intermediate_size,
        stored_inner=cost.intermediate_size,
        tied=False,
        vision_parameters=of_encoder,
        vision_width=encoder.hidden_size if encoder else cost.vision_hidden_size,
        vision_layers=encoder.layers + encoder.windowed_layers if encoder else cost.vision_num_layers,
        source=source,
    )


def folder_sizes(folder: str) -> ModelDimensions:
    """The dimensions of a model folder. No weights are read.

    Raises:
        ConfigError: the folder is no model folder of a known kind, or a dimension is missing.
    """
    config = ModelFolder(Path(folder)).config
    nested = config.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else config
    hidden, heads = _positive(text, "hidden_size"), _positive(text, "num_attention_heads")
    width = _positive(text, "intermediate_size")
    experts = next((text[name] for name in ("num_experts", "num_local_experts") if text.get(name)), None)
    expert_width = _positive(text, "moe_intermediate_size", width) if experts else width
    encoder = encoder_of(load_family(folder).family.settings)
    return ModelDimensions(
        hidden=hidden,
        layers=_positive(text, "num_hidden_layers"),
        heads=heads,
        kv_heads=_positive(text, "num_key_value_heads", heads),
        head_dim=_positive(text, "head_dim", hidden // heads),
        vocab=_positive(text, "vocab_size"),
        inner=expert_width * (_positive(text, "num_experts_per_tok") if experts else 1),
        stored_inner=expert_width * (experts or 1),
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        vision_parameters=_encoder_parameters(encoder) if encoder else 0,
        vision_width=encoder.hidden_size if encoder else 0,
        vision_layers=encoder.layers + encoder.windowed_layers if encoder else 0,
        source=f"{folder}/config.json",
    )


def _positive(values: dict[str, Any], name: str, default: int | None = None) -> int:
    value = default if values.get(name) is None else values[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"advise --model: {name} of config.json is {value!r}; a whole number of at least 1 is legal")
    return value


def _encoder_parameters(encoder: VisionEncoder) -> int:
    width = encoder.hidden_size
    layer = 4 * width * width + encoder.mlp_matrices * width * encoder.intermediate_size
    rows = encoder.row_inputs * encoder.row_hidden + encoder.row_hidden * encoder.row_outputs
    return encoder.patch_inputs * width + (encoder.layers + encoder.windowed_layers) * layer + rows


def _configured_encoder(cost: CostConfig, vision: VisionConfig) -> int:
    """As the cost of a square crop counts it: the encoder's layers, attention pooling and a SwiGLU."""
    width = cost.vision_hidden_size
    layer = 4 * width * width + 2 * width * cost.vision_intermediate_size
    pooling = 7 * width * width
    connector = cost.intermediate_size * (2 * width + cost.hidden_size)
    return 3 * vision.patch_size**2 * width + cost.vision_num_layers * layer + pooling + connector
