"""A rank's stored pictures as the model's own processor gives them: ``pixel_values`` and what goes with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from preshard.schemas.errors import ReaderError
from preshard.trainer.data.inputs.internvl import internvl_inputs
from preshard.trainer.data.inputs.molmo2 import molmo2_inputs
from preshard.trainer.data.inputs.qwen_vl import qwen_vl_inputs
from preshard.trainer.data.inputs.units import InputUnit

BUILDERS: dict[str, Callable[[Mapping[str, Any], Sequence[InputUnit]], dict[str, np.ndarray]]] = {
    "qwen_vl": qwen_vl_inputs,
    "molmo2": molmo2_inputs,
    "internvl": internvl_inputs,
}
"""What builds the inputs, by the ``inputs`` of the manifest's settings."""


def model_inputs(settings: Mapping[str, Any], units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """The vision inputs of some units in the model's own names, float32 and int64, as its processor gives them.

    They are equal bit for bit if pictures are stored as PNG. Without units there are none.

    Args:
        settings: the family's, as the manifest has them.
        units: the units of a rank, in order.

    Raises:
        ReaderError: the dataset was packed for no model, or for one that reads only text.
    """
    builder = BUILDERS.get(str(settings.get("inputs")))
    if builder is None:
        raise ReaderError(
            "model inputs: the dataset was not packed for a model that reads images; pack it with --set model=DIR"
        )
    return builder(settings, units)


__all__ = ["InputUnit", "model_inputs"]
