"""The model's parameters, spread over the ranks of a replica by FSDP2, and gradients that are sums."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer.models.model import VisionLanguageModel


def shard_model(model: VisionLanguageModel, mesh: DeviceMesh, *, bfloat16: bool) -> None:
    """Shards a model in place, each block by itself, also over one rank: there is one way for every number of ranks.

    Every rank's loss is a sum over its own tokens, so the gradient of the whole is the sum over ranks, of a
    context-parallel group as of data-parallel ones. FSDP would average; here nothing is divided until the weights
    of all tokens are known (see :mod:`trainer.step`). Plain sums are also the only reduction that gloo has.

    Args:
        model: on the CPU, the same on all ranks; goes to the device of the mesh.
        mesh: the axes ``dp_replicate`` and ``shard``.
        bfloat16: compute in bfloat16. Parameters, and sums of gradients over ranks, stay in the model's dtype.
    """
    low, sums = (torch.bfloat16, torch.float32) if bfloat16 else (None, None)
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=sums, cast_forward_inputs=False)
    for module in (*model.vision.blocks, *model.decoder.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
