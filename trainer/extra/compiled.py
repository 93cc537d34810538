"""The language model's blocks as fused kernels: everything between two attentions is compiled by torch.

Attention stays out of the graphs. Its plan is another for each pack, it exchanges with other ranks, and it keeps its
own results where a block is computed again. So a block breaks into what is before it and what is after it. Layers with
a state stay out for the same reasons, and the vision encoder, which takes each image for itself, is not compiled.

All blocks of a kind share their graphs, and so do all packs, as a rank's tokens have one length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

from preshard.trainer.models.interface import decoder_layers

MOST_GRAPHS = 32
"""Graphs of one piece of code. Kinds of layers, dtypes and whether gradients are wanted make new ones; packs do not."""


def compile_blocks(model: Any, *, backend: str = "inductor") -> None:
    """Compiles the language model's blocks, in place, as they are called. Call it before the model is sharded.

    What computes blocks again calls their compiled parts. Like FSDP2, it gives each block a class of its own that
    inherits from the block's, so that parameters keep their names.

    Args:
        model: from ``preshard.models.load_model``.
        backend: of ``torch.compile``.
    """
    blocks: list[nn.Module] = list(decoder_layers(model))
    kinds = {kind: _compiled(kind, backend) for kind in dict.fromkeys(map(type, blocks))}
    for block in blocks:
        block.__class__ = kinds[type(block)]


def _compiled(kind: type[nn.Module], backend: str) -> type[nn.Module]:
    plain: Callable[..., Any] = kind.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    # torch counts by code object; with one of its own, nobody else's graphs count.
    forward.__code__ = forward.__code__.replace()
    compiled = torch.compile(forward, backend=backend)
    limits: Any = torch._dynamo.config

    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        with limits.patch(recompile_limit=MOST_GRAPHS):
            return compiled(*args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": call})
