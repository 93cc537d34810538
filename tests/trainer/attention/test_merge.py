"""Weight of a part of the keys in the whole, worked out by hand."""

from __future__ import annotations

import math

import torch

from preshard.trainer.attention.kernels.flex import share


def test_a_part_that_is_not_seen_weighs_nothing() -> None:
    """Fails when a row that sees no key of a part, or none at all, passes a gradient or NaN to that part."""
    none = -math.inf
    part, whole = torch.tensor([[0.0, none, none, 3.0]]), torch.tensor([[math.log(4), 1.0, none, 3.0]])
    torch.testing.assert_close(share(part, whole), torch.tensor([[[0.25], [0.0], [0.0], [1.0]]]))
