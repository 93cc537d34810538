# ruff: noqa: N806 (shape suffixes)
"""From patches of the vision encoder to the pooled rows that fill the decoder's tokens.

Windows of ``pool_size`` x ``pool_size`` patches are pooled by attention whose query is the window's mean, and projected
by a gated MLP: the connector of Molmo (Deitke et al. 2024, "attention_meanq" in allenai/molmo) and Molmo2. Where the
grid does not divide, the last windows hold fewer patches.

Shape suffixes: N crops, R pooled rows of a crop, W patches of a window, H heads, D head_dim.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.config import ModelConfig
from trainer.models.decoder import SwiGLU


def pooling_windows(grid: int, pool_size: int) -> tuple[Int64[Tensor, "R W"], Bool[Tensor, "R W"]]:
    """The patches of each window, and which of them exist. A patch that does not exist is given as patch 0.

    Windows come row by row of the pooled grid, whose side is ``ceil(grid / pool_size)``: the order in which the packer
    numbers the pooled rows of a crop.
    """
    side = -(-grid // pool_size)
    along = torch.arange(side * pool_size).reshape(side, pool_size)
    inside = (along < grid)[:, None, :, None] & (along < grid)[None, :, None, :]
    patches = along[:, None, :, None] * grid + along[None, :, None, :]
    return torch.where(inside, patches, 0).reshape(side**2, -1), inside.reshape(side**2, -1)


class Connector(nn.Module):
    """Pools patches to rows of the decoder's width."""

    patches: Tensor
    there: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.vision = vision = config.vision
        self.make_windows()
        self.num_heads = vision.num_attention_heads
        self.q_proj = nn.Linear(vision.hidden_size, vision.hidden_size)
        self.k_proj = nn.Linear(vision.hidden_size, vision.hidden_size)
        self.v_proj = nn.Linear(vision.hidden_size, vision.hidden_size)
        self.out_proj = nn.Linear(vision.hidden_size, vision.hidden_size)
        self.projector = SwiGLU(vision.hidden_size, config.decoder.intermediate_size, config.decoder.hidden_size)

    def make_windows(self) -> None:
        """Sets the buffers, which are constants and in no checkpoint. Call it again after the ``meta`` device."""
        vision = self.vision
        if vision.image_size is None or vision.patch_size is None or vision.pool_size is None:
            raise AssertionError("build a model from a config that for_dataset has filled in")
        patches, there = pooling_windows(vision.image_size // vision.patch_size, vision.pool_size)
        self.register_buffer("patches", patches, persistent=False)
        self.register_buffer("there", there, persistent=False)

    def forward(self, features: Float[Tensor, "N P vision"]) -> Float[Tensor, "N*R hidden"]:
        """Pooled rows, crop after crop, within a crop row by row of the pooled grid."""
        windows = features[:, self.patches] * self.there[:, :, None]
        mean = windows.sum(2, keepdim=True) / self.there.sum(1)[:, None, None]
        q_NRHD, k_NRHWD, v_NRHWD = (
            self._heads(proj(x)) for proj, x in ((self.q_proj, mean), (self.k_proj, windows), (self.v_proj, windows))
        )
        pooled = self._pool(q_NRHD, k_NRHWD, v_NRHWD).transpose(2, 3).flatten(3)[:, :, 0]
        rows: Tensor = self.projector(self.out_proj(pooled))
        return rows.flatten(0, 1)

    def _heads(self, x: Float[Tensor, "N R W vision"]) -> Float[Tensor, "N R H W D"]:
        return x.unflatten(3, (self.num_heads, -1)).transpose(2, 3)

    def _pool(self, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "N R H 1 D"]:
        """Attention with one query per window. Written out, as windows are too small and too many for a kernel."""
        scores = (q * k).sum(-1, keepdim=True) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~self.there[None, :, None, :, None], float("-inf"))
        weights = functional.softmax(scores, dim=3, dtype=torch.promote_types(scores.dtype, torch.float32))
        return (weights.to(v.dtype) * v).sum(3, keepdim=True)
