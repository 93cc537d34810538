"""What ``transformers`` alone makes of one document with a model folder: this file imports nothing of preshard."""

from __future__ import annotations

import io
import json
import os
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from PIL import Image, ImageOps

MASK_LIMIT = 3000
"""Most tokens of a document whose mask is compared as a matrix."""

# The conversion to RGB that FFmpeg's own tests find the same on every processor.
_EXACT = int(Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT | Interpolation.FULL_CHR_H_INT)


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
    """The frames of a video that are shown at these seconds after its first one."""
    reformatter, found = VideoReformatter(), {}
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        first = None
        for frame in container.decode(stream):
            first = frame.pts if first is None else first
            picture = reformatter.reformat(frame, format="rgb24", interpolation=_EXACT, threads=1)
            found[float((frame.pts - first) * stream.time_base)] = picture.to_ndarray()
    return Clip(np.stack([found[time] for time in times]), list(times))


@contextmanager
def _two_threads() -> Iterator[None]:
    """As on any machine with several cores: with a single thread, torch interpolates in another way."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Transformers:
    """The tokenizer, the processors and the core of the model of a folder."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        # This build of torchvision has operators for CUDA alone; what processors use of it is plain torch.
        sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
        import transformers

        transformers.logging.set_verbosity_error()
        self.folder = folder
        self.model_type: str = json.loads((folder / "config.json").read_text())["model_type"]
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.processor = None
        if (folder / "preprocessor_config.json").exists():
            self.processor = transformers.AutoProcessor.from_pretrained(folder)
            if self.model_type != "molmo2":  # which has no processor on Pillow
                self.processor.image_processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")

    @cached_property
    def model(self) -> Any:
        """The model's core without weights: it knows positions and mask."""
        import torch
        from transformers import AutoConfig, AutoModel

        with torch.device("meta"):
            return AutoModel.from_config(AutoConfig.from_pretrained(self.folder))

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
            metadata = [self.metadata(clip.times) for clip in clips]
            given |= {"videos": [clip.frames for clip in clips], "video_metadata": metadata, "do_sample_frames": False}
        if self.processor is None:
            made = self.tokenizer([text], return_tensors="pt")
        else:
            with _two_threads():
                made = self.processor(text=[text], **given, return_tensors="pt")
        named = [name for name in made if name.startswith(("pixel", "image", "video")) and len(made[name])]
        inputs = {name: made[name].numpy() for name in named}
        ids = made["input_ids"]
        return Made(ids[0].numpy(), self._positions(made), self._mask(made), np.zeros(ids.shape[1], bool), inputs)

    def metadata(self, times: list[float]) -> Any:
        """The times of frames, as each processor takes them."""
        from transformers.video_utils import VideoMetadata

        if self.model_type == "qwen2_5_vl":  # it asks for the rate of the frames alone
            rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 1.0
            return VideoMetadata(total_num_frames=len(times), fps=rate)
        return VideoMetadata(total_num_frames=len(times), fps=1.0, frames_indices=times)

    def _positions(self, made: Any) -> np.ndarray:
        ids = made["input_ids"]
        if not hasattr(self.model, "get_rope_index"):
            return np.arange(ids.shape[1])[None]
        names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
        given = {name: made[name] for name in names if name in made}
        return self.model.get_rope_index(ids, made["mm_token_type_ids"], **given)[0][:, 0].numpy()

    def _mask(self, made: Any) -> np.ndarray:
        """The mask that the model gives its attention; empty for a document that is too long for a matrix."""
        import torch
        from transformers.masking_utils import create_causal_mask

        config = self.model.config.get_text_config()
        config._attn_implementation = "eager"
        length = made["input_ids"].shape[1]
        if length > MASK_LIMIT:
            return np.zeros((0, 0), bool)
        given: dict[str, Any] = {}
        if self.model_type == "molmo2":
            given["block_sequence_ids"] = torch.where(made["mm_token_type_ids"] == 1, 0, -1)
        mask = create_causal_mask(
            config=config,
            inputs_embeds=torch.zeros(1, length, 4),
            attention_mask=None,
            past_key_values=None,
            position_ids=torch.arange(length)[None],
            **given,
        )
        return (mask[0, 0] == 0).numpy()

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
            given = {"video_metadata": [self.metadata(times)], "do_sample_frames": False, "do_resize": False}
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
