"""Blocks that are computed again in the backward pass, which keeps less between the passes."""

from __future__ import annotations

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from trainer.models.packed import PackedModel


def recompute_blocks(packed: PackedModel) -> None:
    """Wraps each of a model's blocks in place. Do it before sharding, so that the blocks are gathered only once.

    What a block runs is run again in the same order on every rank, its collectives too. Names of parameters stay as
    they are. The wrapper is the one of torchtitan.
    """
    for path in packed.block_paths:
        parent, _, name = path.rpartition(".")
        setattr(packed.get_submodule(parent), name, checkpoint_wrapper(packed.get_submodule(path)))
