# ruff: noqa: N803, N806 (shape suffixes)
"""Gives the layers of ``transformers`` with a gated delta rule a forward over packs (Qwen3-Next, Qwen3.5).

Their own forward reads all tokens of a rank as one sequence. What it computes stays here as it is: projections, gates,
norm and output are the module's own, token by token. The convolution and the rule between them are the functions of the
module's file, document by document: on a GPU with the package ``fla`` by its kernels, one call for many documents.

Shapes: those of :mod:`preshard.trainer.attention.states`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TokenLayout
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.states import (
    Rule,
    StatePlan,
    check_value_heads,
    convolve,
    deal_heads,
    plan_states,
    scan,
    to_heads,
    to_tokens,
)
from preshard.trainer.models.interface import Sealed

Projected = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""q, k, v, z, b and a of each token, with one dim for heads and widths in q, k and v."""


def check_states(config: Any, cp_size: int) -> None:
    """Checks that the layers of a model that carry a state can be dealt to the ranks of a pack.

    Raises:
        ConfigError: their heads do not divide.
    """
    check_value_heads(config.get_text_config().linear_num_value_heads, cp_size)


def bind_states(
    config: Any, layout: TokenLayout, mask: MaskArrays, cp: ContextParallel, device: torch.device
) -> dict[str, Sealed[StatePlan]]:
    """Plan of a pack for the layers of a model that carry a state, as an argument of the model's call.

    Raises:
        ConfigError: their heads do not divide among the ranks.
    """
    check_states(config, cp.cp_size)
    taps = config.get_text_config().linear_conv_kernel_dim
    return {"states": Sealed(plan_states(layout, mask, cp, taps=taps, device=device))}


def _project_next(module: Any, hidden_1LC: Tensor) -> Projected:
    qkvz, ba = module.in_proj_qkvz(hidden_1LC), module.in_proj_ba(hidden_1LC)
    q, k, v, z, b, a = (x[0] for x in module.fix_query_key_value_ordering(qkvz, ba))
    return q.flatten(1), k.flatten(1), v.flatten(1), z, b, a


def _project(module: Any, hidden_1LC: Tensor) -> Projected:
    hidden = hidden_1LC[0]
    q, k, v = module.in_proj_qkv(hidden).split([module.key_dim, module.key_dim, module.value_dim], dim=-1)
    z = module.in_proj_z(hidden).unflatten(-1, (-1, module.head_v_dim))
    return q, k, v, z, module.in_proj_b(hidden), module.in_proj_a(hidden)


def follow_states(model: nn.Module) -> None:
    """Makes each layer with a state take a pack's documents one by one. Nothing but the attribute ``forward`` of these
    modules changes; parameters keep their names.
    """
    for module in model.modules():
        if type(module).__name__.endswith("GatedDeltaNet"):
            project = _project_next if hasattr(module, "in_proj_qkvz") else _project
            module.forward = partial(_forward, module, project)


@torch.compiler.disable
def _forward(
    module: Any,
    project: Callable[[Any, Tensor], Projected],
    hidden_states: Tensor,
    *,
    states: Sealed[StatePlan] | None = None,
    **_: Any,
) -> Tensor:
    if states is None:
        raise ConfigError("a layer with a state is called without a pack; wrap the model in PackedModel")
    plan = states.content
    q, k, v, z_LHV, b, a = project(module, hidden_states)
    n_heads, n_ranks = module.num_v_heads // plan.degree, plan.degree
    k_dim, v_dim = module.head_k_dim, module.head_v_dim
    widths = (k_dim, k_dim, v_dim)
    qkv = [deal_heads(x, width, n_ranks) for x, width in zip((q, k, v), widths, strict=True)]
    gates = [deal_heads(x, 1, n_ranks) for x in (b, a)]
    mixed, b, a = to_heads(torch.cat([*qkv, *gates], -1), plan).split(
        [sum(x.shape[-1] for x in qkv), n_heads, n_heads], -1
    )
    convolution, rule, fused = _functions(module, mixed.device)
    # channels of the convolution are dealt with their heads
    per_channel = module.conv1d.weight.squeeze(1).T.split([q.shape[-1], k.shape[-1], v.shape[-1]], -1)
    weight = torch.cat(
        [deal_heads(x, width, n_ranks)[:, plan.rank] for x, width in zip(per_channel, widths, strict=True)], -1
    )
    mixed = convolve(convolution, mixed, weight.T.contiguous(), module.activation, plan)
    q, k, v = mixed.split([x.shape[-1] for x in qkv], -1)
    mine = slice(plan.rank * n_heads, (plan.rank + 1) * n_heads)
    b, a = b[plan.arriving], a[plan.arriving]
    inputs = {
        "query": q.unflatten(-1, (-1, k_dim)),
        "key": k.unflatten(-1, (-1, k_dim)),
        "value": v.unflatten(-1, (-1, v_dim)),
        "g": -module.A_log[mine].float().exp() * nn.functional.softplus(a.float() + module.dt_bias[mine]),
        "beta": b.sigmoid(),
    }
    out_THV = scan(rule, inputs, plan, fused=fused)
    out_LHV = to_tokens(out_THV.flatten(1), plan).unflatten(-1, (-1, v_dim))
    normed = module.norm(out_LHV.flatten(0, 1), z_LHV.flatten(0, 1)).unflatten(0, z_LHV.shape[:2])
    out: Tensor = module.out_proj(normed.flatten(1))[None]
    return out


def _functions(module: Any, device: torch.device) -> tuple[Callable[..., Tensor], Rule, bool]:
    """The convolution and the rule of a module's file, and whether the rule takes many sequences in one call.

    ``transformers`` wraps its torch functions by whatever package is installed, wherever the tensors are.
    """
    names = vars(sys.modules[type(module).__module__])
    convolution, rule = names["causal_conv1d_fn"], names["torch_chunk_gated_delta_rule"]
    on_device = device.type == "cuda"
    return (
        convolution if on_device else inspect.unwrap(convolution),
        rule if on_device and _has_fla() else inspect.unwrap(rule),
        on_device and _has_fla(),
    )


@cache
def _has_fla() -> bool:
    return find_spec("fla") is not None
