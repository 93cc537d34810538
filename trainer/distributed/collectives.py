"""What torch calls by other names, or cannot do, in the oldest version that is supported."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from preshard.schemas.errors import ConfigError

ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
"""torch 2.13 has the new name, and warns on every call of the old one."""

ANY_ORDER = "sort_ranks" in inspect.signature(dist.new_group).parameters
"""Whether a group may number its ranks in another order than the job does."""


def all_gather_single(received: Tensor, sent: Tensor, group: dist.ProcessGroup) -> None:
    """Joins equal parts of all ranks of a group in ``received``, in rank order."""
    getattr(dist, ALL_GATHER)(received, sent, group=group)


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
