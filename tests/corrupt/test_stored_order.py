"""A dataset with units in another order than that of their tokens: verified, read as a source, corrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.ingest.packed.dataset import open_dataset
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify import Verdict
from preshard.schemas.boundaries import image_edges, smallest_limit
from preshard.schemas.layout import boundaries_from_edges

CP_SIZES = (1, 2, 4)
SIDES = (2, 2, 2, 4, 4, 4, 6, 6)
"""Sides of photographs, in tiles of the family: small ones first, as no source would have them in every pack."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: Any, mixed_source: Path, editable_of: Callable[[Path], Any], progress: Any) -> Any:
    """A sound dataset of one pack with photographs and a clip. Read only."""
    folder = tmp_path_factory.mktemp("stored")
    write_model_folder(folder / "model", "molmo2", vocabulary=400)
    shutil.copy(mixed_source / "clip.mp4", folder / "clip.mp4")
    rows = [_row("clip", {"type": "video", "video": "clip.mp4"})]
    for number, side in enumerate(SIDES):
        Image.fromarray(np.full((50 * side, 60 * side, 3), 20 * number, np.uint8)).save(folder / f"{number}.png")
        rows.append(_row(f"image-{number}", {"type": "image", "image": f"{number}.png"}))
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    settings = [f"model={folder / 'model'}", "seq_len=8192", "max_images=128", f"cp_sizes={list(CP_SIZES)}"]
    settings += [
        "cost.link_gb_per_s=1000000",
        "layouts=[contiguous]",
        "ring_degrees=[1]",
        "video.max_frames=4",
        "order.window=1",
    ]
    config = load_config(None, settings)
    pack([str(folder / "rows.jsonl")], str(folder / "dataset"), config, PlainExecutor(), progress)
    return editable_of(folder / "dataset")


def _row(name: str, part: dict[str, str]) -> dict[str, Any]:
    question = {"role": "user", "content": [part, {"type": "text", "text": "what is it?"}]}
    return {"id": name, "messages": [question, {"role": "assistant", "content": "A colour."}]}


@pytest.fixture
def copy(stored: Any, editable_of: Callable[[Path], Any], tmp_path: Path) -> Any:
    return editable_of(shutil.copytree(stored.path, tmp_path / "dataset"))


def _loads(sample: Any) -> list[int]:
    return [unit["load"] for unit in sample.head["units"]]


def _token_order(sample: Any) -> list[int]:
    starts = [unit["start"] for unit in sample.head["units"]]
    return sorted(range(len(starts)), key=starts.__getitem__)


def _restore(data: Any, sample: Any, order: Sequence[int]) -> None:
    """Stores the units of a sample in another order, with the boundaries that are best there."""
    head = sample.head
    crops, rows = ([0, *head[name]] for name in ("cum_image_bounds", "cum_token_pooling_bounds"))
    images, pictures, renamed, first_row = [], [], np.full(rows[-1] + 1, -1, np.int32), 0
    for place, unit in enumerate(order):
        own = range(crops[unit], crops[unit + 1])
        images += [head["images"][crop] | {"unit": place} for crop in own]
        pictures += [sample.crops[crop] for crop in own]
        count = rows[unit + 1] - rows[unit]
        renamed[rows[unit] : rows[unit + 1]] = np.arange(first_row, first_row + count)
        first_row += count
    head["images"], sample.crops[:] = images, pictures
    sample.sequence["pool_ids"] = renamed[sample.sequence["pool_ids"]]
    counts = np.diff(crops)[list(order)], np.diff(rows)[list(order)]
    bounds = [np.cumsum(each) for each in counts]
    head["cum_image_bounds"], head["cum_token_pooling_bounds"] = (each.tolist() for each in bounds)
    head["units"] = [head["units"][unit] for unit in order]
    for size in CP_SIZES:
        edges = image_edges(np.array(_loads(sample)), size)
        head["image_shard_boundaries"][str(size)] = boundaries_from_edges(edges, *bounds)
    data.derive(sample)
    data.save()


def test_another_order_than_that_of_tokens_is_sound(stored: Any, verify: Callable[..., Verdict]) -> None:
    """Fails when units are stored in the order of tokens though another is better, or that order is taken for wrong."""
    [sample] = stored.samples()
    order = _token_order(sample)
    assert order != sorted(order), "the units are stored in another order"
    loads = _loads(sample)
    in_tokens = [loads[unit] for unit in order]
    limits = [(smallest_limit(loads, size), smallest_limit(in_tokens, size)) for size in CP_SIZES]
    assert all(here <= there for here, there in limits)
    assert any(here < there for here, there in limits)
    assert {unit["kind"] for unit in sample.head["units"]} == {"image", "frame"}
    verdict = verify(stored.path)
    assert not verdict.broken, verdict.as_lines()


def test_the_order_of_tokens_is_sound(copy: Any, verify: Callable[..., Verdict]) -> None:
    """Fails when a writer that stores units in the order of their tokens writes something wrong."""
    [sample] = copy.samples()
    _restore(copy, sample, _token_order(sample))
    copy.figure()
    verdict = verify(copy.path)
    assert not verdict.broken, verdict.as_lines()


def test_a_document_is_read_in_the_order_of_its_tokens(stored: Any) -> None:
    """Fails when a packed dataset, as a source, gives a document's units, rows or crops in the order of the shard."""
    [sample] = stored.samples()
    [file] = list_sources([str(stored.path)], load_config(None, [])).files
    taken = open_dataset(file).pack(0)
    for number, span in enumerate(sample.head["documents"]):
        document = taken.document(number)
        assert (np.diff(document.units.edges[:, 0]) > 0).all()
        filled = document.unit_ids[document.unit_ids >= 0]
        assert filled.tolist() == np.repeat(np.arange(span["n_units"]), document.units.rows).tolist()
        times = [image.timestamp for crops in document.media for image in crops.images]
        assert times == sorted(times, key=lambda time: time or 0.0)
        places = [
            head_unit["start"] - span["start"] for head_unit in sample.head["units"] if head_unit["document"] == number
        ]
        assert document.units.edges[:, 0].tolist() == sorted(places)


def _inside_a_unit(data: Any, sample: Any) -> None:
    head = sample.head
    unit = int(np.diff([0, *head["cum_image_bounds"]]).argmax())
    crops, rows = ([0, *head[name]] for name in ("cum_image_bounds", "cum_token_pooling_bounds"))
    first, second = head["image_shard_boundaries"]["2"].values()
    first["end_image_idx"] = second["start_image_idx"] = crops[unit] + 1
    first["end_pool_idx"] = second["start_pool_idx"] = rows[unit] + 1
    first["max_num_tokens"] = second["max_num_tokens"] = max(rows[unit] + 1, rows[-1] - rows[unit] - 1)
    data.save()


def _an_empty_rank(data: Any, sample: Any) -> None:
    """The largest unit is alone, so that fewer ranks reach the same largest load and only the empty one is wrong."""
    loads = _loads(sample)
    heavy = loads.index(max(loads))
    lighter = [unit for unit in range(len(loads)) if unit != heavy]
    _restore(data, sample, [heavy, *lighter])
    parts = sample.parts(shares_crops=False)
    edges = image_edges(parts.loads, 4).tolist()
    merged = [0, edges[1], edges[2], edges[2], len(loads)]
    sample.head["image_shard_boundaries"]["4"] = boundaries_from_edges(np.array(merged), parts.crops, parts.rows)
    data.derive(sample)
    data.save()


def _worse_than_tokens(data: Any, sample: Any) -> None:
    loads = _loads(sample)
    _restore(data, sample, sorted(range(len(loads)), key=loads.__getitem__)[::-1])


def _rows_by_tokens(data: Any, sample: Any) -> None:
    pooled = sample.sequence["pool_ids"] >= 0
    sample.sequence["pool_ids"][pooled] = np.arange(pooled.sum())
    data.save()


def _crops_by_tokens(data: Any, sample: Any) -> None:
    """Crops lie in the order of tokens, and everything else is as for the stored order."""
    edges = [0, *sample.head["cum_image_bounds"]]
    order = [crop for unit in _token_order(sample) for crop in range(edges[unit], edges[unit + 1])]
    for of in (sample.head["images"], sample.crops):
        of[:] = [of[crop] for crop in order]
    data.save()


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("P14", _inside_a_unit),
        ("P15", _an_empty_rank),
        ("P15", _worse_than_tokens),
        ("P9", _rows_by_tokens),
        ("P16", _crops_by_tokens),
    ],
)
def test_a_fault_of_the_order_is_named(
    copy: Any, named: str, change: Callable[[Any, Any], None], assert_breaks: Callable[..., Verdict]
) -> None:
    """Fails when a boundary inside a unit, a bad order, or rows or crops in another order are taken for sound."""
    [sample] = copy.samples()
    change(copy, sample)
    assert_breaks(copy, named)
