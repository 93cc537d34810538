"""Entry of the manifest on a model's vision encoder: from it follow the patches and the load of every unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from preshard.schemas.files.validation import first_violation

ENCODER_KEY = "encoder"
"""Its key in the ``settings`` of the manifest's ``model``."""

TIME_KEY = "tokens_per_second"
"""Key of the same ``settings``: growth of the temporal position in a second of video, where it follows time."""

Size = Annotated[int, Field(ge=0, lt=2**31)]
"""A dimension, or a number of layers."""

Side = Annotated[int, Field(ge=1, lt=2**31)]
"""A size that something is divided by."""


class VisionEncoder(BaseModel):
    """Dimensions of a vision encoder.

    Attributes:
        patch_size: height and width of a patch in pixels.
        temporal_patch_size: crops that one patch covers; where there are several, they are frames of a video.
        hidden_size: width of the hidden states.
        intermediate_size: width inside the MLP.
        mlp_matrices: matrices of the MLP: 2, or 3 with a gate.
        layers: that attend among all patches of a crop, or of the crops that share their patches.
        windowed_layers: that attend inside windows.
        window_size: side of these windows in patches, 0 without any.
        patch_inputs: numbers that the embedding, and a pooling of patches, take for each patch.
        row_inputs: width of what the two layers take that make a row of patches.
        row_hidden: width between them.
        row_outputs: width of what they give.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    patch_size: Annotated[list[Side], Field(min_length=2, max_length=2)]
    temporal_patch_size: Side
    hidden_size: Size
    intermediate_size: Size
    mlp_matrices: Size
    layers: Size
    windowed_layers: Size
    window_size: Size
    patch_inputs: Size
    row_inputs: Size
    row_hidden: Size
    row_outputs: Size


def encoder_of(settings: Mapping[str, Any]) -> VisionEncoder | None:
    """The encoder that a model's settings describe; None for a model that reads only text.

    Raises:
        ValueError: they describe it in another way.
    """
    if ENCODER_KEY not in settings:
        return None
    try:
        return VisionEncoder.model_validate(settings[ENCODER_KEY])
    except ValidationError as error:
        raise ValueError(f"{ENCODER_KEY}: {first_violation(error)}") from None


def tokens_per_second(settings: Mapping[str, Any]) -> float | None:
    """Growth of the temporal position in a second of video; None where it does not follow time.

    Raises:
        ValueError: it is not a number.
    """
    value = settings.get(TIME_KEY)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{TIME_KEY} is {value!r}, not a number")
    return value
