"""A pack as pictures: its mask in cells, and its crops as they are stored."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Path, Query, Response
from jaxtyping import Int32

from preshard.packer_service.http.answers.choice import choose
from preshard.packer_service.http.dataset.sample import read_sample, stored_layout
from preshard.packer_service.http.models.packs import MaskPicture
from preshard.packer_service.http.parameters import Layout, PackId, Ring, ServedDataset
from preshard.packer_service.http.problems import not_found
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.layout.picture import most_common, shares
from preshard.schemas.codec import TAR_BLOCK, image_member, tar_header
from preshard.schemas.errors import ImagesInvalid
from preshard.schemas.layout import TokenLayout
from preshard.schemas.manifest import SHARDS

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


ImageIndex = Annotated[int, Path(description="A crop's number in its pack.", ge=0, lt=2**31, examples=[0])]


@router.get(
    "/{pack_id}/images/{index}",
    summary="One crop",
    response_class=Response,
    responses={200: {"description": "The crop's bytes.", "content": {"image/jpeg": {}, "image/png": {}}}},
)
def image(dataset: ServedDataset, pack_id: PackId, index: ImageIndex) -> Response:
    """Read as one range of the shard and sent as it is stored."""
    sample = read_sample(dataset, pack_id)
    if index >= len(sample.head.images):
        raise not_found("image", f"There is no crop {index}; pack {pack_id} has {len(sample.head.images)}.")
    stored, place = sample.head.images[index], sample.place
    name = image_member(place.key, index, dataset.config.image_format)
    with dataset.reading():
        if stored.offset + TAR_BLOCK + stored.size > place.size - place.header_size:
            raise ImagesInvalid(sample.where, f"image {index} lies outside its sample")
        data = dataset.read_range(
            place.shard, place.offset + place.header_size + stored.offset, TAR_BLOCK + stored.size
        )
        if data[:TAR_BLOCK] != tar_header(name, stored.size):
            raise ImagesInvalid(f"{SHARDS}/{place.shard}", f"has no {name} where sample {place.key} says")
    return Response(data[TAR_BLOCK:], media_type=f"image/{dataset.config.image_format}")
