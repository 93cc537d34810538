"""Choices of ``auto`` on a GPU of some size, and refusals before anything is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import VisionEncoder
from preshard.schemas.model.dimensions import ModelDimensions, model_dimensions
from preshard.schemas.model.languages import LANGUAGES
from preshard.schemas.model.memory import Trains
from preshard.trainer.core.config import TrainConfig
from preshard.trainer.core.setup import prepare
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extra import memory_check
from preshard.trainer.models.interface import register_attention

H100 = 85_045_936_128
"""Memory of an H100 of 80 GB, as CUDA states it."""

TEXT = {
    "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 151936,
}  # fmt: skip
ENCODER = VisionEncoder(
    patch_size=[16, 16], temporal_patch_size=2, hidden_size=1152, intermediate_size=4304, mlp_matrices=2, layers=27,
    windowed_layers=0, window_size=0, patch_inputs=1536, row_inputs=4 * 4608, row_hidden=4608, row_outputs=4 * 4096,
)  # fmt: skip
SIZES: ModelDimensions = model_dimensions({"text_config": TEXT}, ENCODER, "Qwen3-VL-8B")


def settings(**given: Any) -> TrainConfig:
    plain = {"data": "DATASET", "model": "DIR", "steps": 1, "dtype": "bfloat16", "layout": "balanced_gather", "ring": 8}
    return TrainConfig.model_validate({**plain, **given})


def fitting(seq_len: int = 36_864, device: int = H100, images: int = 0) -> memory_check.Fitting:
    """Packs of so many images of 1,024 patches each."""
    of_packs = np.array([[images], [1024 * images], [256 * images]])
    packs = memory_check.Packs(seq_len=seq_len, images=of_packs, rings=frozenset({1, 2, 4, 8, 16, 32}))
    return memory_check.Fitting(sizes=SIZES, packs=packs, device=device)


def gib(config: TrainConfig, **packs: int) -> float:
    return fitting(**packs).estimate(config).parts.total / 2**30


LAYER, HEAD = 4096 * (2 * 128 * (32 + 8) + 3 * 12288), 4096 * 151936
REST = 1536 * 1152 + 4608 * 4 * (4608 + 4096)
NUMBERS = 8 * 4096 + 6 * 4096 + 5 * 1024
"""Parameters of a layer, of the output projection, and of the encoder beside its layers; numbers that a layer keeps of
a token without its MLP."""


def test_every_part_is_counted() -> None:
    """Fails when a part is left out of the moment in which a layer goes backward, or is counted in other bytes:
    parameters with AdamW's means, whole blocks and their gradients, what layers keep and have in use, the encoder's
    patches and rows, the gradient of the output projection.
    """
    assert SIZES.parameters == 36 * LAYER + 2 * HEAD + REST + 27 * (4 * 1152**2 + 2 * 1152 * 4304)
    found = fitting(131_072, images=512).estimate(settings(recompute="selective")).parts
    tokens, patches, rows = 16_384, 65_536, 16_384
    assert found.state == 12 * SIZES.parameters / 8
    assert found.gathered == 2 * (REST + 3 * LAYER) + 4 * HEAD  # sums of the output projection, more than a layer's
    in_use = NUMBERS + (4 + 3.5) * 12288 + 2 * 4096  # more than its norm's copies in float32, 10 x 4096
    made = patches * 1152 * 27 + rows * 4 * (3 * 4608 + 2 * 4096)
    assert found.activations == 2 * (tokens * (36 * (4096 + 4096) + in_use) + made)
    assert (found.keys, found.logits) == (16 * 128 * 1024, 0)  # tables of tiles alone


def test_the_largest_moment_is_taken() -> None:
    """Fails when a moment is left out in which another part is largest: the loss where logits are, attention where a
    ring is long, the sums of the embeddings' gradients where a rank has few tokens, the encoder's own layers.
    """
    plain = settings(recompute="full", offload="host")
    few = fitting(1_024).estimate(plain).parts
    assert (few.gathered, few.activations) == ((2 + 4) * HEAD, 0)
    assert few.state == 16 * SIZES.parameters / 8
    many = fitting(131_072).estimate(settings(recompute="none", logits_mib=16_384)).parts
    assert many.logits == 16_384 * 151936 * (2 + 4) + (2 + 4) * HEAD
    wide = fitting(131_072).estimate(settings(recompute="full", ring=32, logits_mib=256)).parts
    assert wide.keys == 2 * 8 * 128 * (2 + 2 + 4) * 131_072 + 16 * 32 * 1024
    seen = fitting(8_192, images=2_048).estimate(plain).parts
    assert seen.activations == 2 * (262_144 * 1152 * 20 * 1.5 + 65_536 * SIZES.vision_row)


def test_a_weight_that_both_ends_share_stays_whole() -> None:
    """Fails when embedding and output projection are counted as gathered for a whole step though each is gathered by
    itself, or as apart though they are one weight.
    """
    apart = fitting(131_072)
    one, config = replace(apart, sizes=replace(SIZES, tied=True)), settings(recompute="selective")
    more, less = one.estimate(config).parts, apart.estimate(config).parts
    assert (more.gathered, more.logits) == (2 * (HEAD + REST + 3 * LAYER) + 4 * LAYER, 2 * HEAD)
    assert (less.gathered, less.logits) == (2 * (REST + 3 * LAYER) + 4 * HEAD, 0)


def test_what_stays_on_the_host() -> None:
    """Fails when parameters, gradients and AdamW's means are counted on the device with --offload state, or not on the
    host, or when inputs of blocks are counted in both places.
    """
    away, plain = (
        fitting(131_072, images=512).estimate(settings(recompute="full", offload=how)).parts for how in ("all", "none")
    )
    assert (away.state, plain.host) == (0, 0)
    inputs = 2 * (16_384 * 36 * 4096 + 65_536 * 27 * 1152)
    assert away.host == 16 * SIZES.parameters / 8 + inputs
    assert away.total < plain.total - 12 * SIZES.parameters / 8


def test_what_is_frozen_takes_no_gradients_and_no_moments() -> None:
    """Fails when frozen parameters are counted with gradients and AdamW's means, or a frozen encoder with what its
    layers would keep for a backward pass.
    """
    frozen, adapters = SIZES.parameters, 10_000_000
    trains = Trains(trained=adapters, frozen=frozen, blocks=False, head=False, encoder=False)
    all_of_it, config = fitting(131_072, images=512), settings(recompute="selective")
    more, less = all_of_it.estimate(config).parts, replace(all_of_it, trains=trains).estimate(config).parts
    assert less.state == (12 * adapters + 4 * frozen) / 8
    assert more.gathered - less.gathered == 2 * SIZES.layer_parameters + 4 * HEAD
    assert more.activations - less.activations == 2 * (65_536 * 1152 * 27 + 16_384 * SIZES.vision_row)


def test_what_a_configuration_leaves_out_is_what_transformers_takes() -> None:
    """Fails when a released Gemma 3, whose config.json does not have its heads, is refused or given others."""
    transformers = register_attention()
    missing, whole = LANGUAGES["gemma3_text"].left_out, transformers.Gemma3TextConfig()
    assert {name: getattr(whole, name) for name in missing} == missing
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    found = model_dimensions({"text_config": text}, None, "a released Gemma 3")
    assert (found.heads, found.kv_heads, found.head_dim, found.hidden_kept) == (8, 4, 256, 18)


def test_the_least_recomputation_that_fits_is_taken() -> None:
    """Fails when ``auto`` computes more again than must be, or what the user has chosen is replaced."""
    auto = settings(recompute="auto")
    assert fitting(8_192).least_recompute(auto)[0].recompute == "none"
    assert fitting(131_072).least_recompute(auto)[0].recompute == "selective"
    assert fitting(524_288).least_recompute(auto)[0].recompute == "full"
    assert fitting(8_192).least_recompute(settings(recompute="auto", offload="host"))[0].recompute == "selective"
    taken, found = fitting(131_072).least_recompute(settings(recompute="none"))
    assert (taken.recompute, found.fits) == ("none", False)


SMALLER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "parameters over fewer ranks": ({"cp_fsdp": "none"}, {}),
    "sums in float64": ({"dtype": "float64"}, {"dtype": "float32"}),
    "float32": ({"dtype": "float32"}, {}),
    "fewer logits": ({"recompute": "none", "logits_mib": 16_384}, {"recompute": "none", "logits_mib": 256}),
    "nothing computed again": ({"recompute": "none"}, {"recompute": "selective"}),
    "all but attention": ({"recompute": "selective"}, {"recompute": "full"}),
    "inputs elsewhere": ({"recompute": "full"}, {"recompute": "full", "offload": "host"}),
    "state on the host": ({}, {"offload": "state"}),
    "state and inputs on the host": ({"offload": "state"}, {"offload": "all"}),
    "MLPs in tiles": ({"recompute": "full"}, {"recompute": "full", "mlp_tiles": 8}),
    "MLPs in tiles alone": ({"recompute": "none"}, {"recompute": "none", "mlp_tiles": 8}),
    "plain blocks": ({"recompute": "none"}, {"recompute": "none", "compile": True}),
    "plain layers": ({"recompute": "full"}, {"recompute": "full", "compile": True}),
    "keys of a gather": ({"ring": 32, "logits_mib": 256}, {"ring": 32, "logits_mib": 256, "attention": "ring"}),
    "keys of a gather in turns": ({"ring": 32, "logits_mib": 256}, {"ring": 32, "logits_mib": 256, "head_stride": 4}),
    "one turn of keys at a time": (
        {"ring": 32, "logits_mib": 256, "head_stride": 4, "overlap": True},
        {"ring": 32, "logits_mib": 256, "head_stride": 4},
    ),
    "more ranks": ({}, {"ring": 16}),
}


@pytest.mark.parametrize("name", SMALLER)
def test_every_setting_that_saves_memory_is_counted(name: str) -> None:
    """Fails when an option that takes less memory has no part in the estimate."""
    more, less = ({"recompute": "full", **given} for given in SMALLER[name])
    assert gib(settings(**less), seq_len=131_072, images=512) < 0.999 * gib(
        settings(**more), seq_len=131_072, images=512
    )


@pytest.mark.parametrize(
    ("given", "seq_len", "world_size", "remedy"),
    [
        ({"recompute": "none"}, 131_072, 8, "take --recompute selective"),
        ({"recompute": "none", "dtype": "float32"}, 393_216, 8, "take --dtype bfloat16 --recompute full"),
        ({"recompute": "full", "cp_fsdp": "none"}, 36_864, 8, "take --cp-fsdp all"),
        ({"recompute": "full", "ring": 1, "layout": "contiguous"}, 8_192, 8, "take --dp-shard 8"),
        ({"recompute": "full", "ring": 4, "dp_shard": 2}, 393_216, 8, "take --mlp-tiles 8 --logits-mib 256"),
        ({"recompute": "full", "ring": 4, "dp_shard": 2}, 524_288, 8, "take --dp-shard 1 --ring 8"),
        ({"recompute": "full"}, 1_048_576, 8, "take --mlp-tiles 8 --logits-mib 256 --offload host"),
        ({"recompute": "full"}, 851_968, 8, "take --mlp-tiles 8 --logits-mib 256 --head-stride 4"),
        ({"recompute": "full"}, 1_769_472, 8, "take --mlp-tiles 8 --logits-mib 256 --head-stride 4 --offload host"),
        ({"recompute": "full", "attention": "ring"}, 2_097_152, 8, "take --mlp-tiles 8 --logits-mib 256 --offload all"),
        ({"recompute": "full", "attention": "ring"}, 4_194_304, 8, "start 16 processes with --ring 16 --mlp-tiles 8"),
    ],
)
def test_the_remedy_fits(given: dict[str, Any], seq_len: int, world_size: int, remedy: str) -> None:
    """Fails when a user is told to take what does not fit either, or something dearer than needed."""
    found = fitting(seq_len)
    assert not found.estimate(settings(**given)).fits
    said = found.remedy(settings(**given), world_size)
    assert said.startswith(remedy), said
    words = said.split("--")[1:]
    taken = {name.replace("-", "_"): value for name, value in (word.split() for word in words)}
    changed = TrainConfig.model_validate({**settings(**given).model_dump(), **taken})
    assert found.estimate(changed).fits


def test_no_remedy_is_invented() -> None:
    """Fails when something is named that does not fit, where nothing does."""
    assert fitting(device=2**30).remedy(settings(recompute="full"), 8) == "use a smaller model or shorter packs"


@pytest.fixture
def options(lessons: Path) -> dict[str, Any]:
    return {"data": str(lessons), "model": str(lessons.with_name("model")), "from_scratch": True, "steps": 1}


def test_a_gpu_gets_what_it_needs_and_a_cpu_what_it_had(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a GPU computes in float32 by default or does not compile, when trained weights are learnt over at the
    rate of random ones, or when a CPU is refused for a GPU's memory.
    """
    found = prepare(TrainConfig.model_validate(options), rank=0, world_size=1)
    assert (found.config.dtype, found.config.recompute, found.memory) == ("float32", "none", None)
    assert found.config.compile is False
    monkeypatch.setattr(memory_check, "device_memory", lambda: H100)
    found = prepare(TrainConfig.model_validate(options), rank=0, world_size=1, device_type="cuda")
    assert (found.config.dtype, found.config.recompute, found.config.compile) == ("bfloat16", "none", True)
    assert found.memory is not None
    assert found.memory.in_short() == f"estimated {found.memory.parts.total / 2**30:.1f} of 79.2 GiB a rank"
    assert found.rank_invariants()["--recompute"] == "none"
    assert found.config.largest_lr == 1e-3
    assert settings().largest_lr == 1e-5
    assert settings(lr=0.5).largest_lr == 0.5


def test_the_encoder_is_that_of_the_model(options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a larger model of the family that packs were made for is estimated with their model's encoder."""
    monkeypatch.setattr(memory_check, "device_memory", lambda: H100)
    shutil.copytree(options["model"], tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["vision_config"]["depth"] *= 3
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    own, larger = (
        prepare(TrainConfig.model_validate(options | {"model": str(model)}), rank=0, world_size=1, device_type="cuda")
        for model in (options["model"], tmp_path / "model")
    )
    assert own.memory is not None
    assert larger.memory is not None
    assert larger.memory.parts.on_device["state"] > own.memory.parts.on_device["state"]


SMALL = 2**22


def test_a_run_that_does_not_fit_ends_before_it_loads_anything(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a run starts that will be out of memory in its first step, or when the user cannot have it anyway."""
    monkeypatch.setattr(memory_check, "device_memory", lambda: SMALL)
    config = TrainConfig.model_validate(options)
    with pytest.raises(ConfigError) as refused:
        prepare(config, rank=0, world_size=1, device_type="cuda")
    said = str(refused.value)
    assert said.startswith("a rank would need 0.0 GiB (estimated) with --recompute full (state 0.0, gathered 0.0, ")
    assert "of its device's 0.0 GiB, 0.0 can be used: take --mlp-tiles 8 --logits-mib 256 --offload all, or" in said
    assert "\n" not in said
    anyway = prepare(config.model_copy(update={"memory_check": "off"}), rank=0, world_size=1, device_type="cuda")
    assert anyway.config.recompute == "full"
    assert anyway.memory is not None
    assert not anyway.memory.fits
    monkeypatch.setattr(memory_check, "device_memory", lambda: 2**30)
    assert prepare(config, rank=0, world_size=1, device_type="cuda").config.recompute == "none"


def test_patches_are_those_of_the_largest_pack(lessons: Path, options: Any) -> None:
    """Fails when packs are judged by their mean, or the encoder's patches of a rank are not counted."""
    job = prepare(TrainConfig.model_validate(options), rank=0, world_size=1)
    packs = memory_check.Packs.of([job.dataset])
    patches = [sum(unit.patches for unit in batch.units) for batch in job.dataset]
    assert max(patches) > 0
    assert packs.share(job.config, 2).patches == max(patches)
    names = {"tokens", "patches", "rows", "keys", "key_heads", "tables", "in_parts", "copied_heads"}
    assert asdict(packs.share(job.config, 2)).keys() == names


@pytest.mark.process  # the packs are made by a job
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_the_busiest_rank_is_that_of_the_packs(folder_of: Callable[..., Path], family: str) -> None:
    """Fails when the images of a pack count as of equal size, where one rank has the large ones."""
    folder, apart = folder_of(family) / "dataset", 0.0
    for ring in (2, 4):
        ranks = [PackedDataset(str(folder), ring_degree=ring, cp_rank=rank) for rank in range(ring)]
        units = [batch.units for dataset in ranks for batch in dataset]
        share = memory_check.Packs.of(ranks[:1]).share(settings(ring=ring), 2)
        assert share.rows == max(sum(unit.rows for unit in each) for each in units) > 0
        assert share.patches == pytest.approx(max(sum(unit.patches for unit in each) for each in units))
        equal = replace(memory_check.Packs.of(ranks[:1]), busiest={}).share(settings(ring=ring), 2)
        apart = max(apart, abs(share.patches / equal.patches - 1))
    assert apart > 0.005
