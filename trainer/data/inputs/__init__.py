"""A rank's stored pictures as the model's own processor gives them: ``pixel_values`` and what goes with it."""

from __future__ import annotations

from preshard.trainer.data.inputs.build import model_inputs
from preshard.trainer.data.inputs.units import InputUnit

__all__ = ["InputUnit", "model_inputs"]
