# ruff: noqa: N803, N806 (shape suffixes)
"""Keys and values that are expanded from one latent of each token, which travels in their place.

In multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2) a matrix expands a token's latent to the plain parts of
all heads' keys and to their values, and all heads share one turned part of keys. Seen from an exchange, latents are the
keys of a single head and shared parts its values; a rank expands what arrives, for its own heads, and sends gradients
of latents back. The matrix's gradient on a rank is that of what the rank expanded, to be added over ranks.

Shapes: H query heads, K key heads, L tokens of a slice, T tokens that arrived, C width of latents, P of shared parts,
D head_dim of queries and keys, V of values, X = D - P + V.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels.whole import accumulation_dtype
from preshard.trainer.attention.pieces import repeated_kv_heads


def expand(
    latent_1TC: Float[Tensor, "1 T C"], shared_1TP: Float[Tensor, "1 T P"], up_CKX: Float[Tensor, "C K X"], width: int
) -> tuple[Float[Tensor, "K T D"], Float[Tensor, "K T V"]]:
    """Keys and values of some heads. Differentiable.

    Args:
        width: D, of queries and keys.
    """
    _, n_heads, both = up_CKX.shape
    plain = width - shared_1TP.shape[-1]
    made_KTX = (latent_1TC[0] @ up_CKX.flatten(1)).unflatten(1, (n_heads, both)).transpose(0, 1)
    plain_KTX, v_KTV = made_KTX.split([plain, both - plain], dim=-1)
    return torch.cat([plain_KTX, shared_1TP.expand(n_heads, -1, -1)], dim=-1), v_KTV.contiguous()


def pull_back(
    latent_1TC: Float[Tensor, "1 T C"],
    up_CKX: Float[Tensor, "C K X"],
    dk_KTD: Float[Tensor, "K T D"],
    dv_KTV: Float[Tensor, "K T V"],
    *,
    with_up: bool,
) -> tuple[Float[Tensor, "1 T C"], Float[Tensor, "1 T P"], Float[Tensor, "C K X"] | None]:
    """Gradients of what :func:`expand` took, in the accumulation dtype: of latents, shared parts and the matrix."""
    dtype = accumulation_dtype(latent_1TC.dtype)
    plain = up_CKX.shape[-1] - dv_KTV.shape[-1]
    made_TKX = torch.cat([dk_KTD[..., :plain], dv_KTV], dim=-1).to(latent_1TC.dtype).transpose(0, 1)
    made_TN = made_TKX.flatten(1)
    dlatent_TC = made_TN @ up_CKX.flatten(1).T
    dup = (latent_1TC[0].T @ made_TN).view(up_CKX.shape).to(dtype) if with_up else None
    return dlatent_TC[None].to(dtype), dk_KTD[..., plain:].sum(dim=0, keepdim=True, dtype=dtype), dup


def value_width(q_HLD: Tensor, v: Tensor, up_CKX: Tensor | None) -> int:
    """Width of values: of those that are there, or are to be expanded."""
    return v.shape[-1] if up_CKX is None else up_CKX.shape[-1] - q_HLD.shape[-1] + v.shape[-1]


def choose_parts(
    q_HLD: Float[Tensor, "H L D"], k: Tensor, v: Tensor, up_CKX: Float[Tensor, "C K X"] | None, cp: ContextParallel
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Parts of a token that travel for a rank's heads, along both axes: those of fewer numbers.

    Returns:
        Latents, shared parts, and the rank's heads of the matrix; or keys and values of all heads, and None.
    """
    if up_CKX is None:
        return k, v, None
    n_heads, width = up_CKX.shape[1], q_HLD.shape[-1]
    copies = repeated_kv_heads(n_heads, cp.ulysses_degree) // n_heads
    own = n_heads * copies // cp.ulysses_degree
    if cp.cp_size == 1 or own * (width + value_width(q_HLD, v, up_CKX)) <= k.shape[-1] + v.shape[-1]:
        return *expand(k, v, up_CKX, width), None
    copied = up_CKX if copies == 1 else up_CKX.repeat_interleave(copies, dim=1)
    return k, v, copied[:, cp.ulysses_rank * own :][:, :own]


class Gathered:
    """Latents that arrived, expanded for some heads at a time, and the sums of their gradients.

    Args:
        held: latents and shared parts that arrived.
        up: the matrix of a rank's heads.
        width: of queries and keys.
        with_up: whether the matrix's gradient is wanted.
    """

    def __init__(self, held: tuple[Tensor, Tensor], up: Tensor, width: int, *, with_up: bool = False) -> None:
        self._held, self._up, self._width, self._with_up = held, up, width, with_up
        self._sums: list[Tensor] = []
        self._of_up: list[Tensor] = []

    def expanded(self, turns: Iterable[Any]) -> Iterator[tuple[Any, tuple[Tensor, Tensor]]]:
        """Each turn with the keys and values of its heads."""
        for turn in turns:
            yield turn, expand(*self._held, self._up[:, turn.keys], self._width)

    def pull_back(self, turn: Any, dk: Tensor, dv: Tensor) -> None:
        """Adds the gradients of a turn's keys and values."""
        *more, dup = pull_back(self._held[0], self._up[:, turn.keys], dk, dv, with_up=self._with_up)
        self._sums = [total.add_(each) for total, each in zip(self._sums, more, strict=True)] if self._sums else more
        self._of_up += [] if dup is None else [dup.to(self._up.dtype)]

    @property
    def message(self) -> Float[Tensor, "T C+P"]:
        """Gradients of what arrived, in the accumulation dtype."""
        return torch.cat(self._sums, dim=-1)[0]

    @property
    def of_up(self) -> Float[Tensor, "C K X"] | None:
        """Gradient of the matrix."""
        return torch.cat(self._of_up, dim=1) if self._of_up else None
