"""Dimensions of the vision-language model, checked against each other and against the dataset it trains on."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from schemas.config import VisionConfig
from schemas.errors import ConfigError
from schemas.manifest import TokenizerEntry
from schemas.validation import first_violation

Positive = Annotated[int, Field(ge=1)]


class _Dimensions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class DecoderConfig(_Dimensions):
    """The language model: pre-norm, rotary positions, grouped-query attention, SwiGLU."""

    hidden_size: Positive = Field(description="Width of the residual stream.")
    num_layers: Positive = Field(description="Layers.")
    num_attention_heads: Positive = Field(description="Query heads; a multiple of num_key_value_heads.")
    num_key_value_heads: Positive = Field(description="Key and value heads.")
    head_dim: Positive = Field(description="Width of a head; even, as rotary positions rotate pairs.")
    intermediate_size: Positive = Field(description="Width of the SwiGLU.")
    vocab_size: Positive | None = Field(
        None, description="Rows of the embedding; null for as many as the dataset's tokenizer has."
    )
    rope_theta: float = Field(1_000_000.0, gt=1, description="Base of the wavelengths of rotary positions.")
    rms_norm_eps: float = Field(1e-6, gt=0, description="Added to the mean square in each norm.")
    tie_embeddings: bool = Field(False, description="Whether the output projection is the embedding.")

    @model_validator(mode="after")
    def _heads_fit(self) -> DecoderConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary positions rotate pairs: take an even one")
        return self


class VisionEncoderConfig(_Dimensions):
    """The vision encoder and its connector. Sizes left null are those that the dataset was packed for."""

    hidden_size: Positive = Field(description="Width of the encoder; a multiple of num_attention_heads.")
    num_layers: Positive = Field(description="Layers.")
    num_attention_heads: Positive = Field(description="Heads of the encoder, and of the pooling.")
    intermediate_size: Positive = Field(description="Width of the encoder's MLP.")
    image_size: Positive | None = Field(None, description="Side of a crop in pixels.")
    patch_size: Positive | None = Field(None, description="Side of a patch in pixels; divides image_size.")
    pool_size: Positive | None = Field(None, description="Patches along a side of a pooling window.")
    layer_norm_eps: float = Field(1e-6, gt=0, description="Added to the variance in each norm.")

    @model_validator(mode="after")
    def _sizes_fit(self) -> VisionEncoderConfig:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.image_size and self.patch_size and self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        return self


class ModelConfig(_Dimensions):
    """The whole model."""

    decoder: DecoderConfig = Field(description="The language model.")
    vision: VisionEncoderConfig = Field(description="The vision encoder and its connector.")

    def for_dataset(self, vision: VisionConfig, tokenizer: TokenizerEntry) -> ModelConfig:
        """These dimensions with every size filled in that the dataset decides.

        Raises:
            ConfigError: a given size contradicts the dataset: crops of another size, patches or windows that would make
                other pooled rows than the sequence has places for, or fewer embeddings than tokens.
        """
        fixed = {name: getattr(vision, name) for name in ("image_size", "patch_size", "pool_size")}
        for name, there in fixed.items():
            here = getattr(self.vision, name)
            if here not in (None, there):
                raise ConfigError(
                    f"model: vision.{name} is {here}; the dataset was packed with vision.{name} {there}: "
                    f"leave it null to take the dataset's, or pack with vision.{name} {here}"
                )
        vocab_size = self.decoder.vocab_size or tokenizer.vocab_size
        if vocab_size < tokenizer.vocab_size:
            raise ConfigError(
                f"model: decoder.vocab_size is {vocab_size}; the dataset's tokenizer {tokenizer.name} has "
                f"{tokenizer.vocab_size} tokens: give at least as many, or null"
            )
        encoder = VisionEncoderConfig.model_validate({**self.vision.model_dump(), **fixed})
        return ModelConfig(decoder=self.decoder.model_copy(update={"vocab_size": vocab_size}), vision=encoder)


def parse_model_config(values: object) -> ModelConfig:
    """A model's dimensions from a mapping, such as a YAML file's.

    Raises:
        ConfigError: a key is unknown or missing, or a value is not legal; one line, which names it.
    """
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"model: {first_violation(error)}") from None


PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(
        decoder=DecoderConfig(
            hidden_size=64,
            num_layers=2,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=160,
            rope_theta=10_000.0,
            tie_embeddings=True,
        ),
        vision=VisionEncoderConfig(hidden_size=32, num_layers=2, num_attention_heads=4, intermediate_size=96),
    ),
    "qwen3-8b-siglip2": ModelConfig(
        decoder=DecoderConfig(
            hidden_size=4096,
            num_layers=36,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            intermediate_size=12288,
            vocab_size=151936,
        ),
        vision=VisionEncoderConfig(
            hidden_size=1152,
            num_layers=25,
            num_attention_heads=16,
            intermediate_size=4304,
            patch_size=14,
        ),
    ),
}
"""Models by name. ``tiny`` trains on a CPU. ``qwen3-8b-siglip2`` has the dimensions from which the packer computes its
default costs: those of Qwen3-8B, and of the 25 layers of SigLIP 2 so400m that Molmo2-8B runs. It has neither their
weights nor a norm on queries and keys."""
