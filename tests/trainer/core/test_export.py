"""Export of a run: what it exports is the model that it trained."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packed_ranks import load_on_a_rank, train_job
from safetensors.torch import load_file, save_file
from torch import Tensor

from preshard.packer_service.demo.model import write_model_folder
from preshard.schemas.errors import ConfigError
from preshard.trainer.core.export import export_model
from preshard.trainer.core.mesh import ContextParallel, Mesh
from preshard.trainer.core.sharding import shard_model
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.export import export_checkpoint, main
from preshard.trainer.integrations.hugging_face import OnPacks, take_packs
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel


def test_the_export_has_the_loss_of_the_next_step(gloo_pool: Any, lessons: Path, tmp_path: Path) -> None:
    """Fails when a rank's part of a weight is missing from the export, is from before the last step, or has a name that
    ``from_pretrained`` does not know.
    """
    from packed_models import alone, load_original

    folder, common = lessons.with_name("model"), {"dtype": "float64", "min_lr": 1.0, "warmup": 0, "from_scratch": True}
    options = {"data": str(lessons), "model": str(folder), "ring": 2, "layout": "zigzag", **common}
    saved = {"checkpoint": str(tmp_path / "checkpoints"), "export": str(tmp_path / "model")}
    gloo_pool.run(train_job, {**options, "steps": 2, **saved}, ring=2)
    assert {path.name for path in folder.iterdir()} < {path.name for path in (tmp_path / "model").iterdir()}
    next_step = gloo_pool.run(train_job, {**options, "steps": 3}, ring=2)[0][2]
    batch = next(batch for batch in PackedDataset(lessons) if [batch.pack_id] == next_step.packs)
    with torch.no_grad():
        loss = alone(load_original(tmp_path, "qwen3_vl"), batch).item() / next_step.loss_weight
    assert loss == pytest.approx(next_step.loss, rel=1e-7)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "checkpoints"}
    taken = export_checkpoint(tmp_path / "checkpoints", folder, tmp_path / "again")
    assert taken == tmp_path / "checkpoints" / "step-00000002"
    for path in sorted((tmp_path / "model").iterdir()):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name
    _refused(tmp_path, folder)


def _refused(tmp_path: Path, folder: Path) -> None:
    """Checks that exporting refuses each of some checkpoints in one line."""
    other, checkpoints = tmp_path / "other", tmp_path / "checkpoints"
    write_model_folder(other, "qwen3", vocabulary=300)
    for (checkpoint, model, out), said in {
        (checkpoints, folder, tmp_path / "again"): "--out is .*/again, which exists",
        (other, folder, tmp_path / "new"): "/other holds no checkpoint",
        (checkpoints, other, tmp_path / "new"): "step-00000002 is of the model qwen3_vl .* give the folder that was",
        (checkpoints, folder, folder / "config.json" / "new"): "cannot be written to .*/new",
        (checkpoints, tmp_path, tmp_path / "new"): "has no config.json",
    }.items():
        with pytest.raises(ConfigError, match=said) as raised:
            export_checkpoint(checkpoint, model, out)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "new").exists()
    damaged = next((checkpoints / "step-00000002").glob("*.distcp"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(ConfigError, match="step-00000002 is damaged"):
        export_checkpoint(checkpoints, folder, tmp_path / "new")


def export_to(mesh: Mesh, model: str, target: str) -> str:
    """Message of a rank about an export that fails. Runs on each rank of the pool."""
    packed = PackedModel(load_model(model, from_scratch=True))
    shard_model(packed, packed.blocks, mesh.parameters, bfloat16=False)
    with pytest.raises(ConfigError) as raised:
        export_model(packed.inner, Path(model), Path(target))
    return str(raised.value)


def exported(mesh: Mesh, model: str, target: str) -> None:
    """Exports a model of which each rank has read its rows. Runs on each rank of the pool."""
    export_model(load_on_a_rank(mesh, model, dtype=torch.float32).inner, Path(model), Path(target))


FURTHER = {
    "qwen3_5": ({"tie_word_embeddings": True, "text_config": {"mtp_num_hidden_layers": 1}}, "mtp.layers.0"),
    "qwen3": (
        {
            **{"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "num_nextn_predict_layers": 1},
            **{
                "n_routed_experts": 2,
                "num_experts_per_tok": 1,
                "moe_intermediate_size": 16,
                "first_k_dense_replace": 1,
            },
        },
        "model.layers.2",
    ),
}
"""Models by a layer behind their last one that predicts further tokens; of the first, the embedding is the output."""


def write_further(source: Path, family: str) -> dict[str, Tensor]:
    """A folder with such a layer; its tensors."""
    config, layer = FURTHER[family]
    write_model_folder(source, family, vocabulary=300, files={"config.json": config})
    made: Any = load_model(source, from_scratch=True, seed=1)
    made.save_pretrained(source)
    stored = load_file(source / "model.safetensors")
    stored |= {f"{layer}.{name}.weight": torch.rand(3, 5) for name in ("eh_proj", "mlp.up_proj")}
    save_file(stored, source / "model.safetensors", metadata={"format": "pt"})
    return stored


@pytest.mark.parametrize("family", FURTHER)
def test_the_export_has_the_names_of_the_source(gloo_pool: Any, tmp_path: Path, family: str) -> None:
    """Fails when layers for multi-token prediction vanish, or a tied weight is written once for each of its names on
    more than one rank.
    """
    source, target = tmp_path / "model", tmp_path / "out"
    stored = write_further(source, family)
    gloo_pool.run(exported, str(source), str(target), dp_shard=2)
    found = load_file(target / "model.safetensors")
    assert found.keys() == stored.keys()
    assert ("lm_head.weight" in found) == (family == "qwen3")
    assert all(each.equal(stored[name]) for name, each in found.items())


@pytest.mark.parametrize("family", FURTHER)
def test_other_peoples_trainer_saves_them_too(tmp_path: Path, family: str) -> None:
    """Fails when layers for multi-token prediction vanish from what ``transformers.Trainer`` saves."""
    from transformers import Trainer

    source, target = tmp_path / "model", tmp_path / "out"
    stored = write_further(source, family)
    kind: Any = type("PackTrainer", (OnPacks, Trainer), {})
    trainer = kind.__new__(kind)
    trainer.model = take_packs(load_model(source), ContextParallel())
    trainer.args = SimpleNamespace(should_save=True, output_dir=str(target))
    trainer.processing_class = trainer.data_collator = None
    trainer._save()
    found = load_file(target / "model.safetensors")
    assert found.keys() == stored.keys()
    assert all(each.equal(stored[name]) for name, each in found.items())
    load_model(target)


def test_no_rank_waits_for_one_that_cannot_write(gloo_pool: Any, tmp_path: Path) -> None:
    """Fails when rank 0 gives up on a full disk, and the others wait for it until the transport's time is over."""
    write_model_folder(tmp_path, "qwen3", vocabulary=300)
    first, second = gloo_pool.run(export_to, str(tmp_path), str(tmp_path / "config.json" / "new"), dp_shard=2)
    assert first == second
    assert "the model cannot be written to" in first
    assert "\n" not in first


def test_the_command_says_what_is_wrong_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Fails when a missing option or a wrong path ends in a traceback or another status."""
    for arguments, said in (
        ([str(tmp_path)], "Missing option '--model'. (--help lists the options)"),
        ([str(tmp_path), "--model", str(tmp_path), "--out", str(tmp_path)], "which exists; name a folder that does"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        line = capsys.readouterr().err
        assert line.startswith("trainer: ")
        assert said in line
        assert line.count("\n") == 1
