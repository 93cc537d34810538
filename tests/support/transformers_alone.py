"""``transformers`` as an oracle: a folder's processor and model, and what they say of a document that stands alone.

This file imports nothing of preshard.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

MASK_LIMIT = 3000
"""Most tokens of a document whose mask is compared as a matrix."""

NO_MASK = np.zeros((0, 0), bool)
"""Stands for the mask of a longer document."""


def load_transformers() -> Any:
    """The package, quiet, without a network, and with this machine's torchvision."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # This build of torchvision has operators for CUDA alone; what processors use of it is plain torch.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def load_processor(folder: Path, backend: str = "torchvision") -> Any:
    """The folder's processor, with an image processor of this backend; by default the one that people get."""
    transformers = load_transformers()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    if backend != "torchvision":
        processor.image_processor = transformers.AutoImageProcessor.from_pretrained(folder, backend=backend)
    assert processor.image_processor.backend == backend
    return processor


def load_core(folder: Path, device: str = "meta") -> Any:
    """The model's core, by default without weights: it knows positions and mask."""
    import torch

    transformers = load_transformers()
    with torch.device(device):
        return transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(folder))


@contextmanager
def two_threads() -> Iterator[None]:
    """Sets two threads, as on a machine with several cores: with a single one, torch interpolates in another way."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def video_metadata(model_type: str, times: list[float]) -> Any:
    """The times of frames, as each processor takes them."""
    from transformers.video_utils import VideoMetadata

    if model_type == "qwen2_5_vl":  # it asks for the rate of the frames alone
        rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 1.0
        return VideoMetadata(total_num_frames=len(times), fps=rate)
    return VideoMetadata(total_num_frames=len(times), fps=1.0, frames_indices=times)


def positions_of(model: Any, made: Any) -> np.ndarray:
    """The positions [axes, tokens] that the model gives the output of its processor."""
    ids = made["input_ids"]
    if not hasattr(model, "get_rope_index"):
        return np.arange(ids.shape[1])[None]
    names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
    given = {name: made[name] for name in names if name in made}
    return model.get_rope_index(ids, made["mm_token_type_ids"], **given)[0][:, 0].numpy()


def mask_of(model: Any, made: Any) -> np.ndarray:
    """The mask that the model gives its attention; ``NO_MASK`` for a document that is too long for a matrix. Of a model
    whose images see each other under windows, the masks of full and of windowed layers.
    """
    import torch
    from transformers.masking_utils import create_causal_mask

    config = model.config.get_text_config()
    config._attn_implementation = "eager"
    length = made["input_ids"].shape[1]
    if length > MASK_LIMIT:
        return NO_MASK
    given: dict[str, Any] = {
        **{"config": config, "inputs_embeds": torch.zeros(1, length, 4), "attention_mask": None},
        **{"past_key_values": None, "position_ids": torch.arange(length)[None]},
    }
    if model.config.model_type in ("gemma3", "gemma4"):
        own = import_module(type(model).__module__)
        types = made.get("token_type_ids", made.get("mm_token_type_ids", torch.zeros_like(made["input_ids"])))
        blocks = own.get_block_sequence_ids_for_mask(types, device=types.device)
        masks = own.create_masks_for_vision_model(**given, block_sequence_ids=blocks)
        return np.stack([(masks[kind][0, 0] == 0).numpy() for kind in ("full_attention", "sliding_attention")])
    if model.config.model_type == "molmo2":
        given["block_sequence_ids"] = torch.where(made["mm_token_type_ids"] == 1, 0, -1)
    return (create_causal_mask(**given)[0, 0] == 0).numpy()
