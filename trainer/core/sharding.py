"""Parameters sharded over the ranks of a replica, with gradients that are sums over all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from preshard.trainer.models.interface import decoder_layers, encoder_trains, unwrap


def shard_model(
    model: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh, *, bfloat16: bool, on_host: bool = False
) -> None:
    """Shards a model in place, each block by itself. A single rank takes the same path as many.

    Every rank's loss is a sum over its own tokens, so the gradient of the whole is the sum over all ranks, those of a
    context-parallel group and the data-parallel ones alike. FSDP would average; here nothing is divided until the
    weights of all tokens are known (:mod:`preshard.trainer.core.step`). A plain sum is also the only reduction of gloo.

    Args:
        model: on the CPU, the same on all ranks; moves to the mesh's device.
        blocks: its repeated parts, gathered one at a time; everything else stays gathered through the forward.
        mesh: an axis over which parameters are sharded, alone or after one over which they are replicated, under any
            names. Gradients are summed over both, each time in the same order.
        bfloat16: compute in bfloat16. Parameters stay in the model's dtype, sums of gradients are float32.
        on_host: keep this rank's part of parameters and gradients in the host's page-locked memory, where the optimiser
            then has its state and takes its step; parts travel to the device as they are gathered. Give
            ``load_sharded`` the same.
    """
    if mesh.ndim == 2 and mesh.size(0) == 1 and mesh.mesh_dim_names:
        # FSDP would send each gradient to the one replica, and cut two axes for each parameter
        mesh = mesh[mesh.mesh_dim_names[1]]
    compute, reduce = (torch.bfloat16, torch.float32) if bfloat16 else (None, None)
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce, cast_forward_inputs=False)
    keep = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if on_host else OffloadPolicy()
    for module in (*blocks, model):
        # the backward begins with the output projection
        reshard = False if isinstance(module, nn.Linear) else None
        sharded: Any = fully_shard(
            module, mesh=mesh, mp_policy=policy, offload_policy=keep, reshard_after_forward=reshard
        )
        if isinstance(module, nn.Embedding):
            sharded.set_unshard_in_backward(False)  # its gradient does not depend on its rows
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def end_backward_at_decoder(model: Any) -> None:
    """Lets FSDP gather no block of an encoder that takes no backward pass: by default it gathers the block before."""
    first = decoder_layers(unwrap(model))[0]
    if not encoder_trains(unwrap(model)) and isinstance(first, FSDPModule):
        first.set_modules_to_backward_prefetch([first])
