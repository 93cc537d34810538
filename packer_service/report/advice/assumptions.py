"""Everything that the estimates rest on, as the answer lists it."""

from __future__ import annotations

from preshard.packer_service.report.advice.estimate.outside import OutsideAttention
from preshard.packer_service.report.advice.figures import Assumption, SplitAdvice
from preshard.packer_service.report.advice.question import MODEL_KEYS, AdviceQuestion
from preshard.schemas.model.devices import Device
from preshard.schemas.model.dimensions import ModelDimensions
from preshard.schemas.model.savings import Saving

PREMISES = (
    "parameters, gradients and the optimiser's state are sharded over all devices, and each rank takes one pack a step",
    "every token carries loss, and the vision encoder trains",
    "transfers of parameters and of a ring hide behind computing; heads, gathered keys and image features do not",
    "times on CUDA are estimates that no run has confirmed",
)
"""Premises that no option changes."""

_OF_MODEL = dict(zip(MODEL_KEYS, ("hidden", "layers", "heads", "kv_heads", "head_dim", "inner", "vocab"), strict=True))


def assumptions_of(
    question: AdviceQuestion, sizes: ModelDimensions, fastest: SplitAdvice | None, seq_len: int
) -> list[Assumption]:
    """Each value with its meaning and where it is from.

    Args:
        question: devices and assumptions.
        sizes: the model.
        fastest: the split that the estimated ``linear_efficiency`` is of, if there is one.
        seq_len: tokens of a pack.
    """
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
        elif name == "linear_efficiency" and value is None and fastest is not None:
            value, source = _estimated(question, sizes, fastest, seq_len)
        if getattr(question, name) is not None and name in question.model_fields_set:
            source = "given"
        found.append(Assumption(name=name, value=value, meaning=field.description or "", source=source))
    return found


def _estimated(question: AdviceQuestion, sizes: ModelDimensions, split: SplitAdvice, seq_len: int) -> tuple[float, str]:
    """Efficiency of the products of a split with the blocks as they are asked for, and a word on the others."""
    outside = OutsideAttention(sizes=sizes, question=question)
    saving = Saving(recompute=split.recompute, tiled=split.mlp_tiles > 1, offload=split.offload)
    tokens = seq_len / (split.ulysses_degree * split.ring_degree)
    own, other = (
        round(outside.efficiency(tokens, saving, question.gpus, compiled=compiled), 3)
        for compiled in (question.compiled, not question.compiled)
    )
    return own, f"estimated, of the first split; {other:g} with {'plain' if question.compiled else 'compiled'} blocks"
