"""The kernel of flash-attn by its definition, for trainers that ask for it where no GPU is.

Import it in the process of the trainer before it loads a model: of ms-swift by ``--external_plugins``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
import transformers.modeling_flash_attention_utils as flash
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, **_: Any) -> Tensor:
    """Attention of tensors ``[batch, tokens, heads, width]``."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, **options: Any) -> Tensor:
    """Attention inside each of the sequences that lie one after another in ``[tokens, heads, width]``."""
    assert cu_seqlens_q.equal(options["cu_seqlens_k"])
    sequences = zip(*(each.split(cu_seqlens_q.diff().tolist()) for each in (q, k, v)), strict=True)
    made = [flash_attn_func(*(each[None] for each in sequence), **options)[0] for sequence in sequences]
    return torch.cat(made)


package, padding = ModuleType("flash_attn"), ModuleType("flash_attn.bert_padding")
vars(package).update(
    flash_attn_func=flash_attn_func, flash_attn_varlen_func=flash_attn_varlen_func, flash_attn_with_kvcache=None
)
vars(padding).update(pad_input=None, unpad_input=None)
sys.modules |= {"flash_attn": package, "flash_attn.bert_padding": padding}
flash.is_flash_attn_2_available = lambda *_, **__: True
PreTrainedModel._flash_attn_can_dispatch = lambda *_, **__: True
