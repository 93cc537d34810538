"""The ranks of a job as a mesh of four axes, and one rank's place in its context-parallel group."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Int64
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from preshard.schemas.errors import ConfigError

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

    @classmethod
    def from_mesh(
        cls, device_mesh: DeviceMesh, *, ring: str | None = None, ulysses: str | None = None
    ) -> ContextParallel:
        """This rank's place on a mesh that something else made, such as torchtitan or accelerate.

        Ranks of a pack are numbered by their places on the two axes, whatever the order of the mesh's axes and of the
        ranks along them: ``cp_rank = ring_rank * ulysses_degree + ulysses_rank``. All processes of the job call this
        together, as they make the groups that the mesh does not have.

        Args:
            device_mesh: of named axes; a part of a larger mesh will do.
            ring: name of the axis whose ranks the layout deals the tokens to; without it the ring has one rank.
            ulysses: name of the axis whose ranks deal the heads; without it one rank has all heads.

        Raises:
            ConfigError: no axis has that name, both names are the same, this rank is not in the mesh, or the mesh's
                ranks are in an order that the installed torch has no groups for.
        """
        ranks = _ranks_of_a_pack(device_mesh, ring, ulysses)
        place = np.argwhere(ranks == dist.get_rank())[0]
        return cls(
            ring_degree=ranks.shape[0],
            ulysses_degree=ranks.shape[1],
            ring_rank=int(place[0]),
            ulysses_rank=int(place[1]),
            ring_group=_group_of(device_mesh, ring, ranks[:, place[1]]),
            ulysses_group=_group_of(device_mesh, ulysses, ranks[place[0]]),
            cp_group=_group_of(device_mesh, ring if ranks.shape[1] == 1 else ulysses, ranks.reshape(-1)),
        )

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
    """The mesh of all ranks of the default process group; there must be as many as the product of the four degrees.

    The groups that join several axes, those of a replica's parameters and of a pack, come from separate meshes over the
    same ranks, as torch has no public way to flatten axes of a mesh.

    Args:
        device_type: of the ranks' tensors.
        dp_replicate, dp_shard, ring_degree, ulysses_degree: ranks on each axis.
        cp_fsdp: which of the two context-parallel axes shard the parameters, besides ``dp_shard``.
    """
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


def _ranks_of_a_pack(
    device_mesh: DeviceMesh, ring: str | None, ulysses: str | None
) -> Int64[np.ndarray, "ring ulysses"]:
    """The ranks that share this rank's pack."""
    axes, place = device_mesh.mesh_dim_names or (), device_mesh.get_coordinate()
    for argument, axis in (("ring", ring), ("ulysses", ulysses)):
        if axis is not None and axis not in axes:
            raise ConfigError(
                f"{argument} is {axis!r}; the mesh has the axes {', '.join(axes) or '(without names)'}: name one of "
                f"them, or leave {argument} out for a degree of 1"
            )
    if ring is not None and ring == ulysses:
        raise ConfigError(f"ring and ulysses are both {ring!r}; name two axes, or leave one out for a degree of 1")
    if place is None:
        raise ConfigError(
            f"rank {dist.get_rank()} is not in the mesh of ranks {device_mesh.mesh.tolist()}; "
            "call this with a mesh of all ranks"
        )
    kept = [None if axis is None else axes.index(axis) for axis in (ring, ulysses)]
    picked = tuple(slice(None) if number in kept else at for number, at in enumerate(place))
    ranks = device_mesh.mesh.numpy()[picked]
    if None not in kept and axes.index(str(ring)) > axes.index(str(ulysses)):
        ranks = ranks.T
    return ranks.reshape(-1 if ring is not None else 1, ranks.shape[-1] if ulysses is not None else 1)


def _group_of(device_mesh: DeviceMesh, axis: str | None, ranks: Int64[np.ndarray, "group"]) -> dist.ProcessGroup | None:
    """The group of these ranks, in this order: that of the mesh's axis if it is the same, else a new one.

    Process groups number their ranks by their places in the job, which is another order on a mesh that was permuted.
    """
    if len(ranks) == 1:
        return None
    existing = device_mesh.get_group(axis)
    every: list[tuple[bool, tuple[int, ...]]] = [(True, ())] * dist.get_world_size()
    dist.all_gather_object(every, (dist.get_process_group_ranks(existing) == ranks.tolist(), tuple(ranks.tolist())))
    if all(same for same, _ in every):
        return existing
    # A process takes part in making each group, whether it is in it or not.
    made = {group: new_group(group) for _, group in sorted(set(every))}
    return made[tuple(ranks.tolist())]


def _group(mesh: DeviceMesh, axis: str) -> dist.ProcessGroup | None:
    return mesh.get_group(axis) if mesh[axis].size() > 1 else None


ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
"""torch 2.13 has the new name, and warns on every call of the old one."""


def all_gather_single(
    received: Tensor, sent: Tensor, group: dist.ProcessGroup, *, async_op: bool = False
) -> dist.Work | None:
    """Joins equal parts of all ranks of a group in ``received``, in rank order. What is returned waits for them."""
    work: dist.Work | None = getattr(dist, ALL_GATHER)(received, sent, group=group, async_op=async_op)
    return work


ANY_ORDER = "sort_ranks" in inspect.signature(dist.new_group).parameters
"""Whether a group may number its ranks in another order than the job does."""


def new_group(ranks: Sequence[int]) -> dist.ProcessGroup:
    """A group that numbers its ranks in this order. All ranks of the job call this.

    Raises:
        ConfigError: the order is not ascending, and torch knows no other.
    """
    if list(ranks) == sorted(ranks):
        return dist.new_group(list(ranks))
    if not ANY_ORDER:
        raise ConfigError(
            f"the mesh has ranks of a pack in the order {list(ranks)}, and torch {torch.__version__} supports only "
            "ascending order: reorder the ranks of the mesh, or install torch 2.13"
        )
    return dist.new_group(list(ranks), sort_ranks=False)
