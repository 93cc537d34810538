"""Ranks of a job as a mesh of four axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.distributed as dist
from jaxtyping import Int64
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.extras import load_extra

AXES = ("dp_replicate", "dp_shard", "ring", "ulysses")
"""Axes of the mesh, slowest first: ranks of one context-parallel group are neighbours, where links are fastest."""


CpFsdp = Literal["all", "ulysses_only", "ring_only", "none"]


SHARDING_AXES: dict[CpFsdp, tuple[str, ...]] = {
    "all": ("dp_shard", "ring", "ulysses"),
    "ulysses_only": ("dp_shard", "ulysses"),
    "ring_only": ("dp_shard", "ring"),
    "none": ("dp_shard",),
}
"""Axes over which parameters are sharded, by the value of ``--cp-fsdp``. Over the others they are replicated."""


assert set(SHARDING_AXES) == set(get_args(CpFsdp))


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """All ranks of a job.

    Attributes:
        world: the mesh of the axes ``AXES``.
        parameters: the same ranks as two axes, ``replicate`` and ``shard``. Ranks of one row hold a replica of the
            parameters between them; ranks of one column hold the same part, and sum its gradients.
        cp: this rank's place in its context-parallel group.
        dp_rank: which pack of a step this rank trains on, below ``dp_size``.
        dp_size: packs of a step.
    """

    world: DeviceMesh
    parameters: DeviceMesh
    cp: ContextParallel
    dp_rank: int
    dp_size: int

    @property
    def place(self) -> dict[str, int]:
        """This rank's place, as ``PackedDataset`` takes it."""
        return {
            "dp_rank": self.dp_rank,
            "dp_size": self.dp_size,
            "ulysses_degree": self.cp.ulysses_degree,
            "ring_degree": self.cp.ring_degree,
            "cp_rank": self.cp.cp_rank,
        }

    @property
    def replica(self) -> list[int]:
        """Ranks of the first replica of the parameters, which hold each number of a gradient once."""
        ranks: list[int] = self.parameters.mesh[0].tolist()
        return ranks


def build_mesh(
    device_type: str,
    *,
    dp_replicate: int,
    dp_shard: int,
    ring_degree: int,
    ulysses_degree: int,
    cp_fsdp: CpFsdp = "all",
) -> Mesh:
    """The mesh of all ranks of the default process group; there must be as many as the product of the four degrees. A
    program that was started without torchrun is the only one.

    The groups that join several axes, those of a replica's parameters and of a pack, come from separate meshes over the
    same ranks, as torch has no public way to flatten axes of a mesh.

    Args:
        device_type: of the ranks' tensors.
        dp_replicate, dp_shard, ring_degree, ulysses_degree: ranks on each axis.
        cp_fsdp: which of the two context-parallel axes shard the parameters, besides ``dp_shard``.
    """
    if not dist.is_initialized():
        load_extra("meeting").join_alone()
    degrees = (dp_replicate, dp_shard, ring_degree, ulysses_degree)
    dp_size, cp_size = dp_replicate * dp_shard, ring_degree * ulysses_degree
    world = init_device_mesh(device_type, degrees, mesh_dim_names=AXES)
    parameters = DeviceMesh(device_type, parameter_ranks(degrees, cp_fsdp), mesh_dim_names=("replicate", "shard"))
    packs = init_device_mesh(device_type, (dp_size, cp_size), mesh_dim_names=("dp", "cp"))
    place = dict(zip(AXES, world.get_coordinate() or (), strict=True))
    return Mesh(
        world=world,
        parameters=parameters,
        cp=ContextParallel(
            ulysses_degree=ulysses_degree,
            ring_degree=ring_degree,
            ulysses_rank=place["ulysses"],
            ring_rank=place["ring"],
            ulysses_group=_group(world, "ulysses"),
            ring_group=_group(world, "ring"),
            cp_group=_group(packs, "cp"),
        ),
        dp_rank=place["dp_replicate"] * dp_shard + place["dp_shard"],
        dp_size=dp_size,
    )


def parameter_ranks(degrees: tuple[int, int, int, int], cp_fsdp: CpFsdp) -> Int64[torch.Tensor, "replicate shard"]:
    """The ranks of a job of these degrees, in the order of ``AXES``, as replicas of the parameters."""
    sharding = [AXES.index(axis) for axis in SHARDING_AXES[cp_fsdp]]
    replicating = [number for number in range(len(AXES)) if number not in sharding]
    ranks = torch.arange(math.prod(degrees)).view(degrees).permute(*replicating, *sharding)
    return ranks.reshape(-1, math.prod(degrees[number] for number in sharding))


def _group(mesh: DeviceMesh, axis: str) -> dist.ProcessGroup | None:
    return mesh.get_group(axis) if mesh[axis].size() > 1 else None
