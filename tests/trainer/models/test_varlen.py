"""The page's loop over a kernel of variable length gives what documents alone give."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pages import programs_of
from torch import Tensor
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention

from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.core.mesh import Mesh

pytestmark = pytest.mark.process  # the packs are made by a job

[CODE] = programs_of("training", "A kernel of variable length")
kernel = varlen.varlen_attn


def each_sequence_by_itself(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Result that ``varlen_attn`` promises, by a plain loop."""
    assert cu_seq_q is cu_seq_k
    assert cu_seq_q.dtype == torch.int32
    assert window_size == (-1, 0)
    assert return_aux is seqused_k is block_table is num_splits is None
    lengths = torch.diff(cu_seq_q)
    assert max_q == max_k == lengths.max()
    assert lengths.sum() == len(query)
    parts = zip(*(each.split(lengths.tolist()) for each in (query, key, value)), strict=True)
    out = [
        scaled_dot_product_attention(
            *(x.transpose(0, 1) for x in part), is_causal=True, scale=scale, enable_gqa=enable_gqa
        ).transpose(0, 1)
        for part in parts
    ]
    return torch.cat(out)


def run_page(folder: str, cp: ContextParallel, after_pack: Callable[[dict[str, Any]], None]) -> None:
    """Runs the page's code in float64 on the CPU, as a rank of a mesh."""
    said = {"my/model": f"{folder}/model", "my/dataset": f"{folder}/dataset", "bfloat16": "float64", "cuda": "cpu"}
    code = CODE
    for old, new in {**said, "cp = ContextParallel()": "cp = given_cp"}.items():
        assert old in code
        code = code.replace(old, new)
    names: dict[str, Any] = {"given_cp": cp, "after_pack": lambda: after_pack(names)}
    exec(f"{code}    after_pack()\n", names)


def answers_on_a_rank(mesh: Mesh, folder: str) -> list[tuple[int, float, Tensor]]:
    """Each pack with this rank's part of the loss and of the gradient, by their sums. Runs on a rank of the pool."""
    varlen.varlen_attn = each_sequence_by_itself
    found: list[tuple[int, float, Tensor]] = []

    def note(names: dict[str, Any]) -> None:
        model, batch = names["model"], names["batch"]
        loss = (names["losses"] * batch.loss_weights).sum().item()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        found.append((batch.pack_id, loss, gradient * batch.total_loss_weight))
        model.zero_grad()

    try:
        run_page(folder, mesh.cp, note)
    finally:
        varlen.varlen_attn = kernel
    return found


@pytest.mark.parametrize("ulysses", [1, 2])
def test_sequences_are_those_of_the_documents(gloo_pool: Any, made: Callable[..., Any], ulysses: int) -> None:
    """Fails when a kernel that takes edges of sequences would see across documents, miss a part of one, get edges of
    another type, or tokens in another order.
    """
    folder, right = made("qwen3", annotated=False)
    ranks = gloo_pool.run(answers_on_a_rank, str(folder), ulysses=ulysses)
    several = 0
    for parts in zip(*ranks, strict=True):
        [pack] = {part[0] for part in parts}
        assert sum(part[1] for part in parts) == pytest.approx(right.losses[pack], rel=1e-6)
        gradient = torch.stack([part[2] for part in parts]).sum(0)
        assert (gradient - right.gradients[pack]).norm() < 1e-6 * right.gradients[pack].norm()
        several += 1
    assert several == len(right.losses) > 1


def test_the_kernel_has_the_parameters_that_the_loop_gives() -> None:
    """Fails when torch's kernel takes other arguments than the function in its place, or arguments of other types."""
    ours, theirs = (inspect.signature(each).parameters for each in (each_sequence_by_itself, kernel))
    assert [(each.name, each.kind, each.default) for each in ours.values()] == [
        (each.name, each.kind, each.default) for each in theirs.values()
    ]
    q, k = (torch.zeros(6, heads, 8, device="meta", requires_grad=True) for heads in (4, 2))
    edges = torch.tensor([0, 2, 6], dtype=torch.int32, device="meta")
    out = kernel(q, k, k, edges, edges, 4, 4, window_size=(-1, 0), enable_gqa=True, scale=None)
    out.sum().backward()
    assert out.shape == q.shape
    assert k.grad.shape == k.shape
