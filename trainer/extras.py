"""Extras that a run may ask for, by name. None is imported before it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

EXTRAS = {
    "adapters": "what trains: adapters that packs follow, their export alone or added to the model",
    "checkpoint_check": "what is kept: checksums of a checkpoint's files, a folder that all ranks see",
    "compiled": "what leaves the device: fused blocks",
    "derived": "what is read: layouts and image boundaries that a dataset was not packed for",
    "dry_run.report": "counting a step of one rank on a device that need not exist",
    "further": "what is kept: layers of the source that predict further tokens, beside an exported model",
    "memory_check": "whether a run fits its GPUs, and what `--recompute auto` takes",
    "mixture": "what is read: several datasets as one stream, by their weights",
    "model_check": "whether a run can start: packs that a model follows, a dataset that is for it",
    "parts": "what trains: frozen parts, adapters, learning rates by part",
    "preferences": "what the loss is: preferred answers instead of the next token",
    "quantised": "what the model is: plain numbers of quantised weights",
    "saving": "what is kept for the backward pass, and where",
    "sequences": "what other trainers take: masks of models that do not see sequences by themselves",
    "shared_places": "what is read: places of a large dataset's packs, in a file that processes share",
    "trackers": "what is said of a step: TensorBoard, Weights & Biases",
    "whole_config": "what is read: all that a dataset was packed with",
    "work": "what is said of a step: its operations, and their balance over ranks",
}
"""Modules of ``trainer/extra``, and the point of the recipe at which each plugs in."""


def load_extra(name: str) -> Any:
    """The module of an extra."""
    assert name in EXTRAS
    return import_module(f"preshard.trainer.extra.{name}")
