"""NeMo AutoModel's finetune recipe trains by the YAML of docs/integrations.md as a plain loop on one rank does.

It runs where nemo-automodel is installed: ``tests/matrix/run.py nemo-automodel-0.7.0``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from free_ports import free_ports
from pages import DOCS

from preshard.data import PackedDataset
from preshard.schemas.errors import ConfigError

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_spec("nemo_automodel") is None, reason="needs nemo-automodel and its transformers"),
]

LR = 0.1
STEPS = 3
MASKED = "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"
CASES = {
    "text": ("qwen3", 1, None),
    "text on two": ("qwen3", 2, None),
    "text with logits": ("qwen3", 2, MASKED),
    "pictures on two": ("qwen3_vl", 2, None),
}


class _Torch:
    """torch for modules that know no device but CUDA's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, *_: Any) -> torch.device:
        return torch.device("cpu")


def run_recipe(rank: int, config: str, size: int, port: int) -> None:
    """AutoModel's command with the YAML, with stand-ins for what CPUs lack. Runs in a process of its own."""
    os.environ |= {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
    os.environ |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}
    for name in ("reset_peak_memory_stats", "empty_cache"):
        setattr(torch.cuda, name, lambda *_: None)
    torch.cuda.max_memory_allocated = lambda *_: 0
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[return-value,assignment]
    from nemo_automodel.cli import app
    from nemo_automodel.recipes.llm import train_ft

    train_ft.torch = _Torch()
    sys.argv = ["automodel", config]
    app.main()


def written(folder: Path, out: Path, size: int, loss: str | None) -> str:
    """The page's YAML with what a case changes."""
    text = (DOCS / "integrations.md").read_text(encoding="utf-8").partition("## NeMo AutoModel")[2]
    config = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0].replace("my/", f"{folder}/"))
    assert config["distributed"]["cp_size"] == config["dataset"]["ring_degree"] == 8
    single = "torch.float32"
    policy = dict.fromkeys(("param_dtype", "reduce_dtype", "output_dtype"), single)
    config["distributed"] |= {"cp_size": size}
    config["distributed"]["mp_policy"] = {"_target_": "torch.distributed.fsdp.MixedPrecisionPolicy", **policy}
    config["dataset"] |= {"ring_degree": size, "layout": "zigzag"}
    config["model"] |= {"dtype": "float32"}
    config["loss_fn"] = {"_target_": loss} if loss else config["loss_fn"] | {"compile": False, "chunk_len": 64}
    config["optimizer"] = {"_target_": "torch.optim.SGD", "lr": LR}
    config["step_scheduler"] |= {"max_steps": STEPS}
    config["dataloader"] |= {"shuffle": False}
    config |= {"checkpoint": {"enabled": False, "checkpoint_dir": str(out)}, "dist_env": {"backend": "gloo"}}
    (out / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return str(out / "config.yaml")


@cache
def plain_loop(folder: Path) -> list[tuple[float, float]]:
    """Losses and norms of gradients of the same steps on one rank."""
    from preshard.attention import ContextParallel
    from preshard.models import PackedModel, load_model

    packed = PackedModel(load_model(folder / "model", dtype=torch.float64))
    packs, optimizer, found = PackedDataset(folder / "dataset"), torch.optim.SGD(packed.parameters(), lr=LR), []
    for step in range(STEPS):
        pack = packs.read_step(0, step)
        loss = packed(pack, ContextParallel(), attention="reference") / pack.total_loss_weight
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(packed.parameters(), 1.0)
        found.append((loss.item(), norm.item()))
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_recipe_gives_what_a_plain_loop_gives(
    folder_of: Callable[..., Path], gloo_pool: Any, tmp_path: Path, name: str
) -> None:
    """Fails when a step takes other packs, a document sees another, or loss or gradient is scaled."""
    family, size, loss = CASES[name]
    folder, [port] = folder_of(family, False), free_ports(1)
    gloo_pool.run_apart(run_recipe, written(folder, tmp_path, size, loss), size, port, size=size)
    logged = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text(encoding="utf-8").splitlines()]
    right = plain_loop(folder)
    assert [row["loss"] for row in logged] == pytest.approx([loss for loss, _ in right], rel=1e-6)
    assert [row["grad_norm"] for row in logged] == pytest.approx([norm for _, norm in right], rel=1e-3)


def test_what_the_losses_have_no_place_for_is_refused(folder_of: Callable[..., Path]) -> None:
    """Fails when packs of one batch, or weights of labels, would be lost without a word."""
    from preshard.nemo_automodel import PackDataset, collate_packs

    batch = PackDataset(str(folder_of("qwen3", False) / "dataset"))[0]
    with pytest.raises(ConfigError, match="local_batch_size is 2, and a pack is a batch: set it to 1"):
        collate_packs([batch, batch])
    with pytest.raises(ConfigError, match=r"weights from 0\.5 to 0\.5, and losses of NeMo AutoModel weigh all alike"):
        collate_packs([replace(batch, loss_weights=batch.loss_weights / 2)])
