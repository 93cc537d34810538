"""Judgement of ``transformers`` on a document, beside ours: tokens, positions, mask and inputs."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers_alone import (
    MASK_LIMIT,
    NO_MASK,
    load_core,
    load_processor,
    mask_of,
    positions_of,
    two_threads,
    video_metadata,
)

from preshard.packer_service.ingest.document import Medium, MediumKind
from preshard.packer_service.ingest.families.family import Family, Mark, Rows
from preshard.packer_service.ingest.families.folder import load_family
from preshard.packer_service.ingest.media.crops import decode_video, encoded_crops
from preshard.packer_service.ingest.media.image import probe_image
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import ImageSize, PlacedMedium, place
from preshard.packer_service.ingest.media.video import probe_frames, probe_video
from preshard.packer_service.packs.rendered import grid_positions, groups_of_units
from preshard.schemas.errors import DocumentError
from preshard.schemas.mask import dense_mask
from preshard.schemas.sections import ImageBackend
from preshard.schemas.sequence import CAUSAL_ONLY, MaskArrays, drop_groups
from preshard.trainer.families.family import normalise, picture_levels
from preshard.trainer.families.pictures import InputUnit, Settings

NOT_PIXELS = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "second_per_grid_ts", "num_crops")

VOCABULARY = 1500
"""Enough of Qwen's vocabulary for words to be several tokens, and few enough to be written at once."""


@dataclass
class Document:
    """Media with a question about them, for both sides."""

    media: list[Medium]
    folder: str = "/"
    question: str = "What is shown, héllo?  And then 123?\n"
    answer: str = "It's a cat. 你好"

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat templates take it: text between media, so that no two are side by side."""
        content: list[dict[str, str]] = []
        for number, medium in enumerate(self.media):
            content += [{"type": "text", "text": f"{number}:"}] * bool(number) + [{"type": medium.kind}]
        question = {"role": "user", "content": [*content, {"type": "text", "text": self.question}]}
        return [question, {"role": "assistant", "content": self.answer}]


@dataclass
class Made:
    """Everything that is compared."""

    ids: np.ndarray
    positions: np.ndarray
    mask: np.ndarray
    inputs: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Refused:
    """A document that cannot be packed, by the name of its reason."""

    reason: str


def takes(family: Family, *kinds: MediumKind) -> bool:
    """Whether a family takes these images and videos in one document."""
    try:
        family.check(kinds)
    except DocumentError:
        return False
    return True


class Oracle:
    """A model folder, with the processor of a backend and the model that ``transformers`` makes of it."""

    def __init__(self, folder: Path, backend: ImageBackend = "torchvision", fps: float = 1000.0) -> None:
        self.folder = folder
        self.fps = fps
        found = load_family(str(folder), backend)
        self.family: Family = found.family
        self.window = found.window
        self.processor = load_processor(folder, backend)

    @cached_property
    def model(self) -> Any:
        """The model's core, which knows its positions."""
        return load_core(self.folder)

    def text(self, document: Document) -> str:
        """The conversation by the folder's template."""
        return self.processor.apply_chat_template(document.messages, tokenize=False)

    def placed(self, document: Document) -> list[PlacedMedium]:
        """Our placements of a document's media."""
        self.family.check([medium.kind for medium in document.media])
        return [place(self.family, medium, self._shape(medium, document.folder)) for medium in document.media]

    def _shape(self, medium: Medium, folder: str) -> Any:
        if medium.kind == "image":
            return probe_image(medium, MediaReach.of(folder), full_size=True)[0]
        if medium.frames:
            assert medium.fps is not None
            return probe_frames(medium, MediaReach.of(folder), fps=medium.fps, max_frames=64, full_size=True)
        return probe_video(medium, MediaReach.of(folder), fps=self.fps, max_frames=64)

    def run(self, document: Document) -> Any:
        """Output of the model's core for a document, with random weights; its errors are its own."""
        made = {name: tensor for name, tensor in self._processed(document).items() if hasattr(tensor, "numpy")}
        return load_core(self.folder, "cpu")(**made)

    def _processed(self, document: Document) -> Any:
        images, videos, metadata = [], [], []
        for medium in document.media:
            if medium.kind == "image":
                images.append(_opened(medium))
                continue
            shape = self._shape(medium, document.folder)
            size = (shape.width, shape.height)
            frames: Iterable[Any] = map(_opened, medium.frames)
            if not medium.frames:
                frames = decode_video(medium, MediaReach.of(document.folder), shape, size=size, scaling="bicubic")
            videos.append(np.stack([np.asarray(frame) for frame in frames]))
            metadata.append(video_metadata(self.family.model_type, shape.timestamps.tolist()))
        given: dict[str, Any] = {"images": images} if images else {}
        if videos:
            given |= {"videos": videos, "video_metadata": metadata, "do_sample_frames": False}
        for kind in {medium.kind for medium in document.media}:
            given |= {f"{kind}s_kwargs": {"size": limits}} if (limits := self._limits(document, kind)) else {}
        with two_threads():
            return self.processor(text=[self.text(document)], **given, return_tensors="pt")

    def theirs(self, document: Document) -> Made | Refused:
        """Result of the processor and the model for a document."""
        import torch

        for kind in {medium.kind for medium in document.media}:
            if not hasattr(self.processor, f"{kind}_processor"):
                return Refused(f"it has no {kind}_processor")
        try:
            made = self._processed(document)
        except (ValueError, RuntimeError) as error:  # torch's own for a picture without pixels
            return Refused(str(error))
        if self.family.model_type == "lighton_ocr" and (made.get("image_sizes", np.array(28)) < 28).any():
            return Refused("it writes no row, and its projector refuses the picture")
        ids = made["input_ids"]
        with torch.no_grad():
            positions = positions_of(self.model, made)
        inputs = {name: made[name].numpy() for name in made if name not in NOT_PIXELS and hasattr(made[name], "numpy")}
        return Made(ids=ids[0].numpy(), positions=positions, mask=mask_of(self.model, made), inputs=inputs)

    def _limits(self, document: Document, kind: str) -> dict[str, int]:
        """Limits that a document's media of a kind ask for, as processors take it; one call has one size for all."""
        [asked] = {(medium.min_pixels, medium.max_pixels) for medium in document.media if medium.kind == kind}
        size = getattr(self.processor, f"{kind}_processor").size
        own = (size["shortest_edge"], size["longest_edge"]) if any(asked) else (0, 0)
        return {"shortest_edge": asked[0] or own[0], "longest_edge": asked[1] or own[1]} if any(asked) else {}

    def ours(self, document: Document) -> Made | Refused:
        """Result of preshard for a document: what a pack holds of it, and what a rank rebuilds from stored PNGs."""
        try:
            placed = self.placed(document)
        except DocumentError as error:
            return Refused(error.code)
        ids, unit_ids = self._our_tokens(document, placed)
        units = [unit for medium in placed for unit in medium.placement.units]
        media = np.repeat(np.arange(len(placed)), [medium.n_units for medium in placed])
        if self.family.axes == 3:
            grids = np.array([unit.grid for unit in units], np.int64).reshape(-1, 3)
            steps = np.array([unit.time_step for unit in units], np.float32)
            positions = grid_positions(unit_ids, grids, media, steps, self.family.merge)
        else:
            positions = np.arange(len(ids))[None]
        token_id = self.processor.tokenizer.convert_tokens_to_ids
        groups = np.where(np.isin(ids, [token_id(token) for token in self.family.group_tokens]), 0, CAUSAL_ONLY)
        if self.family.bidirectional:
            groups = groups_of_units(unit_ids, self.family.bidirectional)
        zeros = np.zeros(len(ids), np.int32)
        arrays = MaskArrays(doc_ids=zeros, branch_ids=zeros, group_ids=groups.astype(np.int32))
        mask = NO_MASK
        if len(ids) <= MASK_LIMIT:
            mask = dense_mask(arrays)
            if self.family.bidirectional:
                full = dense_mask(drop_groups(arrays)) if self.family.model_type == "gemma4" else mask
                mask = np.stack([full, dense_mask(arrays, window=self.window)])
        return Made(ids=ids, positions=positions, mask=mask, inputs=self._our_inputs(document, placed))

    def _our_tokens(self, document: Document, placed: Sequence[PlacedMedium]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids, and each row's unit."""
        text, rest = self.family.prefix, self.text(document)
        n_rows, first = [], 0
        for medium, own in zip(document.media, placed, strict=True):
            before, _, rest = rest.partition(self.family.placeholder(medium.kind))
            text += before
            for piece in own.placement.pieces:
                text += piece if isinstance(piece, str) else str(piece.token) * getattr(piece, "count", 1)
                if isinstance(piece, Rows):
                    n_rows.append((first + piece.unit, piece.count, str(piece.token)))
                assert isinstance(piece, str | Mark | Rows)
            first += own.n_units
        ids = np.array(self.processor.tokenizer(text + rest)["input_ids"])
        rows = {self.processor.tokenizer.convert_tokens_to_ids(token) for _, _, token in n_rows}
        unit_ids = np.full(len(ids), -1, np.int32)
        unit_ids[np.isin(ids, list(rows))] = np.repeat(
            np.array([unit for unit, *_ in n_rows], np.int32), [count for _, count, _ in n_rows]
        )
        return ids, unit_ids

    def _our_inputs(self, document: Document, placed: Sequence[PlacedMedium]) -> dict[str, np.ndarray]:
        units: list[InputUnit] = []
        options: dict[str, Any] = {"doc_id": "d", "first_unit": 0, "image_format": "png", "jpeg_quality": 1}
        for number, (medium, own) in enumerate(zip(document.media, placed, strict=True)):
            pictures: dict[int, list[np.ndarray]] = {}
            for crop in encoded_crops(medium, MediaReach.of(document.folder), own, **options):
                pictures.setdefault(crop.unit, []).append(np.asarray(Image.open(io.BytesIO(crop.data))))
            for place_, unit in enumerate(own.placement.units):
                assert [picture.shape[1::-1] for picture in pictures[place_]] == [crop.size for crop in unit.crops]
                units.append(
                    InputUnit(
                        document=0, medium=number, kind=unit.kind, grid=unit.grid, pictures=tuple(pictures[place_])
                    )
                )
            assert isinstance(own.shape, ImageSize) == (medium.kind == "image")
        return model_inputs(self.family.settings, units)


def model_inputs(settings: Settings, units: Sequence[InputUnit]) -> dict[str, np.ndarray]:
    """Our vision inputs of some units, in the model's own names."""
    levels = {name: torch.from_numpy(array) for name, array in picture_levels(settings, units).items()}
    return {name: tensor.numpy() for name, tensor in normalise(settings, levels).items()}


def _opened(medium: Medium) -> Any:
    return ImageOps.exif_transpose(Image.open(io.BytesIO(medium.data or b"")))


def differences(ours: Made | Refused, theirs: Made | Refused) -> list[str]:
    """Differences, in words; nothing if both refuse the document.

    Args:
        ours: what we make.
        theirs: what the oracle makes.
    """
    if isinstance(ours, Refused) or isinstance(theirs, Refused):
        same = isinstance(ours, Refused) and isinstance(theirs, Refused)
        return [] if same else [f"refused by one side: ours {ours}, theirs {theirs}"[:300]]
    found = []
    if not np.array_equal(ours.ids, theirs.ids):
        found.append(f"ids: {len(ours.ids)} and {len(theirs.ids)} tokens")
    elif not np.array_equal(ours.positions, theirs.positions):
        found.append("positions")
    elif not np.array_equal(ours.mask, theirs.mask):
        found.append("mask")
    if ours.inputs.keys() != theirs.inputs.keys():
        found.append(f"inputs: {sorted(ours.inputs)} and {sorted(theirs.inputs)}")
    for name in ours.inputs.keys() & theirs.inputs.keys():
        mine, other = ours.inputs[name], theirs.inputs[name]
        if mine.shape != other.shape or mine.dtype != other.dtype:
            found.append(f"{name}: {mine.dtype}{mine.shape} and {other.dtype}{other.shape}")
            continue
        if not np.array_equal(mine, other):
            apart = float(np.abs(mine.astype(np.float64) - other).max())
            found.append(f"{name}: {(mine != other).sum()} of {mine.size} differ, by at most {apart:.4g}")
    return found
