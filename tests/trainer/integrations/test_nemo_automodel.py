"""The program of docs/integrations.md for NeMo AutoModel, and its sharder on the layouts of packs.

It runs where nemo-automodel is installed: ``tests/matrix/run.py nemo-automodel-0.7.0``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pages import programs_of

from preshard.schemas.errors import ConfigError

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_spec("nemo_automodel") is None, reason="needs nemo-automodel and its transformers"),
]

[PROGRAM] = programs_of("integrations", "NeMo AutoModel")
LR = 1e-3


def run_program(rank: int, folder: str, out: str, size: int) -> dict[str, Any]:
    """Losses of the program, and what its last sharder does. Runs in a process of the pool."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}/store{size}", rank=rank, world_size=size)
    code = PROGRAM
    for old, new in (
        ('"cuda", (8,)', f'"cpu", ({size},)'),
        ("bfloat16", "float64"),
        ("lr=1e-5", f"lr={LR}, weight_decay=0.0"),
        ('layout="balanced_ring"', 'layout="zigzag"'),
        ("my/", f"{folder}/"),
        ("    loss.backward()", "    losses.append(loss.detach())\n    loss.backward()"),
    ):
        assert old in code, old
        code = code.replace(old, new)
    names: dict[str, Any] = {"losses": []}
    exec(compile(code, "program", "exec"), names)
    losses = torch.stack(names["losses"])
    torch.distributed.all_reduce(losses)
    sharder, batch, mesh = names["sharder"], names["batch"], names["mesh"]
    values = torch.arange(batch.seq_len, dtype=torch.float64, requires_grad=True)
    mine = sharder.shard_token_tensor(values[None])
    whole = sharder.gather_token_tensor(mine * 1.0, trim=True)
    (whole[0] * torch.arange(batch.seq_len)).sum().backward()
    model = SimpleNamespace(prepare_model_inputs_for_cp=lambda batch, num_chunks: {"cp_sharder": sharder})  # noqa: ARG005
    given = {"input_ids": batch.tokens[None], "labels": batch.labels[None]}
    resolved = names["ContextParallelSharder"](model, mesh, given)
    found = {
        "losses": losses.tolist(),
        "mine": torch.equal(mine[0].long(), batch.positions),
        "whole": torch.equal(whole[0], values),
        "gradient": values.grad,
        "resolved": resolved.shard(given)[1] is batch,
    }
    other = names["PackedDataset"](f"{folder}/dataset", ring_degree=4, cp_rank=rank)
    wrong = next(iter(other))
    try:
        names["packed"](wrong, names["cp"], attention="ring")
    except ConfigError as error:
        found["split"] = str(error)
    layout = names["ShardLayout"](wrong.positions, original_seq_len=wrong.seq_len, padded_seq_len=wrong.seq_len)
    sharder.shard_layout = layout
    try:
        sharder.shard_token_tensor(values[None])
    except ValueError as error:
        found["cut"] = str(error)
    return found


def plain_loop(folder: Path) -> list[float]:
    """Losses of the same steps on one rank."""
    from dataclasses import replace

    from preshard.attention import ContextParallel
    from preshard.data import PackedDataset
    from preshard.models import PackedModel, load_model

    packed = PackedModel(load_model(folder / "model", dtype=torch.float64))
    optimizer = torch.optim.AdamW(packed.parameters(), lr=LR, weight_decay=0.0)
    losses = []
    for pack in PackedDataset(folder / "dataset"):
        weighted = replace(pack, loss_weights=pack.loss_weights * torch.linspace(0.5, 1.5, pack.seq_len))
        loss = packed(weighted, ContextParallel(), attention="reference") / pack.total_loss_weight
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("size", [1, 2])
def test_the_sharder_takes_the_layouts_of_packs(
    folder_of: Callable[..., Path], gloo_pool: Any, tmp_path: Path, size: int
) -> None:
    """Fails when values of tokens are cut or joined in another order than the batch, or a wrong split is taken."""
    folder = folder_of("qwen3")
    right, ranks = plain_loop(folder), gloo_pool.run_apart(run_program, str(folder), str(tmp_path), size, size=size)
    assert len(right) > 1
    for found in ranks:
        assert found["losses"] == pytest.approx(right, rel=1e-6)
        assert found["mine"]
        assert found["whole"]
        assert found["resolved"] == (size > 1)  # without context parallelism AutoModel asks no model
        assert found["split"].startswith("layout contiguous.ring4 has ring_degree 4; the mesh has")
        assert "does not match the batch this sharder last sharded" in found["cut"]
    gradient = sum(found["gradient"] for found in ranks)
    assert torch.equal(gradient, torch.arange(len(gradient), dtype=torch.float64) * size)
