"""One rank's place among the ranks that share a pack, and the groups in which they exchange."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Int64
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from preshard.schemas.errors import ConfigError


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
