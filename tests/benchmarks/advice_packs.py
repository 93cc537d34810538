"""Packs of three kinds that advice is checked with, and what it reads of them, without a dataset on disk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.solve import solve_layouts
from preshard.packer_service.layout.tiles import whole_tiles
from preshard.packer_service.packs.measures import MeasureRows
from preshard.packer_service.packs.pack import image_boundaries
from preshard.packer_service.plan.cost import CostModel
from preshard.packer_service.report.advice.estimate.loads import PackLoads, read_pack_loads
from preshard.packer_service.report.measures import SampledMeasures
from preshard.schemas.config import PackConfig
from preshard.schemas.sequence import MaskArrays

KINDS = ("many short documents", "long videos", "one long text")
FRAME, TIMES, FRAMES = 81, 6, 128
"""Rows of a frame, tokens of text before it, and frames of a video."""


@dataclass(frozen=True, kw_only=True)
class MadePack:
    """The mask of a pack, where its documents begin and end, and the work of its frames."""

    mask: MaskArrays
    edges: np.ndarray
    frames: int


def made_packs(kind: str, config: PackConfig, number: int, seed: int = 0) -> list[MadePack]:
    """Packs of one kind. Documents begin at multiples of the configuration's alignment."""
    rng = np.random.default_rng(seed)
    return [_pack(kind, config, rng) for _ in range(number)]


def _pack(kind: str, config: PackConfig, rng: np.random.Generator) -> MadePack:
    seq_len, step = config.seq_len, config.alignment
    if kind == KINDS[0]:
        lengths = np.clip(rng.lognormal(np.log(400), 1.0, seq_len), 16, seq_len // 4).astype(int)
    elif kind == KINDS[1]:
        lengths = rng.integers(FRAMES // 3, FRAMES, seq_len) * (FRAME + TIMES) + rng.integers(100, 800, seq_len)
    else:
        lengths = np.array([seq_len - int(rng.integers(0, seq_len // 16))])
    starts = np.concatenate([[0], np.cumsum(-(-lengths // step) * step)])
    starts = starts[starts < seq_len]
    doc_ids, groups, frames = np.full(seq_len, -1, np.int32), np.full(seq_len, -1, np.int32), 0
    for document, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=False)):
        end = min(start + length, seq_len)
        doc_ids[start:end] = document
        for at in range(start + TIMES, end - FRAME, FRAME + TIMES) if kind == KINDS[1] else ():
            groups[at : at + FRAME] = frames
            frames += 1
    mask = MaskArrays(doc_ids=doc_ids, branch_ids=np.zeros(seq_len, np.int32), group_ids=groups)
    return MadePack(mask=mask, edges=np.unique([*starts, seq_len]).astype(np.int64), frames=frames)


def loads_of(packs: list[MadePack], config: PackConfig, gpus: int, frame_load: int | None = None) -> PackLoads:
    """Loads that a dataset of these packs would have in its tables; ``frame_load`` in place of a frame's work."""
    rows, columns = MeasureRows(), {name: [] for name in ("n_tokens", "n_units", "load", "attention_tiles")}
    each = CostModel.of(config).vision_work_per_crop if frame_load is None else frame_load
    for number, pack in enumerate(packs):
        index, units = MaskIndex.of(pack.mask), np.arange(1, pack.frames + 1)
        layouts = solve_layouts(
            index,
            segment_edges=pack.edges,
            schemes=config.layouts,
            ring_degrees=config.ring_degrees,
            block_size=config.block_size,
        )
        work = np.full(pack.frames, each)
        boundaries = image_boundaries(work, units, units * FRAME, config.cp_sizes)
        rows.add_pack(number, index, layouts, boundaries, units, work)
        found = (int((pack.mask.doc_ids >= 0).sum()), pack.frames, pack.frames * each, whole_tiles(index))
        for name, value in zip(columns, found, strict=True):
            columns[name].append(value)
    of_frames = {"n_patches": config.vision.patches_per_crop, "n_pooled_tokens": FRAME}

    def column(name: str) -> np.ndarray:
        return np.array(columns[name] if name in columns else np.array(columns["n_units"]) * of_frames[name], np.int64)

    return read_pack_loads(SampledMeasures(config=config, rows=rows.table()), column, gpus=gpus)
