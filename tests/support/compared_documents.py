"""Compares documents taken out of packs with what ``transformers`` makes of their rows: imports nothing of preshard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from made_by_transformers import Made, Medium, Transformers, open_clip, open_image
from mixed_source import IMAGES_ONLY, IMAGES_OR_ONE_VIDEO, TEXT_ONLY, Row
from taken_documents import NO_LOSS, Taken, taken_documents

FAMILIES = {
    **{"qwen3": TEXT_ONLY, "qwen3_vl": "", "qwen3_5": "", "qwen2_5_vl": "", "exaone4_5": "", "internvl": ""},
    **dict.fromkeys(("molmo2", "glm46v"), IMAGES_OR_ONE_VIDEO),
    **{"gemma3": IMAGES_ONLY, "gemma4": "", "mistral3": IMAGES_ONLY, "kimi_k25": IMAGES_ONLY},
}
"""Media that a model of each family takes in one document; nothing stands for everything."""

SETTINGS = [
    *("seq_len=8192", "block_size=128", "image_format=png", "video.fps=100", "max_images=null"),
    *("cp_sizes=[1,2]", "ring_degrees=[1,2]", "layouts=[contiguous,balanced_ring]", "packs_per_shard=2"),
]


def compared(
    dataset: Path, source: Path, rows: dict[str, Row], oracle: Transformers
) -> Iterator[tuple[str, list[str]]]:
    """Each conversation or text of each document of a dataset, and what differs in it, in words."""
    for taken in taken_documents(dataset):
        row = rows[taken.doc_id]
        branches = int(taken.arrays["branch_ids"].max())
        media = list(media_of(taken, row, source))
        if "text" in row:
            yield taken.doc_id, differences(taken, oracle.text(row["text"]), oracle)
        elif "messages" in row:
            yield taken.doc_id, differences(taken, oracle.conversation(row["messages"], media), oracle)
        else:
            assert branches == len(row["annotations"])
            for number, messages in enumerate(conversations(row), start=1):
                made = oracle.conversation(messages, media)
                yield f"{taken.doc_id}, annotation {number}", differences(taken.conversation(number), made, oracle)


def conversations(row: Row) -> list[list[Row]]:
    """A row's conversation, or each of its annotations after the images and videos that they share."""
    if "annotations" not in row:
        return [row["messages"]] if "messages" in row else []
    return [
        [{"role": "user", "content": [*row["media"], {"type": "text", "text": first["content"]}]}, *rest]
        for first, *rest in row["annotations"]
    ]


def media_of(taken: Taken, row: Row, source: Path) -> Iterator[Medium]:
    """The row's images and videos in full size, of a video the frames that the document shows."""
    parts: list[Any] = list(row.get("media", ()))
    for message in row.get("messages", ()):
        parts += message["content"] if isinstance(message["content"], list) else ()
    named = [part[part["type"]] for part in parts if part["type"] in ("image", "video")]
    for name, (kind, _, crops) in zip(named, taken.media(), strict=True):
        times = [crop.timestamp for crop in crops if crop.timestamp is not None]
        yield open_image(source / name) if kind == "image" else open_clip(source / name, times)


def differences(taken: Taken, made: Made, oracle: Transformers) -> list[str]:
    """Differences of a document from what ``transformers`` makes of it."""
    arrays, found = taken.arrays, []
    if not np.array_equal(arrays["tokens"], made.ids):
        return [f"tokens: {len(taken)} and {len(made.ids)}"]
    labels = np.full(len(made.ids), NO_LOSS)
    predicts = np.flatnonzero(made.loss[1:])
    labels[predicts] = made.ids[predicts + 1]
    if not np.array_equal(arrays["labels"], labels):
        found.append("labels")
    if not np.array_equal(arrays["loss_weights"], labels != NO_LOSS):
        found.append("weights")
    if not np.array_equal(arrays["position_ids"], made.positions):
        found.append("positions")
    mask, theirs = taken.mask(in_groups=oracle.model_type != "gemma4"), made.mask
    if len(theirs) and not np.array_equal(mask, theirs[0] if theirs.ndim > 2 else theirs):
        found.append("mask")
    return [*found, *_different_units(taken, made), *_different_inputs(taken, made, oracle)]


def _different_units(taken: Taken, made: Made) -> Iterator[str]:
    """Grids, rows and crops of each image and video."""
    numbers: Counter[str] = Counter()
    filled = 0
    for kind, units, crops in taken.media():
        number, rows = numbers[kind], sum(unit["rows"] for unit in units)
        numbers[kind] += 1
        thw = made.inputs.get(f"{kind}_grid_thw")
        if thw is not None:
            grid = [sum(unit["grid"][0] for unit in units), *units[0]["grid"][1:]]
            if grid != thw[number].tolist() or rows != thw[number].prod() // 4:
                yield f"grid of {kind} {number}"
        grids = made.inputs.get(f"{kind}_grids")
        if grids is not None and kind == "image":
            low_high, low_wide, high, wide = grids[number].tolist()
            n_crops = made.inputs["image_num_crops"][number]
            if rows != low_high * low_wide + high * wide or len(crops) != n_crops:
                yield f"rows or crops of image {number}"
        elif grids is not None and (rows != grids[number].prod() or len(units) != grids[number][0]):
            yield f"rows or units of video {number}"
        for unit in units:
            rows_of_unit = (taken.arrays["pool_ids"][unit["start"] : unit["end"]] >= 0).sum()
            if rows_of_unit != unit["rows"]:
                yield f"tokens of a unit of {kind} {number}"
            filled += unit["rows"]
    if filled != (taken.arrays["pool_ids"] >= 0).sum():
        yield "rows outside of units"


def _different_inputs(taken: Taken, made: Made, oracle: Transformers) -> Iterator[str]:
    """The encoder's input, of the stored pictures and of the originals."""
    inputs: dict[str, list[np.ndarray]] = {}
    for kind, _, crops in taken.media():
        times = [crop.timestamp or 0.0 for crop in crops]
        own = oracle.inputs_of_stored(kind, [crop.pixels for crop in crops], times)
        together = kind == "image" or oracle.model_type == "internvl"  # whose processor puts frames among the tiles
        inputs.setdefault("pixel_values" if together else "pixel_values_videos", []).append(own)
    named = {name for name in made.inputs if name.startswith("pixel_values")}
    if named != inputs.keys():
        yield f"inputs: {sorted(inputs)} and {sorted(named)}"
    for name in named & inputs.keys():
        ours, theirs = inputs[name], made.inputs[name]
        if "image_sizes" in made.inputs:  # smaller images have zeros right of them and below
            sizes = made.inputs["image_sizes"].tolist()
            whole = [image[:, :high, :wide] for image, (high, wide) in zip(theirs, sizes, strict=True)]
            ours, theirs = [own.ravel() for own in ours], np.concatenate([image.ravel() for image in whole])
        ours = np.concatenate(ours)
        if ours.shape != theirs.shape:
            yield f"{name}: {ours.shape} and {theirs.shape}"
        elif not np.array_equal(ours, theirs):
            yield f"{name}: {(ours != theirs).sum()} of {ours.size} numbers"
