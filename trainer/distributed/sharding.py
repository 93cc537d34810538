"""A model's parameters spread over the ranks of a replica by FSDP2, with gradients that are sums."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


def shard_model(model: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh, *, bfloat16: bool) -> None:
    """Shards a model in place, each block by itself. A single rank takes the same path as many.

    Every rank's loss is a sum over its own tokens, so the gradient of the whole is the sum over all ranks, those of a
    context-parallel group and the data-parallel ones alike. FSDP would average; here nothing is divided until the
    weights of all tokens are known (:mod:`preshard.trainer.step`). A plain sum is also the only reduction of gloo.

    Args:
        model: on the CPU, the same on all ranks; moves to the mesh's device.
        blocks: its repeated parts, gathered one at a time; everything else stays gathered through the forward.
        mesh: the axes ``replicate`` and ``shard``. Gradients are summed over both, each time in the same order.
        bfloat16: compute in bfloat16. Parameters stay in the model's dtype, sums of gradients are float32.
    """
    if mesh.size(0) == 1:
        mesh = mesh["shard"]  # FSDP would send each gradient to the one replica, and cut two axes for each parameter
    compute, reduce = (torch.bfloat16, torch.float32) if bfloat16 else (None, None)
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce, cast_forward_inputs=False)
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
