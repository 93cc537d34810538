"""The crops of a pack as they are stored."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from preshard.packer_service.http.dataset.sample import read_sample
from preshard.packer_service.http.parameters import PackId, ServedDataset
from preshard.packer_service.http.problems import not_found
from preshard.packer_service.http.service import DatasetRoute
from preshard.schemas.codec import TAR_BLOCK, image_member, tar_header
from preshard.schemas.errors import ImagesInvalid
from preshard.schemas.manifest import SHARDS

router = APIRouter(prefix="/v1/datasets/{name}/packs", tags=["packs"], route_class=DatasetRoute)

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
