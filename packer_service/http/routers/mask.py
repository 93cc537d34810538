"""The mask of a pack as a picture."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from jaxtyping import Int32

from preshard.packer_service.http.answers.choice import choose
from preshard.packer_service.http.answers.layouts import stored_layout
from preshard.packer_service.http.dataset.sample import read_sample
from preshard.packer_service.http.models.packs import MaskPicture
from preshard.packer_service.http.parameters import Layout, PackId, Ring, ServedDataset
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.layout.picture import most_common, shares
from preshard.schemas.layout import TokenLayout

router = APIRouter(prefix="/v1/datasets/{name}/packs", tags=["packs"], route_class=DatasetRoute)


@router.get("/{pack_id}/mask", summary="The mask as a picture in cells, with owners")
def mask(
    dataset: ServedDataset,
    pack_id: PackId,
    size: Annotated[int, Query(description="Most cells along one side.", ge=1, le=512)] = 128,
    layout: Layout = None,
    ring: Ring = None,
) -> MaskPicture:
    """The shares are exact, not estimated from a sample of each cell."""
    chosen = choose(dataset.config, layout, ring, None)
    sample = read_sample(dataset, pack_id)
    stored = stored_layout(dataset, sample, chosen.layout, chosen.ring_degree)
    cell = -(-dataset.config.seq_len // size)
    share = shares(sample.index, cell)
    return MaskPicture(
        pack_id=pack_id,
        seq_len=dataset.config.seq_len,
        size=len(share),
        cell=cell,
        share=share.round(4).tolist(),
        documents=most_common(sample.sequence.doc_ids, cell).tolist(),
        layout=stored.scheme,
        ring_degree=stored.ring_degree,
        owners=most_common(_owners(stored), cell).tolist(),
    )


def _owners(stored: TokenLayout) -> Int32[np.ndarray, "seq"]:
    """Ring rank of every token, in natural order."""
    in_order = stored.runs[np.argsort(stored.runs[:, 1])]
    return np.repeat(in_order[:, 0], in_order[:, 2])
