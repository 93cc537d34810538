"""A rank's place, and its groups, on a mesh that another trainer made."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Int64
from torch.distributed.device_mesh import DeviceMesh

from preshard.schemas.errors import ConfigError


def find_place(device_mesh: DeviceMesh, ring: str | None, ulysses: str | None) -> dict[str, Any]:
    """Fields of a :class:`~preshard.trainer.attention.context_parallel.ContextParallel`, from the mesh's axes of these
    names. All processes of the job call this together.
    """
    ranks = _ranks_of_a_pack(device_mesh, ring, ulysses)
    place = np.argwhere(ranks == dist.get_rank())[0]
    return {
        "ring_degree": ranks.shape[0],
        "ulysses_degree": ranks.shape[1],
        "ring_rank": int(place[0]),
        "ulysses_rank": int(place[1]),
        "ring_group": _group_of(device_mesh, ring, ranks[:, place[1]]),
        "ulysses_group": _group_of(device_mesh, ulysses, ranks[place[0]]),
        "cp_group": _group_of(device_mesh, ring if ranks.shape[1] == 1 else ulysses, ranks.reshape(-1)),
    }


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
