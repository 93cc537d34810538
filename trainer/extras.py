"""Extras: what a training step does without, by name and by the point at which each plugs in.

Some are asked for by an option, others by every run: before its first step, beside a step, or after its last.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

EXTRAS = {
    "derived": "what is read: layouts and image boundaries that a dataset was not packed for",
    "loader_states": "what is read: positions that were saved, by torchdata's loaders too",
    "mixture": "what is read: several datasets as one stream, by their weights",
    "range_cache": "what is read: ranges of a store that a node keeps for all of its processes",
    "selection": "what is read: packs by what their documents are, and single ones",
    "separate_epochs": "what is read: epochs that leave out packs which fill no step",
    "shared_places": "what is read: places of a large dataset's packs, in a file that processes share",
    "store": "what is read: ranges of a store, asked for again where it fails, and ahead",
    "threads": "what is read: threads of a reader, and how its process ends",
    "whole_config": "what is read: all that a dataset was packed with",
    "latents": "what the model is: keys and values that attention itself expands from a latent",
    "model_check": "what the model is: whether packs follow it, and a dataset is for it",
    "quantised": "what the model is: plain numbers of quantised weights",
    "stored": "what the model is: whether its folder is one, and what its files hold",
    "weights": "what the model is: parameters that each rank reads from a folder, or draws by a seed",
    "adapters": "what trains: adapters that packs follow, their export alone or added to the model",
    "parts": "what trains: frozen parts, adapters, learning rates by part",
    "preferences": "what the loss is: preferred answers instead of the next token",
    "router_loss": "what the loss is: besides, how evenly routers spread tokens over experts",
    "profile": "what is said of a step: a trace of a few of them",
    "trackers": "what is said of a step: TensorBoard, Weights & Biases",
    "waiting": "what is said of a step: what comes before it, while nothing is printed",
    "wording": "what is said of a step: what may be given in place of a wrong option",
    "work": "what is said of a step: its operations, and their balance over ranks",
    "meeting": "where ranks are: how they meet, and what keeps them from it",
    "compiled": "what is on the device: fused blocks",
    "dry_run.report": "what is on the device: a step of one rank, counted without any",
    "memory_check": "what is on the device: whether it fits, and what `--recompute auto` takes",
    "saving": "what is on the device: what is kept for the backward pass, and where",
    "checkpoint_check": "what is kept: checksums of a checkpoint's files, a folder that all ranks see",
    "outputs": "what is kept: whether all of it can be written",
    "rounded": "what is kept: an exported model in another dtype than that of training",
    "further": "what is kept: layers of the source that predict further tokens, beside an exported model",
    "bridge": "what other trainers have: batches of Megatron Bridge's steps",
    "other_meshes": "what other trainers have: a rank's place on their mesh",
    "own_masks": "what other trainers have: models that do not see sequences by themselves",
    "sequences": "what other trainers have: kernels that take the edges of a pack's sequences",
}
"""Modules of ``trainer/extra``, each with its point. None is imported before it is asked for."""


def load_extra(name: str) -> Any:
    """The module of an extra."""
    return import_module(f"preshard.trainer.extra.{name}")
