# ruff: noqa: N803, N806 (shape suffixes)
"""The CPU's kernel: for each tile of queries, ATen's flash attention over just the keys that the tile can see.

A tile's mask is made when needed and dropped at once, so memory is that of one tile's keys. ATen cannot cap scores, so
capped ones are computed by plain torch, one key head at a time. Nor does it take values of another width than keys: the
narrower are filled up with zeros, which add nothing to a score, and to the output columns that are cut off again.

Shapes: H query heads, K key heads, Q queries, T keys, D head_dim of queries and keys, V of values; B queries of a
tile, N keys that they see; G query heads of a key head, R = G * B rows that see one key head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from preshard.trainer.attention.kernels import Gradients, Inputs, Whole
from preshard.trainer.attention.kernels.whole import accumulation_dtype
from preshard.trainer.attention.mask import MaskTensors, visible_block
from preshard.trainer.attention.tiles import CPU_TILE, TileList, Tiles, list_tiles

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, kw_only=True)
class FlashCPU:
    """ATen's flash attention over the occupied tiles. float64, float32 and bfloat16; any head_dim.

    Attributes:
        q_tile: queries that share a list of keys.
        k_tile: keys that are taken or skipped together.
        softcap: see :func:`preshard.trainer.attention.kernels.kernel_for`.
    """

    q_tile: int = CPU_TILE[0]
    k_tile: int = CPU_TILE[1]
    softcap: float | None = None

    def prepare(self, queries: MaskTensors, keys: MaskTensors, listed: TileList | None = None) -> Tiles:
        if listed is not None:
            return Tiles.of(listed, queries, keys)
        return list_tiles(queries, keys, q_tile=self.q_tile, k_tile=self.k_tile)

    def forward(
        self, q_HQD: Float[Tensor, "H Q D"], k_KTD: Float[Tensor, "K T D"], v_KTV: Float[Tensor, "K T V"], tiles: Tiles
    ) -> tuple[Float[Tensor, "H Q V"], Float[Tensor, "H Q"]]:
        q_HQD, k_KTD, v_KTV = _contiguous(q_HQD, k_KTD, v_KTV)
        out_HQV = q_HQD.new_zeros(*q_HQD.shape[:2], v_KTV.shape[-1])
        lse_HQ = torch.full(q_HQD.shape[:2], -torch.inf, dtype=accumulation_dtype(q_HQD.dtype))
        for call in _calls(tiles):
            mask_BN = _float_mask(tiles, call, q_HQD.dtype)
            q, k, v = q_HQD[:, call.rows], call.take(k_KTD), call.take(v_KTV)
            if self.softcap is not None:
                out_HQV[:, call.rows], lse_HQ[:, call.rows] = _capped(q, k, v, mask_BN, self.softcap)
                continue
            filled = _filled(q, k, v)
            out, lse = _flash(*filled, 0.0, False, attn_mask=mask_BN[None, None], scale=_scale(q_HQD))
            out_HQV[:, call.rows] = out[0, ..., : v.shape[-1]]
            # ATen returns 0 as the log-sum-exp of a row that sees nothing.
            unseen = mask_BN.amax(dim=-1) == -torch.inf
            lse_HQ[:, call.rows] = lse[0].masked_fill(unseen, -torch.inf)
        return out_HQV, lse_HQ

    def whole(
        self, q_HQD: Float[Tensor, "H Q D"], k_KTD: Float[Tensor, "K T D"], v_KTV: Float[Tensor, "K T V"], tiles: Tiles
    ) -> Whole:
        def backward(dout: Tensor, inputs: Inputs, saved: tuple[Tensor, ...]) -> Gradients:
            out, lse = saved
            return self.backward(dout, *inputs, out, lse, tiles)

        out, lse = self.forward(q_HQD, k_KTD, v_KTV, tiles)
        return Whole(out=out, saved=(out, lse), backward=backward)

    def backward(
        self,
        dout_HQV: Float[Tensor, "H Q V"],
        q_HQD: Float[Tensor, "H Q D"],
        k_KTD: Float[Tensor, "K T D"],
        v_KTV: Float[Tensor, "K T V"],
        out_HQV: Float[Tensor, "H Q V"],
        lse_HQ: Float[Tensor, "H Q"],
        tiles: Tiles,
    ) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "K T D"], Float[Tensor, "K T V"]]:
        q_HQD, k_KTD, v_KTV = _contiguous(q_HQD, k_KTD, v_KTV)
        accumulated = accumulation_dtype(q_HQD.dtype)
        dq_HQD = torch.zeros(q_HQD.shape, dtype=accumulated)
        dk_KTD, dv_KTV = torch.zeros(k_KTD.shape, dtype=accumulated), torch.zeros(v_KTV.shape, dtype=accumulated)
        # exp(-inf - lse) is 0 for every masked pair as long as lse is finite.
        finite_lse_HQ = lse_HQ.masked_fill(lse_HQ == -torch.inf, 0.0)
        for call in _calls(tiles):
            dout, q, out, lse = (x[:, call.rows] for x in (dout_HQV, q_HQD, out_HQV, finite_lse_HQ))
            k, v, mask_BN = call.take(k_KTD), call.take(v_KTV), _float_mask(tiles, call, q_HQD.dtype)
            if self.softcap is not None:
                dq, dk, dv = _capped_backward(dout, q, k, v, out, lse, mask_BN, self.softcap)
            else:
                *filled, filled_out = _filled(dout, q, k, v, out)
                grads = _flash_backward(
                    *filled, filled_out, lse[None], 0.0, False, attn_mask=mask_BN[None, None], scale=_scale(q_HQD)
                )
                dq, dk, dv = (x[0, ..., : like.shape[-1]] for x, like in zip(grads, (q, k, v), strict=True))
            dq_HQD[:, call.rows] = dq
            call.add(dk_KTD, dk)
            call.add(dv_KTV, dv)
        return dq_HQD, dk_KTD, dv_KTV


@dataclass(frozen=True, kw_only=True)
class _FlashCall:
    """One tile of queries and the keys that it sees; every query of the tile sees the first ``n_full`` of them."""

    rows: slice
    keys: slice | Tensor
    n_full: int

    def take(self, x_KTD: Tensor) -> Float[Tensor, "K N D"]:
        return x_KTD[:, self.keys] if isinstance(self.keys, slice) else x_KTD.index_select(1, self.keys)

    def add(self, x_KTD: Tensor, more_KND: Tensor) -> None:
        if isinstance(self.keys, slice):
            x_KTD[:, self.keys] += more_KND
        else:
            x_KTD.index_add_(1, self.keys, more_KND.to(x_KTD.dtype))


def _calls(tiles: Tiles) -> Iterator[_FlashCall]:
    """The calls of the flash kernel: one for each tile of queries that sees anything."""
    n_queries, n_keys = len(tiles.queries), len(tiles.keys)
    inside = np.arange(tiles.k_tile)
    for row in np.flatnonzero(np.diff(tiles.edges)):
        columns = tiles.columns[tiles.edges[row] : tiles.edges[row + 1]]
        rows = slice(int(row) * tiles.q_tile, min((int(row) + 1) * tiles.q_tile, n_queries))
        n_full = int(tiles.n_full[row]) * tiles.k_tile
        keys: slice | Tensor
        if (np.diff(columns) == 1).all():
            # A view instead of a copy; most rows inside a document are of this kind.
            keys = slice(int(columns[0]) * tiles.k_tile, min((int(columns[-1]) + 1) * tiles.k_tile, n_keys))
        else:
            tokens = (columns[:, None] * tiles.k_tile + inside).reshape(-1)
            keys = torch.from_numpy(tokens[tokens < n_keys])
        yield _FlashCall(rows=rows, keys=keys, n_full=n_full)


def _filled(*tensors: Tensor) -> list[Tensor]:
    """The tensors as one batch, filled up with zeros to the width of the widest."""
    width = max(x.shape[-1] for x in tensors)
    return [(x if x.shape[-1] == width else pad(x, (0, width - x.shape[-1])))[None] for x in tensors]


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    # In a model's or a message's memory the heads of a token lie side by side. Selecting keys from that layout costs up
    # to three times as much as the kernel itself.
    return [x.contiguous() for x in tensors]


def _float_mask(tiles: Tiles, call: _FlashCall, dtype: torch.dtype) -> Float[Tensor, "B N"]:
    """0 where a query sees a key, else -inf: the only kind of mask that ATen's flash kernel takes."""
    keys = torch.arange(call.keys.start, call.keys.stop) if isinstance(call.keys, slice) else call.keys
    mask_BN = torch.zeros(call.rows.stop - call.rows.start, len(keys), dtype=dtype)
    allowed = visible_block(tiles.queries, tiles.keys, call.rows, keys[call.n_full :])
    mask_BN[:, call.n_full :].masked_fill_(~allowed, -torch.inf)
    return mask_BN


def _capped_scores(q_RD: Tensor, k_ND: Tensor, mask_BN: Tensor, softcap: float) -> tuple[Tensor, Tensor]:
    """Scores of one key head with the cap and the mask, and the slope of the cap at each: ``1 - tanh ** 2``."""
    tanh_RN = (q_RD @ k_ND.T).mul_(_scale(q_RD) / softcap).tanh_()
    scores_RN = (tanh_RN * softcap).unflatten(0, (-1, len(mask_BN))).add_(mask_BN).flatten(0, 1)
    return scores_RN, tanh_RN.square_().neg_().add_(1)


def _by_key_head(n_kv_heads: int, *tensors: Tensor) -> list[Tensor]:
    """Rows of each key head, in the accumulation dtype."""
    return [x.unflatten(0, (n_kv_heads, -1)).flatten(1, 2).to(accumulation_dtype(x.dtype)) for x in tensors]


def _capped(
    q_HBD: Tensor, k_KND: Tensor, v_KNV: Tensor, mask_BN: Tensor, softcap: float
) -> tuple[Float[Tensor, "H B V"], Float[Tensor, "H B"]]:
    """Results as of ATen's forward; -inf as the log-sum-exp of a row that sees nothing."""
    outs, lses = [], []
    for q_RD, k_ND, v_NV in zip(*_by_key_head(len(k_KND), q_HBD, k_KND, v_KNV), strict=True):
        scores_RN, _ = _capped_scores(q_RD, k_ND, mask_BN, softcap)
        lse_R = scores_RN.logsumexp(dim=-1)
        finite_R = lse_R.masked_fill(lse_R == -torch.inf, 0.0)
        outs.append(scores_RN.sub_(finite_R[:, None]).exp_() @ v_NV)
        lses.append(lse_R)
    out, lse = (torch.cat(parts).unflatten(0, (-1, len(mask_BN))) for parts in (outs, lses))
    return out.to(q_HBD.dtype), lse


def _capped_backward(
    dout_HBV: Tensor, q_HBD: Tensor, k_KND: Tensor, v_KNV: Tensor, out_HBV: Tensor, lse_HB: Tensor, mask_BN: Tensor,
    softcap: float,
) -> tuple[Float[Tensor, "H B D"], Float[Tensor, "K N D"], Float[Tensor, "K N V"]]:  # fmt: skip
    """Gradients as of ATen's backward, in the accumulation dtype (Dao 2023, FlashAttention-2, with the cap's slope)."""
    dqs, dks, dvs = [], [], []
    rows = _by_key_head(len(k_KND), dout_HBV, q_HBD, k_KND, v_KNV, out_HBV, lse_HB[..., None])
    for dout_RV, q_RD, k_ND, v_NV, out_RV, lse_R1 in zip(*rows, strict=True):
        scores_RN, slope_RN = _capped_scores(q_RD, k_ND, mask_BN, softcap)
        weights_RN = scores_RN.sub_(lse_R1).exp_()
        dvs.append(weights_RN.T @ dout_RV)
        ds_RN = (dout_RV @ v_NV.T).sub_((dout_RV * out_RV).sum(dim=-1, keepdim=True))
        ds_RN.mul_(weights_RN).mul_(slope_RN).mul_(_scale(q_RD))
        dqs.append(ds_RN @ k_ND)
        dks.append(ds_RN.T @ q_RD)
    return torch.cat(dqs).unflatten(0, (-1, len(mask_BN))), torch.stack(dks), torch.stack(dvs)


def _scale(q_HQD: Tensor) -> float:
    return float(q_HQD.shape[-1]) ** -0.5
