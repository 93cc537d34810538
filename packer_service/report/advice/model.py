"""The dimensions of the model that advice is for: those of a dataset's configuration, or of a model folder."""

from __future__ import annotations

from pathlib import Path

from preshard.packer_service.ingest.families.folder import load_family
from preshard.packer_service.ingest.families.settings import ModelFolder
from preshard.schemas.manifest import VisionEncoder, encoder_of
from preshard.schemas.model.dimensions import (
    ModelDimensions,
    encoder_parameters,
    model_dimensions,
    rest_parameters,
    row_width,
)
from preshard.schemas.sections import CostConfig, ImageBackend, VisionConfig


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
    of_encoder = encoder_parameters(encoder) if encoder else _configured_encoder(cost, vision)
    return ModelDimensions(
        hidden=cost.hidden_size,
        layers=cost.num_layers,
        heads=cost.num_attention_heads,
        kv_heads=cost.num_key_value_heads,
        head_dim=cost.head_dim,
        value_dim=cost.head_dim,
        vocab=cost.vocab_size,
        inner=cost.intermediate_size,
        stored_inner=cost.intermediate_size,
        tied=False,
        vision_parameters=of_encoder,
        vision_width=encoder.hidden_size if encoder else cost.vision_hidden_size,
        vision_layers=encoder.layers + encoder.windowed_layers if encoder else cost.vision_num_layers,
        source=source,
        vision_row=row_width(encoder) if encoder else 0,
        vision_rest=rest_parameters(encoder) if encoder else 0,
    )


def folder_sizes(folder: str) -> ModelDimensions:
    """The dimensions of a model folder. No weights are read.

    Raises:
        ConfigError: the folder is no model folder of a known kind, or a dimension is missing.
    """
    return _read_folder(folder, "torchvision")[0]


def folder_cost(folder: str, backend: ImageBackend) -> dict[str, int]:
    """The keys of ``cost`` that a model folder decides. No weights are read.

    Raises:
        ConfigError: the folder is no model folder of a known kind, or a dimension is missing.
    """
    sizes, encoder = _read_folder(folder, backend)
    of_decoder = {
        "hidden_size": sizes.hidden,
        "num_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.key_and_value // 2,
        "intermediate_size": sizes.inner,
        "vocab_size": sizes.vocab,
    }
    if encoder is None:
        return of_decoder
    return of_decoder | {
        "vision_hidden_size": encoder.hidden_size,
        "vision_num_layers": encoder.layers + encoder.windowed_layers,
        "vision_intermediate_size": encoder.intermediate_size,
    }


def _read_folder(folder: str, backend: ImageBackend) -> tuple[ModelDimensions, VisionEncoder | None]:
    encoder = encoder_of(load_family(folder, backend).family.settings)
    return model_dimensions(ModelFolder(Path(folder)).config, encoder, f"{folder}/config.json"), encoder


def _configured_encoder(cost: CostConfig, vision: VisionConfig) -> int:
    """Parameters of the encoder as a square crop's cost counts it: its layers, attention pooling and a SwiGLU."""
    width = cost.vision_hidden_size
    layer = 4 * width * width + 2 * width * cost.vision_intermediate_size
    pooling = 7 * width * width
    connector = cost.intermediate_size * (2 * width + cost.hidden_size)
    return 3 * vision.patch_size**2 * width + cost.vision_num_layers * layer + pooling + connector
