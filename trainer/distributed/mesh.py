"""The ranks of a job as a mesh of four axes, and one rank's place in its context-parallel group."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

AXES = ("dp_replicate", "dp_shard", "ring", "ulysses")
"""Axes of the mesh, slowest first: ranks of one context-parallel group are neighbours, where links are fastest."""


@dataclass(frozen=True, kw_only=True)
class ContextParallel:
    """One rank's place among the ranks that share a pack.

    ``cp_rank = ring_rank * ulysses_degree + ulysses_rank``. A group of one rank is None, so that a single process needs
    no process group: code that uses a group checks for None or for the degree first.

    Attributes:
        ulysses_degree: ranks among which the heads are dealt.
        ring_degree: ranks among which the layout deals the tokens.
        ulysses_rank: this rank's place on the axis ``ulysses``.
        ring_rank: this rank's place on the axis ``ring``.
        ulysses_group: the ranks with the same ring rank, by ``ulysses_rank``.
        ring_group: the ranks with the same ulysses rank, by ``ring_rank``.
        cp_group: all ranks of the pack, by ``cp_rank``.
    """

    ulysses_degree: int = 1
    ring_degree: int = 1
    ulysses_rank: int = 0
    ring_rank: int = 0
    ulysses_group: dist.ProcessGroup | None = None
    ring_group: dist.ProcessGroup | None = None
    cp_group: dist.ProcessGroup | None = None

    @property
    def cp_size(self) -> int:
        return self.ulysses_degree * self.ring_degree

    @property
    def cp_rank(self) -> int:
        return self.ring_rank * self.ulysses_degree + self.ulysses_rank


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """All ranks of a job.

    Attributes:
        world: the mesh of the axes ``AXES``.
        parameters: the same ranks as two axes, ``dp_replicate`` and ``shard``. Parameters are sharded over all ranks of
            a replica, its context-parallel groups included, as these hold the same parameters.
        cp: this rank's place in its context-parallel group.
        dp_rank: which pack of a step this rank trains on, below ``dp_size``.
        dp_size: packs of a step.
    """

    world: DeviceMesh
    parameters: DeviceMesh
    cp: ContextParallel
    dp_rank: int
    dp_size: int


def build_mesh(device_type: str, *, dp_replicate: int, dp_shard: int, ring_degree: int, ulysses_degree: int) -> Mesh:
    """The mesh of all ranks of the default process group; there must be as many as the product of the four degrees.

    The groups that join several axes, those of a replica's parameters and of a pack, come from separate meshes over the
    same ranks, as torch has no public way to flatten axes of a mesh.
    """
    dp_size, cp_size = dp_replicate * dp_shard, ring_degree * ulysses_degree
    world = init_device_mesh(device_type, (dp_replicate, dp_shard, ring_degree, ulysses_degree), mesh_dim_names=AXES)
    parameters = init_device_mesh(
        device_type, (dp_replicate, dp_shard * cp_size), mesh_dim_names=("dp_replicate", "shard")
    )
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


def _group(mesh: DeviceMesh, axis: str) -> dist.ProcessGroup | None:
    return mesh.get_group(axis) if mesh[axis].size() > 1 else None
