"""A step on a device that is not there: what it holds, sends and waits for, and that nothing of it stays behind."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from preshard.schemas.errors import ConfigError
from preshard.trainer.core.config import make_config
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extra.dry_run import fused, guard
from preshard.trainer.extra.dry_run.device import fake_cuda
from preshard.trainer.extra.dry_run.ledger import Ledger
from preshard.trainer.extra.dry_run.report import describe
from preshard.trainer.extra.dry_run.run import DryRun, _fullest_rank, dry_run
from preshard.trainer.models.load import empty_model
from preshard.trainer.models.packed import PackedModel

pytestmark = [
    pytest.mark.process,  # the packs are made by a job
    pytest.mark.skipif(guard.compiler() is None, reason="no C++ compiler to build trainer/extra/dry_run/guard.cpp"),
]

Folders = Callable[[str], Path]

READS_TOTALS = "tolist in trainer/core/step.py"
"""The one place where a step waits: for the sums of all ranks, when its gradients are there."""


def run(folder_of: Folders, family: str = "qwen3_vl", **given: Any) -> DryRun:
    folder = folder_of(family)
    plain = {"data": str(folder / "dataset"), "model": folder / "model", "steps": 1, "dry_run": True}
    return dry_run(make_config({**plain, **given}))


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("qwen3_vl", "gather"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("qwen3_vl", "ring"), ("qwen3_vl", "ulysses")),
                *((family, "gather") for family in ("glm4v", "exaone4_5", "kimi_k25", "minicpm3")),
            )
        ),
    ],
)
def test_what_a_step_waits_for(folder_of: Folders, family: str, kind: str) -> None:
    """Fails when a step waits for the device but once, waits for a copy to it, or copies memory that is not
    page-locked: the host then stops until all that was started before has ended.
    """
    found = run(folder_of, family, ring=4, attention=kind, recompute="selective", world=8)
    assert [place.rpartition(":")[0] for place in found.waits] == [READS_TOTALS]
    assert not found.blocking
    assert not found.pageable
    assert found.kernels_of("attention") > 0


@pytest.mark.slow
def test_memory_by_parts(folder_of: Folders) -> None:
    """Fails when a part of memory is not counted or not freed: parameters of which a rank holds its share, AdamW's two
    means of each; when something of a step outlives it; or when a step comes to hold more than it did.
    """
    gc.disable()  # what waits for it would stay on a GPU as long as it likes
    try:
        found = run(folder_of, ring=4, recompute="selective")
    finally:
        gc.enable()
    config = json.loads((folder_of("qwen3_vl") / "model" / "config.json").read_text())
    assert found.parts["optimizer"] == pytest.approx(2 * found.parts["parameters"], rel=0.05)
    assert found.state == pytest.approx(found.parts["parameters"] + found.parts["optimizer"], rel=0.01)
    embedding = config["text_config"]["vocab_size"] * config["text_config"]["hidden_size"] * 4 // 4
    assert embedding < found.parts["parameters"] < 20 * embedding
    assert {"gathered", "encoder", "attention"} <= set(found.parts)
    assert sum(found.parts.values()) == found.peak == max(found.peaks.values())
    assert found.peak < RECORDED


@pytest.mark.parametrize("family", ["qwen3_vl", pytest.param("mistral3", marks=pytest.mark.slow)])
def test_calls_for_images_and_for_parts_of_the_model(folder_of: Folders, family: str) -> None:
    """Fails when the encoder's attention is a call for each image again, or computed again with ``selective``; or when
    the embedding and the output projection are whole while others are needed, or gathered once more than needed.
    """
    found = run(folder_of, family, recompute="selective", dp_shard=2)
    model: Any = PackedModel(empty_model(folder_of(family) / "model"))
    vision, text = model.config.vision_config, model.config.text_config
    layers = (getattr(vision, "depth", None) or vision.num_hidden_layers) + text.num_hidden_layers
    assert any(
        len(pack.units) > 2 for pack in PackedDataset(folder_of(family) / "dataset") if [pack.pack_id] == found.packs
    )
    assert found.kernels["forward", "attention"] == found.kernels["backward", "attention"] == layers
    blocks = model.blocks
    assert {model.get_input_embeddings(), model.get_output_embeddings()} < set(blocks)
    gathered = {phase: calls for (phase, kind), (calls, _) in found.collectives.items() if kind == "allgather_base"}
    # backward: the root and the output projection are there still, and the embedding is not needed
    assert gathered == {"forward": len(blocks) + 1, "backward": len(blocks) - 2}


RECORDED = 7_400_000
"""Bytes that a step may hold at once, 5% more than it held when this was written."""


@pytest.mark.slow
def test_saving_memory_saves_it(folder_of: Folders) -> None:
    """Fails when the ways to save memory do nothing on a GPU: recomputation, offloading to the host, fewer logits."""
    plain = run(folder_of, "qwen3", recompute="none", logits_mib=1)
    full = run(folder_of, "qwen3", recompute="full", logits_mib=1)
    away = run(folder_of, "qwen3", recompute="full", logits_mib=1, offload="host")
    assert plain.peaks["backward"] > full.peaks["backward"] >= away.peaks["backward"]
    assert away.host > plain.host == full.host == 0
    assert full.kernels_of("products") > plain.kernels_of("products")


@pytest.mark.slow
def test_state_on_the_host(folder_of: Folders) -> None:
    """Fails when parameters, gradients or AdamW's means stay on the device with --offload state, when a step waits for
    them more than once a block's gradients, or when they travel from memory that is not page-locked.
    """
    given: Any = {"ring": 4, "recompute": "full"}
    plain, away = run(folder_of, "qwen3", **given), run(folder_of, "qwen3", **given, offload="state")
    assert "optimizer" not in away.parts  # of "parameters", buffers stay
    assert away.state < 0.02 * plain.state
    assert away.peak < plain.peak
    assert away.host == pytest.approx(plain.state * 4 / 3, rel=0.2)  # with gradients, each tensor rounded up
    held = plain.parts["parameters"]
    assert away.copied["backward", "to host"] == pytest.approx(held, rel=0.2)
    assert sum(size for (_, way), size in away.copied.items() if way == "to device") > 1.5 * held
    assert not away.blocking
    assert not away.pageable
    assert away.collectives == plain.collectives


def test_ranks_that_are_not_there(folder_of: Folders) -> None:
    """Fails when other ranks change what this one sends: with twice the ranks a pack, half of the tokens; parameters
    over twice the ranks, half of the state.
    """
    one = run(folder_of, "qwen3", ring=2)
    more = run(folder_of, "qwen3", ring=4, world=8, dp_shard=2, cp_rank=3, pack=1)
    assert more.tokens * 2 == one.tokens
    assert more.rank % 4 == 3
    assert more.packs == [1]
    assert more.state == pytest.approx(one.state / 4, rel=0.2)  # tensors of a few bytes are rounded
    for found in (one, more):
        kinds = {kind for _, kind in found.collectives}
        assert {"alltoall_base", "reduce_scatter_base"} <= kinds
    assert any("no GPU has confirmed" in line for line in describe(more))


def test_the_fullest_rank_is_counted() -> None:
    """Fails when a dry run takes a rank with fewer images than another, or with as many and fewer keys."""
    batch: Any = SimpleNamespace(
        pool_edges=torch.tensor([0, 4, 10, 16, 18]), layout=SimpleNamespace(needs=np.array([[1, 0], [1, 1]]))
    )
    assert _fullest_rank(batch, 4) == 2
    batch.layout.needs[0, 1] = 2
    assert _fullest_rank(batch, 4) == 1


def test_waits_and_copies_are_noticed() -> None:
    """Fails when the ledger does not see what it is there to see."""
    ledger = Ledger()
    pinned = torch.zeros(3)
    with fake_cuda(2**30, ledger.wait), ledger:
        values = torch.zeros(4, device="cuda")
        for wait in (lambda: values.sum().item(), values.tolist, lambda: values.to("cpu"), torch.cuda.synchronize):
            before = ledger.waits.total()
            wait()
            assert ledger.waits.total() == before + 1
        with pytest.raises(Exception, match=r"Dynamic|data-dependent|nonzero"):
            torch.nonzero(values)
        pinned.pin_memory().to("cuda", non_blocking=True)
        assert not ledger.blocking
        assert not ledger.pageable
        pinned.pin_memory().to("cuda")
        assert (ledger.blocking.total(), ledger.pageable.total()) == (1, 0)
        torch.zeros(3).to("cuda", non_blocking=True)
        assert (ledger.blocking.total(), ledger.pageable.total()) == (1, 1)
        before = ledger.live
        more = torch.zeros(1000, device="cuda")
        assert ledger.live == before + 4096
        del more
        assert ledger.live == before


def test_nothing_stays(folder_of: Folders) -> None:
    """Fails when a dry run leaves its device behind: torch would take CUDA for there, and other tests for CUDA's."""
    before = torch.accelerator.current_accelerator()
    run(folder_of, "qwen3")
    assert not dist.is_initialized()
    assert torch.accelerator.current_accelerator() == before
    assert torch.autograd.is_multithreading_enabled()
    leaf = torch.ones(2, requires_grad=True)
    (leaf * 2).sum().backward()
    gradient = leaf.grad
    assert isinstance(gradient, Tensor)
    assert gradient.tolist() == [2, 2]
    assert not leaf.is_pinned()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dry_run": False, "world": 8}, "--world is given without --dry-run"),
        ({"cp_rank": 4, "ring": 4}, "--cp-rank is 4; --ring 4 x --ulysses 1 ranks share a pack: take 0 to 3"),
        ({"pack": 10**6}, "--pack is 1000000; the dataset has the packs 0 to"),
        ({"ring": 4, "world": 6}, "6 processes cannot be divided by"),
    ],
)
def test_what_is_refused(folder_of: Folders, given: dict[str, Any], message: str) -> None:
    """Fails when an option without effect is taken, or a rank or pack that does not exist."""
    with pytest.raises(ConfigError, match=message):
        run(folder_of, "qwen3", **given)


def test_a_machine_without_a_compiler(folder_of: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the missing compiler ends in a traceback, or what was compiled before is not found again."""
    compiled = guard._compiled()
    monkeypatch.setattr(guard, "compiler", lambda: None)
    assert guard._compiled() == compiled
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="finds no compiler: install g"):
        run(folder_of, "qwen3")
    monkeypatch.setattr(guard, "compiler", lambda: "false")
    with pytest.raises(ConfigError, match="false does not compile"):
        run(folder_of, "qwen3")
    assert not list((tmp_path / "preshard").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_compiled_blocks_are_counted_as_such(folder_of: Folders, recompute: str) -> None:
    """Fails when compiled blocks are counted operator by operator, compute or send something else than plain ones, keep
    what a fused kernel makes again, or when their MLPs' tiles are all kept at once.
    """
    given: Any = {"ring": 4, "recompute": recompute, "logits_mib": 1}
    plain, fused = (run(folder_of, "qwen3", compile=way, **given) for way in (False, True))
    more = fused.kernels_of("products") - plain.kernels_of("products")
    assert 0 <= more <= 2 * (recompute == "full")  # a graph does not end where all that a block keeps is there
    assert fused.collectives == plain.collectives
    assert fused.state == plain.state
    assert fused.kernels_of("other") < 0.8 * plain.kernels_of("other")
    assert fused.moved_by("other") < plain.moved_by("other")
    assert fused.peaks["backward"] < plain.peaks["backward"]
    tiled = run(folder_of, "qwen3", compile=True, mlp_tiles=4, **given)
    assert tiled.kernels_of("products") > fused.kernels_of("products")
    assert tiled.peaks["backward"] < fused.peaks["backward"]


TWO_WIDTHS = (
    "deepseek_v3",
    "glm4_moe_lite",
    "mimo_v2_flash",
    "axk1",
    "deepseek_v2",
    "minicpm3",
    "youtu",
    "mistral3-latent",
)
OFTEN = TWO_WIDTHS[0]


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name != OFTEN)) for name in TWO_WIDTHS]
)
def test_values_of_another_width_than_keys(folder_of: Folders, family: str) -> None:
    """Fails when a stand-in of a kernel gives results as wide as its queries; or when a block that is counted as
    compiled keeps a buffer, such as a router's bias, as a constant, or has an operator with several results, such as
    that which chooses experts; or when keys and values are counted as sent where their latent is.
    """
    found = run(folder_of, family, ring=2)
    config = empty_model(folder_of(family) / "model").config.get_text_config()
    kernels = {phase: found.kernels[phase, "attention"] for phase in ("forward", "backward")}
    # each layer attends to keys of its own rank and of the other
    assert min(kernels.values()) >= config.num_hidden_layers, kernels
    if family == OFTEN:
        calls, sent = found.collectives["forward", "alltoall_base"]
        assert calls == config.num_hidden_layers
        rows, rest = divmod(sent, 4 * calls * (config.kv_lora_rank + config.qk_rope_head_dim))
        assert (rows <= next(iter(PackedDataset(folder_of(family) / "dataset"))).seq_len, rest) == (True, 0)
    if family != OFTEN:
        plain = run(folder_of, family, ring=2, compile=False)
        assert plain.collectives == found.collectives
        assert plain.state == found.state


@pytest.mark.slow
def test_a_block_with_a_state_is_counted_operator_by_operator(folder_of: Folders) -> None:
    """Fails when a block without attention of packs is traced, whose exchange of heads no trace can hold."""
    found = run(folder_of, "qwen3_next", ring=2)
    assert found.kernels["forward", "attention"] > 0
    assert "alltoall_base" in {kind for _, kind in found.collectives}


def test_a_block_names_the_mask() -> None:
    """Fails when a block that gives its mask by name, as afmoe does, cannot be taken apart."""
    q, k, v = torch.zeros(3, 1, 1, 2, 4)
    with pytest.raises(fused._Reached) as reached:
        fused._reach(torch.nn.Identity(), q, k, v, attention_mask=None, attend=len)
    assert reached.value.named == {"attend": len}
