"""One rank's place among the ranks that share a pack, and the groups in which they exchange."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from preshard.trainer.extras import load_extra


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
        return cls(**load_extra("other_meshes").find_place(device_mesh, ring, ulysses))

    @property
    def cp_size(self) -> int:
        return self.ulysses_degree * self.ring_degree

    @property
    def cp_rank(self) -> int:
        return self.ring_rank * self.ulysses_degree + self.ulysses_rank


ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
"""torch 2.13 has the new name, and warns on every call of the old one."""


def all_gather_single(
    received: Tensor, sent: Tensor, group: dist.ProcessGroup, *, async_op: bool = False
) -> dist.Work | None:
    """Joins equal parts of all ranks of a group in ``received``, in rank order. What is returned waits for them."""
    work: dist.Work | None = getattr(dist, ALL_GATHER)(received, sent, group=group, async_op=async_op)
    return work
