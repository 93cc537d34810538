"""The collectives whose names differ between versions of torch."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.context_parallel import all_gather_single
from preshard.trainer.extra import other_meshes
from preshard.trainer.extra.other_meshes import new_group


def test_a_gather_does_not_warn(alone: None) -> None:
    """Fails when the gather is called by a name that the installed torch lacks, or warns of on every call."""
    received = torch.zeros(4)
    assert dist.group.WORLD is not None
    with warnings.catch_warnings(action="error"):
        all_gather_single(received, torch.arange(4.0), dist.group.WORLD)
    assert received.tolist() == [0, 1, 2, 3]


def test_an_order_of_ranks_that_torch_cannot_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an old torch makes a group in another order than the mesh has, so that tokens are exchanged."""
    monkeypatch.setattr(other_meshes, "ANY_ORDER", False)
    with pytest.raises(ConfigError, match=r"in the order \[2, 1, 0\], and torch .* only ascending order"):
        new_group((2, 1, 0))
