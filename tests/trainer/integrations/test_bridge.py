"""Packs with pictures for the training step of Megatron Bridge, against its own functions where they are installed.

Of Bridge, PyPI has 0.3.1, which counts positions itself and as of one document. Sources of 0.6, first on ``PYTHONPATH``
with those of the Megatron-Core that they want, run everything.
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from importlib import import_module
from inspect import signature
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from bridge_packages import without_packages

from preshard.data import PackedDataset, to_bridge
from preshard.schemas.errors import ReaderError
from preshard.schemas.sequence import IGNORE_INDEX, PADDING_DOC

pytestmark = pytest.mark.process  # the packs are made by a job

SEQUENCES = ("input_ids", "labels", "loss_mask", "position_ids")
FAMILIES = ["qwen3_vl", pytest.param("qwen3_5", marks=pytest.mark.slow)]


def _packs(folder: Path) -> list[Any]:
    packs = sorted(PackedDataset(folder / "dataset"), key=lambda batch: batch.pack_id)
    assert any(PADDING_DOC in batch.doc_ids.tolist() for batch in packs)
    return packs


def _rooms(given: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Start, end of the document and end of the room, of each."""
    documents, rooms = given["cu_seqlens_q"], given.get("cu_seqlens_q_padded", given["cu_seqlens_q"])
    assert torch.equal(documents, given["cu_seqlens_kv"])
    lengths = torch.diff(documents).tolist()
    return [(start, start + n, end) for (start, end), n in zip(pairwise(rooms.tolist()), lengths, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_rooms_positions_and_pixels(folder_of: Callable[..., Path], family: str) -> None:
    """Fails when a room holds no document or a part of one, or pixels and their tokens differ in number."""
    seen, gaps = 0, 0
    config = json.loads((folder_of(family, False) / "model" / "config.json").read_text(encoding="utf-8"))
    merge = config["vision_config"]["spatial_merge_size"] ** 2
    for batch in _packs(folder_of(family, False)):
        given = to_bridge(batch)
        rooms = _rooms(given)
        assert (rooms[0][0], rooms[-1][2]) == (0, batch.seq_len == given["total_tokens"] and batch.seq_len)
        assert int(given["max_seqlen_q"]) == max(end - start for start, _, end in rooms)
        assert len(rooms) == len(batch.documents)
        for start, real, end in rooms:
            assert real > start
            assert len(set(batch.doc_ids[start:real].tolist()) - {PADDING_DOC}) == 1
            assert (batch.doc_ids[real:end] == PADDING_DOC).all()
            assert (given["position_ids"][:, 0, start] == 0).all()
            gaps += end - real
        vision = given["visual_inputs"].normalized_for_model()
        for kind, token in (("", "image"), ("_videos", "video")):
            if f"pixel_values{kind}" in vision:
                grids = vision[f"{token}_grid_thw"].prod(dim=1)
                assert len(vision[f"pixel_values{kind}"]) == grids.sum()
                assert (given["input_ids"] == config[f"{token}_token_id"]).sum() == grids.sum() // merge
                seen |= 1 if kind else 2
        later = copy(given["visual_inputs"])  # a pipeline's later stages have grids alone
        later.pixel_values = None
        assert "pixel_values" not in later.as_model_kwargs()
        assert vision.keys() == given["visual_inputs"].normalized_for_model().keys()
    assert seen == 3
    assert gaps > 0


def test_parts_and_other_models_are_refused(folder_of: Callable[..., Path]) -> None:
    """Fails when Bridge would cut a slice again, or a model of Bridge's got positions that it does not read."""
    folder = folder_of("qwen3_vl", False) / "dataset"
    part = next(iter(PackedDataset(folder, layout="zigzag", ring_degree=2)))
    with pytest.raises(ReaderError, match="has 512 of its 1024 tokens, and Bridge cuts whole packs itself"):
        to_bridge(part)
    batch = next(batch for batch in PackedDataset(folder) if batch.units)
    other = replace(batch, model=batch.model.model_copy(update={"model_type": "qwen2_5_vl"}))
    with pytest.raises(
        ReaderError, match=r"has images for qwen2_5_vl, and of Bridge's models with images only qwen3_vl"
    ):
        to_bridge(other)


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``bridge(module, ...)``: the first of these modules that Bridge has.

    What its step imports for annotations alone is replaced by mocks.
    """
    packages = (".data", ".data.packing", ".data.datasets", ".training", ".training.utils", ".models")
    root = without_packages(monkeypatch, "", *packages, ".models.qwen_vl", ".models.qwen_vl.modelling_qwen3_vl")
    if not hasattr(typing, "override"):  # Megatron-Core 0.19 is for Python 3.12
        monkeypatch.setattr(typing, "override", lambda function: function, raising=False)
    for name in ("config", "state", "losses", "utils.flop_utils", "utils.pg_utils"):
        monkeypatch.setitem(sys.modules, f"megatron.bridge.training.{name}", MagicMock())

    def load(*names: str) -> Any:
        for name in names:
            if root.joinpath(*name.split(".")).with_suffix(".py").exists():
                return import_module(f"megatron.bridge.{name}")
        pytest.skip(f"needs a megatron-bridge with {names[0]} (0.6), of which PyPI has 0.3.1")

    return load


def _token_ids(folder: Path) -> tuple[int, int, int, int]:
    config = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))
    merge = config["vision_config"]["spatial_merge_size"]
    return merge, config["image_token_id"], config["video_token_id"], config["vision_start_token_id"]


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_are_those_that_bridge_counts(folder_of: Callable[..., Path], bridge: Any, family: str) -> None:
    """Fails when an axis of a document's positions differs from what Bridge counts for it alone."""
    model = "models.qwen_vl.modelling_qwen3_vl"
    bridge(f"{model}.utils")
    rope = bridge(f"{model}.rope")
    count = getattr(rope, "get_rope_index", None) or bridge(f"{model}.utils").get_rope_index
    folder, pictures = folder_of(family, False), 0
    for batch in _packs(folder):
        given = to_bridge(batch)
        taken = {"image_grid_thw": 0, "video_grid_thw": 0}
        vision = given["visual_inputs"].as_model_kwargs()
        for number, (start, end, _) in enumerate(_rooms(given)):
            grids = {}
            for kind, name in (("image", "image_grid_thw"), ("frames", "video_grid_thw")):
                own = {unit.medium for unit in batch.units if (unit.document, unit.kind) == (number, kind)}
                if own:
                    grids[name] = vision[name][taken[name] : taken[name] + len(own)]
                    taken[name] += len(own)
            right, _ = count(*_token_ids(folder), batch.tokens[start:end][None], **grids)
            assert torch.equal(given["position_ids"][:, :, start:end], right)
        assert all(len(vision.get(name, ())) == rows for name, rows in taken.items())
        pictures += sum(taken.values())
    assert pictures > 5


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_are_those_of_bridges_collate_and_step(
    folder_of: Callable[..., Path], bridge: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a key, shape, type or value differs from what Bridge packs of the same documents, its step loses
    something, or its model counts other positions in the pack.
    """
    build = bridge("data.packing.in_batch").build_mcore_thd_sequence_batch_from_rows
    step, visual = bridge("training.vlm_step"), bridge("training.utils.visual_inputs")
    model = bridge("models.qwen_vl.modelling_qwen3_vl.model")
    utils = bridge("models.qwen_vl.modelling_qwen3_vl.utils")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    folder = folder_of(family, False)
    merge, image, video, _ = ids = _token_ids(folder)
    whole = {"pad_to_max_length": True} if "pad_to_max_length" in signature(build).parameters else {}
    for batch in _packs(folder):
        given = to_bridge(batch)
        rows = [
            {name: given[name].reshape(-1, batch.seq_len)[0, a:b] for name in SEQUENCES} for a, b, _ in _rooms(given)
        ]
        right = build(rows, sequence_length=batch.seq_len, pad_to_multiple_of=16, **whole)  # for 8 ranks, as packed
        right["visual_inputs"] = visual.GenericVisualInputs(**given["visual_inputs"].as_model_kwargs())
        assert given.keys() == right.keys()
        end = right["total_tokens"]  # 0.6 ends a pack with its last room, as packs of any length
        assert (batch.doc_ids[end:] == PADDING_DOC).all()
        real = batch.doc_ids[:end] != PADDING_DOC
        for name in SEQUENCES:
            ours, theirs = given[name][..., :end], right[name]
            if name in ("labels", "loss_mask"):
                assert torch.equal(ours, theirs), name
            assert torch.equal(ours[:1, ..., real].reshape(-1), theirs[..., real].reshape(-1)), name
            assert ours.dtype == theirs.dtype, name
        assert (given["labels"][given["loss_mask"] == 0] == IGNORE_INDEX).all()
        for name in (name for name in given if name.startswith("cu_seqlens")):
            assert torch.equal(given[name][:-1], right[name][:-1]), name
            assert given[name].dtype == right[name].dtype, name
        assert (given["max_seqlen_q"].shape, given["max_seqlen_q"].dtype) == (torch.Size([]), torch.int32)

        one = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
        groups = SimpleNamespace(pp=one, cp=one, tp=one)
        read = step.get_batch(iter([given]), SimpleNamespace(dataset=None), pg_collection=groups)
        tokens, labels, mask, attention, positions, packing, pictures = read
        assert attention is None
        for name, value in zip(SEQUENCES, (tokens, labels, mask, positions), strict=True):
            assert torch.equal(value, given[name])
        params = step.get_packed_seq_params(packing)
        assert model._is_mrope_position_ids(positions)
        vision = pictures.normalized_for_model()
        grids = {name: value for name, value in vision.items() if name.endswith("_grid_thw")}
        in_documents = batch.doc_ids != PADDING_DOC
        if grids:
            counted, _ = model.get_rope_index(*ids, tokens, **grids, packed_seq_params=params)
            assert torch.equal(counted[:, :, in_documents], positions[:, :, in_documents])
            _check_shares(utils, vision, tokens, merge=merge, image=image, video=video)
        if hasattr(model, "_get_packed_seq_padding_mask"):
            padding = model._get_packed_seq_padding_mask(params, total_tokens=batch.seq_len, device=tokens.device)
            assert torch.equal(~padding[0], in_documents)


def _check_shares(utils: Any, vision: dict[str, Any], tokens: Any, *, merge: int, image: int, video: int) -> None:
    """Bridge's ranks take their shares of all pixels, so every rank is given them all."""
    ids = {"image_token_id": image, "video_token_id": video, "square_merge_size": merge**2}
    pixels, grids, mask = utils.reorganize_inputs(tokens, **vision, **ids)
    assert mask.sum() * merge**2 == len(pixels)
    split, rows, numbers, padded = utils.qwen3vl_cp_split(2, pixels, grids)
    shares = [utils.get_vision_cp_data(split, rows, merge**2, numbers, padded, rank, 2)[0] for rank in range(2)]
    assert torch.equal(torch.cat(shares), pixels)
