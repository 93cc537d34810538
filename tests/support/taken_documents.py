"""Takes documents out of a dataset's tars by the pages of the format alone: this file imports nothing of preshard."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ARRAYS = ("tokens", "labels", "loss_weights", "position_ids", "branch_ids", "group_ids", "pool_ids")
NO_LOSS = -100


@dataclass
class Crop:
    """A stored picture, and the second of its clip that it shows, if it is a frame."""

    pixels: np.ndarray
    timestamp: float | None


@dataclass
class Taken:
    """A document as it lies in a pack: arrays of its tokens, its units, and the crops of each unit."""

    doc_id: str
    arrays: dict[str, np.ndarray]
    units: list[dict[str, Any]]
    crops: list[list[Crop]]

    def __len__(self) -> int:
        return len(self.arrays["tokens"])

    def conversation(self, branch: int) -> Taken:
        """The shared prefix and one annotation, as if the others were not there."""
        branches = self.arrays["branch_ids"]
        seen = (branches == 0) | (branches == branch)
        places = np.cumsum(seen) - 1
        inside = [number for number, unit in enumerate(self.units) if seen[unit["start"]]]
        units = []
        for number in inside:
            unit = self.units[number]
            first, last = int(places[unit["start"]]), int(places[unit["end"] - 1])
            units.append(unit | {"start": first, "end": last + 1})
        arrays = {name: values[..., seen] for name, values in self.arrays.items()}
        return Taken(self.doc_id, arrays, units, [self.crops[number] for number in inside])

    def media(self) -> list[tuple[str, list[dict[str, Any]], list[Crop]]]:
        """Each image or video in order: which of the two, its units and its crops."""
        found: dict[int, tuple[str, list[dict[str, Any]], list[Crop]]] = {}
        for unit, crops in zip(self.units, self.crops, strict=True):
            kind = "image" if unit["kind"] == "image" else "video"
            _, units, pictures = found.setdefault(unit["medium"], (kind, [], []))
            units.append(unit)
            pictures.extend(crops)
        return [found[number] for number in sorted(found)]

    def mask(self, *, in_groups: bool = True) -> np.ndarray:
        """Mask of tokens (rows) over tokens (columns), by the one sentence of the format that defines it; with or
        without the groups, which some models have in layers with a window alone.
        """
        order = np.arange(len(self))
        branch, group = self.arrays["branch_ids"], self.arrays["group_ids"]
        same_branch = (branch[None] == 0) | (branch[None] == branch[:, None])
        in_group = (group[:, None] == group[None]) & (group[None] >= 0)
        return same_branch & ((order[None] <= order[:, None]) | (in_group & in_groups))


def taken_documents(dataset: Path) -> Iterator[Taken]:
    """Every document of every shard, in the order of the packs."""
    for shard in sorted(dataset.glob("shards/*.tar")):
        for members in _samples(shard):
            yield from _documents(members)


def _samples(shard: Path) -> Iterator[dict[str, bytes]]:
    """The members of each sample by what follows its key."""
    members: dict[str, bytes] = {}
    current = ""
    with tarfile.open(shard) as tar:
        for entry in tar:
            key, _, extension = entry.name.partition(".")
            if key != current and members:
                yield members
                members = {}
            current = key
            file = tar.extractfile(entry)
            assert file is not None
            members[extension] = file.read()
    if members:
        yield members


def _documents(members: dict[str, bytes]) -> Iterator[Taken]:
    head = json.loads(members["json"])
    with np.load(io.BytesIO(members["sequence.npz"])) as file:
        arrays = {name: file[name] for name in ARRAYS}
    pictures = [name for name in members if name.endswith((".png", ".jpg"))]
    assert len(pictures) == len(head["images"])
    edges = [0, *head["cum_image_bounds"]]
    for number, span in enumerate(head["documents"]):
        start, end = span["start"], span["start"] + span["length"]
        mine = [unit for unit, about in enumerate(head["units"]) if about["document"] == number]
        mine.sort(key=lambda unit: head["units"][unit]["start"])  # they are listed as they are stored
        crops = [
            [_crop(members[pictures[image]], head["images"][image]) for image in range(edges[unit], edges[unit + 1])]
            for unit in mine
        ]
        units = [
            head["units"][unit] | {name: head["units"][unit][name] - start for name in ("start", "end")}
            for unit in mine
        ]
        own = {name: values[..., start:end] for name, values in arrays.items()}
        yield Taken(span["doc_id"], own, units, crops)


def _crop(content: bytes, about: dict[str, Any]) -> Crop:
    with Image.open(io.BytesIO(content)) as image:
        assert image.size == (about["width"], about["height"])
        return Crop(np.asarray(image), about["timestamp"])
