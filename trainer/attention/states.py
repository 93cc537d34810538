# ruff: noqa: N803, N806 (shape suffixes)
"""Layers that carry a state along the sequence (gated delta rule, short causal convolutions), on packs.

A state starts anew at every document. An annotation of one starts from the state at the end of the prefix that it
shares with others, and its gradient returns there. So there are two kinds of sequences: *stems* start from nothing,
*branches* start from the last state of a stem. Stems come first; two calls of a kernel compute all of them.

The rule computes tokens in chunks, in float32. A branch begins at the last whole chunk of the prefix, so each of its
chunks is that of the document alone, to the last bit. The prefix's rest of fewer than 64 tokens is read again for each.

The heads of these layers are dealt over all ranks of the pack. A rank gets every token of its heads in one exchange, in
whatever order the layout has them, reads them document by document, and sends the results back in another.

Shapes: n ranks, L tokens of a rank, S = n * L tokens of the pack, T tokens of all stems and branches, E the same and
what the convolution reads before each, H heads, D their width, V that of values, C channels, W inputs of an output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.heads import exchange_for_heads, gather_heads
from preshard.trainer.device import to_device

Rule = Callable[..., tuple[Tensor, Tensor | None]]
"""The gated delta rule as ``transformers`` and ``fla`` call it: values and the last state of q, k, v, g and beta."""


Positions = Int64[np.ndarray, "tokens"]

CHUNK = 64
"""Tokens that the rule of ``transformers``, and of ``fla``, computes together."""


@dataclass(frozen=True, kw_only=True)
class StatePlan:
    """Plan of one pack's way through these layers, seen from one rank; the same for all of them.

    Attributes:
        degree, rank, group: the ranks of the pack and this one's place; the group is None for a single rank.
        stems, branches: edges of each among the tokens of its kind.
        parents: the stem of each branch.
        arriving: row of each token, of all stems and then of all branches, among the rows that arrive.
        leaving: token of each row that leaves, T for a row of zeros.
        reached: rows that the convolution reads: the last inputs before each stem or branch, then its own. S is a row
            of zeros.
        outputs: which of these are a sequence's own.
    """

    degree: int
    rank: int
    group: dist.ProcessGroup | None
    stems: list[int]
    branches: list[int]
    parents: list[int]
    arriving: Int64[Tensor, "T"]
    leaving: Int64[Tensor, "S"]
    reached: Int64[Tensor, "E"]
    outputs: Int64[Tensor, "T"]


def plan_states(
    layout: TokenLayout, mask: MaskArrays, cp: ContextParallel, *, taps: int, device: torch.device
) -> StatePlan:
    """Plans a pack's way through these layers.

    Args:
        layout: of ``cp.ring_degree`` ring ranks.
        mask: of the whole pack.
        cp: this rank's place.
        taps: inputs of one output of the convolution.
        device: where the layers compute.
    """
    stems, branches, parents = list_sequences(mask)
    order = np.concatenate([slice_positions(layout.runs, ring_rank) for ring_rank in range(layout.ring_degree)])
    row_of = np.append(np.argsort(order), mask.seq_len)  # and the row of zeros of the token after the last
    tokens = np.concatenate([*stems, *branches])
    found, first = np.unique(tokens, return_index=True)
    leaving = np.full(mask.seq_len, len(tokens))
    leaving[row_of[found]] = first
    nothing = np.full(taps - 1, mask.seq_len)
    before = [nothing] * len(stems) + [np.append(nothing, stems[n])[len(stems[n]) :] for n in parents]
    parts = [part for both in zip(before, (*stems, *branches), strict=True) for part in both]
    is_own = np.repeat(np.tile([False, True], len(before)), list(map(len, parts)))
    arrays = (row_of[tokens], leaving, row_of[np.concatenate(parts)], np.flatnonzero(is_own))
    moved = [to_device(torch.from_numpy(array), device) for array in arrays]
    return StatePlan(
        degree=cp.cp_size,
        rank=cp.cp_rank,
        group=cp.cp_group,
        stems=_edges(stems),
        branches=_edges(branches),
        parents=parents,
        arriving=moved[0],
        leaving=moved[1],
        reached=moved[2],
        outputs=moved[3],
    )


def list_sequences(mask: MaskArrays) -> tuple[list[Positions], list[Positions], list[int]]:
    """Natural positions of all stems, of all branches, and the number of each branch's stem.

    Where a prefix is shorter than a chunk, each annotation is a stem that begins with it. A pack of padding has one
    stem of one token, so that every parameter gets a gradient.
    """
    changes = np.flatnonzero((np.diff(mask.doc_ids) != 0) | (np.diff(mask.branch_ids) != 0)) + 1
    edges = [0, *changes.tolist(), mask.seq_len]
    of_doc: dict[int, list[Positions]] = {}
    for start, end in pairwise(edges):
        if (doc := int(mask.doc_ids[start])) >= 0:
            of_doc.setdefault(doc, [] if mask.branch_ids[start] == 0 else [np.arange(0)]).append(np.arange(start, end))
    stems, branches, parents = [], [], []
    for prefix, *annotated in of_doc.values():
        whole = len(prefix) // CHUNK * CHUNK if annotated else len(prefix)
        ends = [np.append(prefix[whole:], each) for each in annotated]
        if not whole:
            stems += ends
            continue
        branches += ends
        parents += [len(stems)] * len(ends)
        stems.append(prefix[:whole])
    return (stems or [np.arange(1)]), branches, parents


def check_value_heads(num_value_heads: int, cp_size: int) -> None:
    """Checks that the heads of layers with a state can be dealt to the ranks of a pack.

    Key heads need not divide among the ranks: each is sent as often as needed.

    Raises:
        ConfigError: the value heads do not divide; says what would work.
    """
    if num_value_heads % cp_size:
        fits = [n for n in range(1, num_value_heads + 1) if num_value_heads % n == 0]
        raise ConfigError(
            f"layers with a state deal linear_num_value_heads {num_value_heads} over ulysses_degree * ring_degree = "
            f"{cp_size} ranks, which does not divide: take degrees whose product is one of {fits}"
        )


def deal_heads(x_LC: Float[Tensor, "L C"], head_dim: int, degree: int) -> Float[Tensor, "L n C/n"]:
    """Each rank's share of channels, by whole heads; with copies where there are fewer heads than ranks, or they do not
    divide. Value head h still reads key head ``h // (value heads / key heads)``.
    """
    x_LHD = x_LC.unflatten(1, (-1, head_dim))
    n_heads = x_LHD.shape[1]
    x_LHD = x_LHD.repeat_interleave(math.lcm(n_heads, degree) // n_heads, dim=1)
    return x_LHD.unflatten(1, (degree, -1)).flatten(2)


def to_heads(x_LnC: Float[Tensor, "L n C"], plan: StatePlan) -> Float[Tensor, "S+1 C"]:
    """Sends each rank its channels of this rank's tokens; gives this rank's of all tokens, in rank order, and a row of
    zeros after them.
    """
    x_SC = exchange_for_heads(x_LnC.transpose(0, 1), plan.degree, plan.group)[0]
    return torch.cat([x_SC, x_SC.new_zeros(1, x_SC.shape[1])])


def to_tokens(x_TC: Float[Tensor, "T C"], plan: StatePlan) -> Float[Tensor, "L nC"]:
    """Sends results back: all channels of this rank's tokens, zeros for padding."""
    x_SC = torch.cat([x_TC, x_TC.new_zeros(1, x_TC.shape[1])])[plan.leaving]
    return gather_heads(x_SC[None], plan.degree, plan.group).transpose(0, 1).flatten(1)


def convolve(
    function: Callable[..., Tensor], x_SC: Tensor, weight_CW: Tensor, activation: str, plan: StatePlan
) -> Float[Tensor, "T C"]:
    """A causal convolution of each document by itself. One call computes all: what precedes each stem and branch, zeros
    or the last inputs of its stem, stands before it.
    """
    x_1CE = x_SC[plan.reached].T[None].contiguous()
    out_1CE = function(x_1CE, weight_CW, None, activation=activation)
    return out_1CE[0].T[plan.outputs]


def scan(
    rule: Rule, inputs: dict[str, Float[Tensor, "T *rest"]], plan: StatePlan, *, fused: bool
) -> Float[Tensor, "T H V"]:
    """The gated delta rule over each document by itself.

    Args:
        rule: of ``fla`` if ``fused``, where one call takes many sequences; else it is called for each.
        inputs: ``query``, ``key``, ``value``, ``g`` and ``beta``.
        plan: of the pack.
        fused: whether the rule takes ``cu_seqlens``.
    """
    cut, has_branches = plan.stems[-1], bool(plan.parents)
    call = _scan_at_once if fused else _scan_each
    out_THV, last = call(rule, {name: x[:cut] for name, x in inputs.items()}, plan.stems, None, has_branches)
    if not has_branches:
        return out_THV
    assert last is not None
    of_branches, _ = call(rule, {name: x[cut:] for name, x in inputs.items()}, plan.branches, last[plan.parents], False)
    return torch.cat([out_THV, of_branches])


def _scan_at_once(
    rule: Rule, inputs: dict[str, Tensor], edges: list[int], initial: Tensor | None, with_last: bool
) -> tuple[Tensor, Tensor | None]:
    cu_seqlens = to_device(torch.tensor(edges, dtype=torch.int64), inputs["query"].device)
    out, last = _call(rule, inputs, initial, with_last, cu_seqlens=cu_seqlens)
    return out, last


def _scan_each(
    rule: Rule, inputs: dict[str, Tensor], edges: list[int], initial: Tensor | None, with_last: bool
) -> tuple[Tensor, Tensor | None]:
    outs, lasts = [], []
    for number, (start, end) in enumerate(pairwise(edges)):
        part = {name: x[start:end] for name, x in inputs.items()}
        out, last = _call(rule, part, None if initial is None else initial[number : number + 1], with_last)
        outs.append(out)
        lasts.append(last)
    return torch.cat(outs), torch.cat([last for last in lasts if last is not None]) if with_last else None


def _call(
    rule: Rule, inputs: dict[str, Tensor], initial: Tensor | None, with_last: bool, **settings: Any
) -> tuple[Tensor, Tensor | None]:
    out, last = rule(
        **{name: x[None] for name, x in inputs.items()},
        initial_state=initial,
        output_final_state=with_last,
        use_qk_l2norm_in_kernel=True,
        **settings,
    )
    return out[0], last


def _edges(sequences: list[Positions]) -> list[int]:
    return [0, *np.cumsum(list(map(len, sequences))).tolist()]
