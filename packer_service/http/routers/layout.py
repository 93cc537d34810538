"""One layout of a pack: what each rank owns and computes, the mask in cells, and the crops as they are stored."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Path, Query, Response
from jaxtyping import Bool, Int32, Int64

from preshard.packer_service.http.answers.choice import choose
from preshard.packer_service.http.answers.measures import layout_figures
from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.dataset.sample import ServedSample, read_sample, stored_layout
from preshard.packer_service.http.models.packs import CpRank, MaskPicture, PackLayout, RingRank, RingStep
from preshard.packer_service.http.parameters import Layout, PackId, Ring
from preshard.packer_service.http.problems import not_found, not_legal
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.layout.area import most_common, shares
from preshard.packer_service.layout.measures import LayoutMeasures, gather_cost, key_weight, measure_layout, ring_cost
from preshard.schemas.encode import tar_header
from preshard.schemas.errors import ImagesInvalid
from preshard.schemas.layout import TILE, TokenLayout, rank_positions, slice_positions
from preshard.schemas.manifest import SHARDS
from preshard.schemas.members import TAR_BLOCK, image_member
from preshard.schemas.sequence import IGNORE_INDEX

router = APIRouter(prefix="/v1/datasets/{name}/packs", tags=["packs"], route_class=DatasetRoute)

Ulysses = Annotated[int, Query(description="Ulysses degree: pieces of each ring rank's slice.", ge=1, le=4096)]


@router.get("/{pack_id}/layout", summary="Owners and loads of a pack under one layout")
def layout(
    dataset: ServedDataset, pack_id: PackId, layout: Layout = None, ring: Ring = None, ulysses: Ulysses = 1
) -> PackLayout:
    """Measured from the pack's own mask and stored layout, as by `preshard verify`. The CP size is ring x ulysses."""
    chosen = choose(dataset.config, layout, ring, None)
    slice_tokens = dataset.config.seq_len // chosen.ring_degree
    if slice_tokens % ulysses:
        raise not_legal(f"query.ulysses: {ulysses} does not divide a slice of {slice_tokens} tokens")
    sample = read_sample(dataset, pack_id)
    stored = stored_layout(dataset, sample, chosen.layout, chosen.ring_degree)
    measured = measure_layout(sample.index, stored)
    weight = key_weight(dataset.config.cost)
    imbalance = float(measured.area.max() / (measured.area.mean() or np.nan))
    floor = measured.tile_floor
    return PackLayout(
        pack_id=pack_id,
        layout=stored.scheme,
        ring_degree=stored.ring_degree,
        ulysses_degree=ulysses,
        cp_size=stored.ring_degree * ulysses,
        seq_len=dataset.config.seq_len,
        block_size=dataset.config.block_size,
        tile=TILE,
        runs=[(rank, start, length) for rank, start, length in stored.runs.tolist()],
        whole_tiles=measured.whole_tiles,
        tile_floor=floor,
        gather_path_tiles=measured.gather_path,
        ring_path_tiles=measured.ring_path,
        gather_path=measured.gather_path / floor if floor else None,
        ring_path=measured.ring_path / floor if floor else None,
        traffic=measured.kv_traffic,
        imbalance=None if np.isnan(imbalance) else imbalance,
        figures=layout_figures(dataset, chosen, pack_id),
        gather_cost=gather_cost(measured.gather_path, int(measured.keys_fetched.max()), weight),
        ring_cost=ring_cost(measured.ring_path, measured.slice_tokens, stored.ring_degree, weight),
        tiles=measured.tiles.tolist(),
        steps=_steps(measured.tiles),
        ranks=[_ring_rank(sample, stored, measured, rank) for rank in range(stored.ring_degree)],
        cp_ranks=_cp_ranks(sample, stored, ulysses),
    )


def _steps(tiles: Int64[np.ndarray, "ring ring"]) -> list[RingStep]:
    ranks = np.arange(len(tiles))
    steps = []
    for step in ranks:
        each = tiles[ranks, (ranks - step) % len(ranks)]
        steps.append(RingStep(step=int(step), tiles=each.tolist(), most=int(each.max()), slowest=int(each.argmax())))
    return steps


def _ring_rank(sample: ServedSample, stored: TokenLayout, measured: LayoutMeasures, rank: int) -> RingRank:
    own = slice_positions(stored.runs, rank)
    return RingRank(
        ring_rank=rank,
        tokens=len(own),
        padding=int((sample.sequence.doc_ids[own] < 0).sum()),
        loss_tokens=int((sample.sequence.labels[own] != IGNORE_INDEX).sum()),
        attention_area=int(measured.area[rank]),
        tiles=int(measured.tiles[rank].sum()),
        keys_fetched=int(measured.keys_fetched[rank]),
        needs=ranges(stored.needs[rank]),
    )


def ranges(flags: Bool[np.ndarray, "blocks"]) -> list[tuple[int, int]]:
    """Half-open ranges of the flags that are set."""
    changes = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(start), int(end)) for start, end in changes.reshape(-1, 2)]


def _cp_ranks(sample: ServedSample, stored: TokenLayout, ulysses: int) -> list[CpRank]:
    boundaries = sample.head.image_shard_boundaries.get(str(stored.ring_degree * ulysses))
    ranks = []
    for cp_rank in range(stored.ring_degree * ulysses):
        ring_rank, ulysses_rank = divmod(cp_rank, ulysses)
        own = rank_positions(stored.runs, ring_rank=ring_rank, ulysses_degree=ulysses, ulysses_rank=ulysses_rank)
        part = boundaries[str(cp_rank)] if boundaries else None
        ranks.append(
            CpRank(
                cp_rank=cp_rank,
                ring_rank=ring_rank,
                ulysses_rank=ulysses_rank,
                runs=_runs(own),
                first_image=part["start_image_idx"] if part else None,
                end_image=part["end_image_idx"] if part else None,
                pooled_tokens=part["end_pool_idx"] - part["start_pool_idx"] if part else None,
            )
        )
    return ranks


def _runs(positions: Int64[np.ndarray, "local"]) -> list[tuple[int, int]]:
    """Ranges (start, length) in natural order of positions that come in slice order."""
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    edges = np.concatenate([[0], breaks, [len(positions)]])
    return [(int(positions[a]), int(b - a)) for a, b in pairwise(edges) if b > a]


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
