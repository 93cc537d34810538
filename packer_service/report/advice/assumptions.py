"""Everything that the estimates rest on, as the answer lists it."""

from __future__ import annotations

from preshard.packer_service.report.advice.figures import Assumption
from preshard.packer_service.report.advice.question import MODEL_KEYS, AdviceQuestion
from preshard.schemas.model.devices import Device
from preshard.schemas.model.dimensions import ModelDimensions

PREMISES = (
    "parameters, gradients and the optimiser's state are sharded over all devices, and each rank takes one pack a step",
    "every token carries loss, and the vision encoder trains",
    "transfers of parameters and of a ring hide behind computing; heads, gathered keys and image features do not",
    "times on CUDA are estimates that no run has confirmed",
)
"""What no option changes."""

_OF_MODEL = dict(zip(MODEL_KEYS, ("hidden", "layers", "heads", "kv_heads", "head_dim", "inner", "vocab"), strict=True))


def assumptions_of(question: AdviceQuestion, sizes: ModelDimensions) -> list[Assumption]:
    """Each value with its meaning and where it is from."""
    device = question.device
    found = []
    for name, field in AdviceQuestion.model_fields.items():
        if name in ("gpus", "gpu", "limit"):
            continue
        value, source = getattr(question, name), "default"
        if name in Device._fields:
            value, source = getattr(device, name), device.source
        elif name in MODEL_KEYS:
            value, source = getattr(sizes, _OF_MODEL[name]), sizes.source
        if getattr(question, name) is not None and name in question.model_fields_set:
            source = "given"
        found.append(Assumption(name=name, value=value, meaning=field.description or "", source=source))
    return found
