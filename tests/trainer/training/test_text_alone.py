"""Steps without an image leave what images alone reach as it is, as AdamW leaves parameters without gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_models import SETTINGS, VOCABULARY
from packed_ranks import train_job
from safetensors.torch import load_file

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.core.step import Totals, apply_gradients
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.integrations.hugging_face import OnPacks, take_packs
from preshard.trainer.models.load import load_model

pytestmark = pytest.mark.process


def totals(units: int) -> Totals:
    figures: dict[str, Any] = dict.fromkeys(("loss_sum", "loss_weight", "grad_norm"), 1.0)
    none: dict[str, Any] = {"packs": [], "work": [], "compute_times": [], "rewards": [], "stop": False}
    return Totals(**figures, **none, tokens=1, bytes_read=0, cached_bytes=0, retries=0, data_time=0.0, units=units)


def test_a_step_without_images_passes_the_encoder_by() -> None:
    """Fails when decay or old moments change a parameter in a step that could not reach it, or count the step, or
    when a gradient is clipped where 0 turns that off.
    """
    ours, theirs = (
        [torch.nn.Parameter(torch.arange(1.0, 5).reshape(2, 2) + number) for number in range(2)] for _ in range(2)
    )
    optimizers = [torch.optim.AdamW(each, lr=0.1, weight_decay=0.5, fused=True) for each in (ours, theirs)]
    for step, units in enumerate((0, 3, 0, 0, 1)):
        gradients = [torch.full((2, 2), 0.1 * (step + 1)), torch.full((2, 2), -0.2 * (step + 1)) * (units > 0)]
        for mine, plain, gradient in zip(ours, theirs, gradients, strict=True):
            mine.grad, plain.grad = gradient.clone(), gradient.clone()
        if not units:
            theirs[1].grad = None
        apply_gradients(optimizers[0], ours, totals(units), lr=0.1, clip=0.0, of_features=ours[1:])
        optimizers[1].step()
        assert all(map(torch.equal, ours, theirs)), step


@pytest.fixture(scope="module")
def texts_for_pictures(progress: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``dataset``, of texts alone, beside ``model``, which takes pictures too."""
    folder = tmp_path_factory.mktemp("text-alone")
    write_model_folder(folder / "model", "qwen3_vl", vocabulary=VOCABULARY)
    made: Any = load_model(folder / "model", from_scratch=True, seed=1)
    made.save_pretrained(folder / "model")
    rows = [{"id": f"row-{number}", "text": "what is this? " * (20 + number)} for number in range(8)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = load_config(None, [*SETTINGS, f"model={folder / 'model'}", "seq_len=512", "max_images=null"])
    pack([str(folder / "rows.jsonl")], str(folder / "dataset"), config, PlainExecutor(), progress)
    return folder


def assert_encoder_alone_stayed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    changed = {name for name, each in before.items() if not each.equal(after[name])}
    of_encoder = {name for name in before if ".visual." in name}
    assert of_encoder
    assert changed == before.keys() - of_encoder


def test_text_leaves_an_encoder_as_it_is(gloo_pool: Any, texts_for_pictures: Path, tmp_path: Path) -> None:
    """Fails when training on text shrinks an encoder by its decay, or a checkpoint lacks what was not reached."""
    model = texts_for_pictures / "model"
    options = {
        **{"data": str(texts_for_pictures / "dataset"), "model": str(model), "ring": 2, "steps": 2, "lr": 0.1},
        **{"warmup": 0, "checkpoint": str(tmp_path / "kept"), "save_every": 1, "export": str(tmp_path / "out")},
    }
    gloo_pool.run(train_job, options, ring=2)
    assert_encoder_alone_stayed(*(load_file(each / "model.safetensors") for each in (model, tmp_path / "out")))


def test_a_trainer_of_hugging_face_leaves_it_too(texts_for_pictures: Path, tmp_path: Path) -> None:
    """Fails when ``OnPacks`` hands the optimiser an encoder's gradients of zeros, by which decay shrinks it."""
    from transformers import Trainer, TrainingArguments

    more: dict[str, Any] = {"use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no"}
    args = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=1, max_steps=2, learning_rate=0.1, weight_decay=0.1, **more
    )
    model = load_model(texts_for_pictures / "model")
    before = {name: each.clone() for name, each in model.state_dict().items()}
    kind: Any = type("PackTrainer", (OnPacks, Trainer), {})
    packs = PackedDataset(texts_for_pictures / "dataset")
    kind(model=take_packs(model, ContextParallel()), args=args, train_dataset=packs).train()
    assert_encoder_alone_stayed(before, model.state_dict())
