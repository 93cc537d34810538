# ruff: noqa: N806 (shape suffixes)
"""The vision encoder: a plain ViT (Dosovitskiy et al. 2021) with the shape of SigLIP 2 (Tschannen et al. 2025).

Every crop is encoded by itself. A rank without a crop encodes a batch of zero crops: its parameters are used all the
same, get gradients of zero, and take part in every collective of sharded training. Shape suffixes: N crops, H heads,
P patches of a crop, D head_dim.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.models.config import VisionEncoderConfig

MIDDLE_PIXEL = 127.5
"""Half of the largest pixel value, which becomes 0."""


def to_patches(
    images: UInt8[Tensor, "N height width 3"], patch_size: int, dtype: torch.dtype
) -> Float[Tensor, "N P pixels"]:
    """Crops as patches, row by row of the crop; pixels of a patch by (row, column, channel), scaled to -1 to 1."""
    n, height, width, channels = images.shape
    grid = images.reshape(n, height // patch_size, patch_size, width // patch_size, patch_size, channels)
    patches = grid.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
    # scaled before rounding to the model's dtype: bfloat16 has few numbers near 1
    return (patches.to(torch.promote_types(dtype, torch.float32)) / MIDDLE_PIXEL - 1).to(dtype)


class VisionAttention(nn.Module):
    """Every patch of a crop sees every patch of that crop."""

    def __init__(self, config: VisionEncoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Float[Tensor, "N P hidden"]) -> Float[Tensor, "N P hidden"]:
        qkv = self.qkv_proj(x).unflatten(2, (3, self.num_heads, -1))
        q_NHPD, k_NHPD, v_NHPD = qkv.permute(2, 0, 3, 1, 4)
        # CUDA's attention kernels may refuse an empty batch; the sum keeps the graph
        out_NHPD = (
            functional.scaled_dot_product_attention(q_NHPD, k_NHPD, v_NHPD) if len(x) else q_NHPD + k_NHPD + v_NHPD
        )
        return self.out_proj(out_NHPD.transpose(1, 2).flatten(2))


class VisionBlock(nn.Module):
    """Attention and MLP, each on the normed patches and added to them. ``recompute`` is as in a decoder layer."""

    def __init__(self, config: VisionEncoderConfig, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = VisionAttention(config)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Float[Tensor, "N P hidden"]) -> Float[Tensor, "N P hidden"]:
        if self.recompute and torch.is_grad_enabled():
            recomputed: Tensor = checkpoint(self._forward, x, use_reentrant=False)
            return recomputed
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down_proj(functional.gelu(self.up_proj(self.mlp_norm(x)), approximate="tanh"))


class VisionEncoder(nn.Module):
    """Encodes crops to features of their patches."""

    def __init__(self, config: VisionEncoderConfig, *, recompute: bool = False) -> None:
        super().__init__()
        if config.image_size is None or config.patch_size is None:
            raise AssertionError("build a model from a config that for_dataset has filled in")
        self.patch_size = config.patch_size
        self.patch_embedding = nn.Linear(3 * config.patch_size**2, config.hidden_size)
        patches = (config.image_size // config.patch_size) ** 2
        self.position_embedding = nn.Parameter(torch.empty(patches, config.hidden_size))
        self.blocks = nn.ModuleList(VisionBlock(config, recompute=recompute) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, images: UInt8[Tensor, "N height width 3"]) -> Float[Tensor, "N P hidden"]:
        """Features of every patch, row by row of the crop."""
        patches = to_patches(images, self.patch_size, self.patch_embedding.weight.dtype)
        x = self.patch_embedding(patches) + self.position_embedding
        for block in self.blocks:
            x = block(x)
        features: Tensor = self.norm(x)
        return features
