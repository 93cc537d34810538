"""Document made by ``transformers`` alone with a model folder: this file imports nothing of preshard."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image, ImageOps
from transformers_alone import (
    load_core,
    load_processor,
    load_transformers,
    mask_of,
    positions_of,
    two_threads,
    video_metadata,
)


@dataclass
class Clip:
    """Frames in full size, and the second at which each is shown."""

    frames: np.ndarray
    times: list[float]


Medium = Image.Image | Clip


@dataclass
class Made:
    """A document by the processor and by the model."""

    ids: np.ndarray
    positions: np.ndarray
    mask: np.ndarray
    loss: np.ndarray
    inputs: dict[str, np.ndarray] = field(default_factory=dict)


def open_image(path: Path) -> Image.Image:
    """An image as its file says it is to be seen."""
    return ImageOps.exif_transpose(Image.open(io.BytesIO(path.read_bytes())))


def open_clip(path: Path, times: Sequence[float]) -> Clip:
    """The frames of a video that are shown at these seconds after its first one, as ``load_video`` makes them RGB."""
    found = {}
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        first = None
        for frame in container.decode(stream):
            first = frame.pts if first is None else first
            found[float((frame.pts - first) * stream.time_base)] = frame.to_ndarray(format="rgb24")
    return Clip(np.stack([found[time] for time in times]), list(times))


class Transformers:
    """The tokenizer, the processors and the core of the model of a folder."""

    def __init__(self, folder: Path, backend: str = "torchvision") -> None:
        self.folder = folder
        self.model_type: str = json.loads((folder / "config.json").read_text())["model_type"]
        self.tokenizer = load_transformers().AutoTokenizer.from_pretrained(folder)
        self.processor = None
        if (folder / "preprocessor_config.json").exists():
            self.processor = load_processor(folder, backend)

    @cached_property
    def model(self) -> Any:
        """The model's core without weights."""
        return load_core(self.folder)

    def conversation(self, messages: list[dict[str, Any]], media: Sequence[Medium]) -> Made:
        """A conversation by the folder's chat template, with the tokens of the assistant's turns under loss."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        made = self._made(text, media)
        told = self.tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        spoken = np.array(told["input_ids"])[np.array(told["assistant_masks"], bool)]
        made.loss = self._answers(made.ids)
        assert np.array_equal(made.ids[made.loss], spoken), "the script's own reading of the turns is wrong"
        return made

    def text(self, text: str) -> Made:
        """A text that is learnt whole, with the token that ends it."""
        made = self._made(text + self.tokenizer.eos_token, [])
        made.loss = np.arange(len(made.ids)) > 0
        return made

    def _made(self, text: str, media: Sequence[Medium]) -> Made:
        images = [medium for medium in media if isinstance(medium, Image.Image)]
        clips = [medium for medium in media if isinstance(medium, Clip)]
        given: dict[str, Any] = {"images": images} if images else {}
        if clips:
            metadata = [video_metadata(self.model_type, clip.times) for clip in clips]
            given |= {"videos": [clip.frames for clip in clips], "video_metadata": metadata, "do_sample_frames": False}
        if self.processor is None:
            made = self.tokenizer([text], return_tensors="pt")
        else:
            with two_threads():
                made = self.processor(text=[text], **given, return_tensors="pt")
        named = [
            name for name in made if name.startswith(("pixel", "image", "video", "num_frames")) and len(made[name])
        ]
        inputs = {name: made[name].numpy() for name in named}
        ids = made["input_ids"]
        no_loss = np.zeros(ids.shape[1], bool)
        return Made(ids[0].numpy(), positions_of(self.model, made), mask_of(self.model, made), no_loss, inputs)

    def _answers(self, ids: np.ndarray) -> np.ndarray:
        """The tokens between the assistant's name and the end of its turn, that end included."""
        start, end = self.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        name = self.tokenizer("assistant\n", add_special_tokens=False)["input_ids"]
        loss = np.zeros(len(ids), bool)
        for place in np.flatnonzero(ids == start):
            first = place + 1 + len(name)
            if ids[place + 1 : first].tolist() == name:
                loss[first : first + int(np.flatnonzero(ids[first:] == end)[0]) + 1] = True
        return loss

    def inputs_of_stored(self, kind: str, pictures: list[np.ndarray], times: list[float]) -> np.ndarray:
        """The encoder's input for the stored pictures of one image or video, which must not be scaled again.

        Molmo2 has no such switch, but a picture of its own size stays as it is, and is the first that it gives back.
        """
        assert self.processor is not None
        if kind == "video":
            given = {
                "video_metadata": [video_metadata(self.model_type, times)],
                "do_sample_frames": False,
                "do_resize": False,
            }
            if self.model_type == "molmo2":
                given.pop("do_resize")
            made = self.processor.video_processor([np.stack(pictures)], return_tensors="pt", **given)
            values = made["pixel_values_videos"]
            return (values.flatten(0, 1) if self.model_type == "internvl" else values).numpy()
        images = [Image.fromarray(picture) for picture in pictures]
        process = self.processor.image_processor
        if self.model_type == "molmo2":
            return np.stack([process([image], return_tensors="pt")["pixel_values"][0].numpy() for image in images])
        given = {"crop_to_patches": False} if self.model_type == "internvl" else {}
        return process(images, return_tensors="pt", do_resize=False, **given)["pixel_values"].numpy()
