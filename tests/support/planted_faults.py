"""Mistakes made on purpose, which the comparison of packs with documents alone must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from preshard.trainer.data.batch import RankBatch
from preshard.trainer.families.family import ModelFamily
from preshard.trainer.models.packed import PackedModel

Made = tuple[RankBatch, ModelFamily]
Fault = Callable[[RankBatch, ModelFamily], Made | None]
"""The batch and the family as the mistake has them; None where a pack gives no occasion for it."""


@contextmanager
def planted(name: str | None, packed: PackedModel, batch: RankBatch, *, last: bool) -> Iterator[tuple[RankBatch, bool]]:
    """The batch to go on with, and whether the mistake was made. Only the last rank of a pack makes one of its own."""
    family = packed.family
    wrong = None
    if name is not None and family is not None and (last or name in ON_ALL_RANKS):
        wrong = FAULTS[name](batch, family)
    if wrong is None:
        yield batch, False
        return
    packed.family = wrong[1]
    try:
        yield wrong[0], True
    finally:
        packed.family = family


def _swapped_axes(batch: RankBatch, family: ModelFamily) -> Made | None:
    """Height and width of positions exchanged."""
    turned = batch.position_ids[[0, 2, 1]]
    return None if turned.equal(batch.position_ids) else (replace(batch, position_ids=turned), family)


def _exchanged_features(batch: RankBatch, family: ModelFamily) -> Made | None:
    """Two units of a rank exchanged, as far as both have rows."""
    if len(batch.units) < 2:
        return None
    first, second = sorted(batch.units, key=lambda unit: unit.kind != "image")[:2]
    count = min(first.rows, second.rows)

    def encode(core: Any, inputs: Any) -> Tensor:
        made = family.encode(core, inputs)
        order = torch.arange(len(made))
        mine, other = torch.arange(count), first.rows + torch.arange(count)
        order[mine], order[other] = other, mine
        return made[order]

    return batch, replace(family, encode=encode)


def _encoded_twice(batch: RankBatch, family: ModelFamily) -> Made | None:
    """The units' features are right, and their gradients reach the encoder twice."""
    if not batch.units:
        return None

    def encode(core: Any, inputs: Any) -> Tensor:
        made = family.encode(core, inputs)
        return made + made - made.detach()  # one call: other ranks would wait for a second one's collectives

    return batch, replace(family, encode=encode)


def _mark_outside(batch: RankBatch, family: ModelFamily) -> Made | None:
    """The last mark of a unit sees only what comes before it, and is not seen by the unit."""
    marks = batch.group_ids >= 0
    marks[batch.pool_positions] = False
    if not marks.any():
        return None
    groups = batch.group_ids.clone()
    groups[torch.nonzero(marks)[-1]] = -1
    return replace(batch, group_ids=groups), family


def _late_deep_features(batch: RankBatch, family: ModelFamily) -> Made | None:
    """Adds after the second layer what belongs after the first."""
    if not (batch.pool_ids >= 0).any():
        return None

    return batch, _LateFamily(**{each.name: getattr(family, each.name) for each in fields(family)})


@dataclass(frozen=True, kw_only=True)
class _LateFamily(ModelFamily):
    def embedded(self, embeddings: Tensor, features: Tensor, slots: Tensor) -> dict[str, Any]:
        given = super().embedded(embeddings, features, slots)
        deep = given["deepstack_visual_embeds"]
        return {**given, "deepstack_visual_embeds": [torch.zeros_like(deep[0]), *deep]}


FAULTS: dict[str, Fault] = {
    "position axis swapped": _swapped_axes,
    "features of two units exchanged": _exchanged_features,
    "a rank's units encoded twice": _encoded_twice,
    "a mark left out of its group": _mark_outside,
    "deep features one layer late": _late_deep_features,
}
ON_ALL_RANKS = ("a mark left out of its group",)
"""Faults that would be wrong in the dataset and not on a rank."""
