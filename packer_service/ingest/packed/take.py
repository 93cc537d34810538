"""A document out of a pack, as it was rendered: arrays, units and crops in its own numbering."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from preshard.packer_service.ingest.packed.dataset import StoredPack
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.plan.cost import CostModel
from preshard.schemas.config import PackConfig


def taken_document(pack: StoredPack, number: int, *, merge: int) -> RenderedDocument:
    """One document (or a piece of one) of a pack.

    Args:
        pack: the pack.
        number: the document's number in it.
        merge: of the model that the dataset was packed for, 1 without one.
    """
    span, sequence = pack.head.documents[number], pack.sequence
    own = slice(span.start, span.start + span.length)
    units, crops = pack.units.of_document(number, span.start, pack.shard, pack.crops_at)
    branch_ids, n_branches = sequence.branch_ids[own], pack.numbers.n_branches[number]
    return RenderedDocument(
        tokens=sequence.tokens[own],
        labels=sequence.labels[own],
        loss_weights=sequence.loss_weights[own],
        position_ids=sequence.position_ids[:, own],
        branch_ids=branch_ids,
        group_ids=pack.numbers.group_ids[own],
        unit_ids=pack.numbers.unit_ids[own],
        units=units,
        n_shared=int(np.searchsorted(branch_ids, 1)) if n_branches else 0,
        n_branches=n_branches,
        merge=merge,
        media=crops,
        label_cut=span.label_cut,
        medium_cut=span.medium_cut,
        origin=pack,
    )


def weighed(document: RenderedDocument, config: PackConfig) -> RenderedDocument:
    """The document with the encoder's work as this configuration counts it.

    Of squares it follows from ``cost``, which may change; a model's own encoder is part of the model.
    """
    if config.model is not None or not len(document.units):
        return document
    loads = document.units.crops * CostModel.of(config).vision_work_per_crop
    if np.array_equal(loads, document.units.loads):
        return document
    return replace(document, units=replace(document.units, loads=loads))
